// --seq-schedule: a sequence that is cut into pieces trains like that many shorter sequences.
#include "test/model/modern_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kVocab = 61;  // 0 ends a document

Batch batch_of(int index, int n) {
    Batch batch;
    for (int i = 0; i < n; i++) batch.tokens.push_back(i % 11 == 5 ? 0 : (index * 31 + i * i + 7) % kVocab);
    for (const int token : batch.tokens) batch.targets.push_back((token * 3 + 1) % kVocab);
    return batch;
}

// Two steps, whose second has pieces of another length or none.
template <class Real>
std::vector<std::vector<float>> trained(TrainerConfig config, int batch, int seq, const std::vector<int>& lengths) {
    config.batch = batch, config.seq = seq;
    if (lengths.front() > 0) config.shortest_piece = lengths.front();
    TestModel<Real> test(config);
    test.trainer.initialize(1);
    for (size_t i = 0; i < lengths.size(); i++) {
        test.trainer.begin_step({.length = lengths[i]});
        const Batch tokens = batch_of(static_cast<int>(i), batch * seq);
        test.trainer.micro_step(tokens.tokens.data(), tokens.targets.data());
        test.finish_step();
    }
    return all_weights(test.weights, test.stream);
}

template <class Real>
void check_pieces(const TrainerConfig& config, int seq) {
    const auto cut = trained<Real>(config, 1, 2 * seq, {seq, seq});
    CHECK(same_bits(cut, trained<Real>(config, 2, seq, {0, 0})));
    CHECK(!same_bits(cut, trained<Real>(config, 1, 2 * seq, {0, 0})));  // for attention this is a different step
    CHECK(!same_bits(cut, trained<Real>(config, 1, 2 * seq, {seq, 0})));
}

TrainerConfig small(const char* architecture, int layers, int context, const Fp8Config* fp8) {
    ModelConfig model;
    if (architecture) model = modern_config(architecture);
    model.layers = layers, model.heads = 2, model.channels = 64, model.vocab = kVocab, model.context = context;
    TrainerConfig config = trainer_config(model, 1, context, Recompute::gelu, fp8);
    config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
    config.doc_mask = true, config.end_token = 0;
    return config;
}

}  // namespace

TEST_CASE("pieces of sequences: each is a sequence by itself, with its own positions") {
    check_pieces<float>(small(nullptr, 2, 32, nullptr), 16);
    check_pieces<bf16>(small("llama", 2, 32, nullptr), 16);
}

TEST_CASE("pieces of sequences: in FP8, with attention that casts and that does not") {
    const Fp8Config delayed;
    for (const int seq : {16, 128}) check_pieces<bf16>(small(nullptr, 1, 2 * seq, &delayed), seq);
}
