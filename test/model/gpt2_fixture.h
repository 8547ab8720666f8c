// A small GPT-2 with the fixture's weights, on the device, for the tests of model/ and optim/.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "llmc/train/step_results.h"
#include "llmc/train/trainer.h"
#include "test/fixture.h"
#include "test/kernel_test.h"
#include "test/model/all_weights.h"

namespace llmc::test {

// For comparisons of gradients.
inline double dot(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}
inline double norm(const std::vector<float>& a) { return std::sqrt(dot(a, a)); }
inline double cosine(const std::vector<float>& a, const std::vector<float>& b) {
    return dot(a, b) / (norm(a) * norm(b));
}

// ||a - b|| / ||b||; infinite if the sizes differ, and NaN, which no check accepts, stays NaN.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
    if (a.size() != b.size()) return INFINITY;
    std::vector<float> difference(a.size());
    for (size_t i = 0; i < a.size(); i++) difference[i] = a[i] - b[i];
    return norm(difference) / norm(b);
}

template <class Fixture>
ModelConfig fixture_config(const Fixture& fixture) {
    ModelConfig config;
    config.name = "fixture";
    config.layers = fixture.integer("layers");
    config.heads = fixture.integer("heads");
    config.channels = fixture.integer("channels");
    config.vocab = fixture.integer("vocab");
    config.context = fixture.integer("context");
    return config;
}

struct Batch {
    std::vector<int> tokens, targets;  // (B, T)
};

// Batch `index` of the fixture: B sequences of T + 1 tokens, as inputs and targets.
inline Batch fixture_batch(const Gpt2Fixture& fixture, int index) {
    const size_t B = fixture.integer("batch"), T = fixture.integer("seq");
    const std::vector<int32_t> all = fixture.tokens();  // (steps, B, T + 1)
    Batch batch;
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++) {
            const size_t at = (static_cast<size_t>(index) * B + b) * (T + 1) + t;
            batch.tokens.push_back(all[at]);
            batch.targets.push_back(all[at + 1]);
        }
    return batch;
}

// A fixture with one micro-batch, for tests of FP8 (dev/reference/make_fp8_fixture.py).
struct Fp8Fixture {
    SafetensorsFile file;
    int B = integer("batch"), T = integer("seq");

    explicit Fp8Fixture(const std::string& file_name) : file(fixture_path(file_name)) {}
    int integer(const std::string& key) const { return std::stoi(file.metadata().at(key)); }
    // Padded with zeros to the table's size, as wte's rows are.
    std::vector<float> padded(const std::string& name, size_t count) const {
        std::vector<float> values = file.read_floats(name);
        values.resize(count, 0.0f);
        return values;
    }
    Batch batch() const {
        const size_t length = static_cast<size_t>(T) + 1;
        std::vector<int32_t> all(static_cast<size_t>(B) * length);  // (1, B, T + 1)
        file.read("tokens", all.data(), all.size() * sizeof(int32_t));
        Batch batch;
        for (size_t i = 0; i < all.size(); i++) {
            if (i % length + 1 < length) batch.tokens.push_back(all[i]);
            if (i % length > 0) batch.targets.push_back(all[i]);
        }
        return batch;
    }
};

// A model of two heads of 32 channels, for tests that need no fixture.
inline ModelConfig small_model(int layers, int context) {
    ModelConfig model;
    model.name = "small";
    model.layers = layers, model.heads = 2, model.channels = 64, model.vocab = 101, model.context = context;
    return model;
}
// A micro-batch of N tokens in which every token determines the next one.
inline Batch small_batch(int index, int N) {
    Batch batch;
    for (int i = 0; i < N; i++) batch.tokens.push_back((index * 31 + i * i + 7) % 101);
    for (const int token : batch.tokens) batch.targets.push_back((token * 3 + 1) % 101);
    return batch;
}

inline Fp8Config recipe(Fp8Recipe kind) {
    Fp8Config config;
    config.recipe = kind;
    return config;
}

// The number of values that the FP8 tensor with this number has in a pass over N tokens.
template <class Real>
uint64_t fp8_elements(const LinearLayers<Real>& linear, Fp8Registry& fp8, int tensor, int N) {
    const Linear<Real>& layer = linear.find(fp8.layer_name(tensor / kFp8Roles));
    const uint64_t in = static_cast<uint64_t>(layer.shape().C), out = static_cast<uint64_t>(layer.shape().OC),
                   n = static_cast<uint64_t>(N);
    return role_of(tensor) == Fp8Role::x ? n * in : role_of(tensor) == Fp8Role::dout ? n * out : in * out;
}

inline TrainerConfig trainer_config(const ModelConfig& model, int B, int T, Recompute recompute,
                                    const Fp8Config* fp8 = nullptr, const std::string& fp8_layers = "all") {
    TrainerConfig config;
    config.model = model;
    config.batch = B;
    config.seq = T;
    config.recompute = recompute;
    if (fp8) config.precision = Precision::fp8, config.fp8 = *fp8;
    config.fp8_layers = fp8_layers_from_text(fp8_layers);
    return config;
}

// A trainer of a small model, with short names for its parts.
template <class Real>
struct TestModel {
    Trainer<Real> trainer;
    const ModelConfig& config = trainer.config().model;
    const ParameterTable& table = trainer.table();
    Weights<Real>& weights = trainer.weights();
    Gradients& gradients = trainer.gradients();
    Matmul& matmul = trainer.matmul();
    Fp8Registry* const fp8 = trainer.fp8();
    Transformer<Real>& model = trainer.model();
    const Optimizer<Real>& optimizer = trainer.optimizer();
    stream_t stream{};

    explicit TestModel(const TrainerConfig& config, const Comm& comm = Comm::self()) : trainer(config, comm) {
        trainer.allocate();
        stream = trainer.stream();
        if (fp8) fp8->count_losses(true);
    }
    // fp8 runs the blocks' linear layers in FP8 (BF16 models only).
    TestModel(const ModelConfig& model, int B, int T, Recompute recompute, const Fp8Config* fp8 = nullptr,
              const std::string& fp8_layers = "all")
        : TestModel(trainer_config(model, B, T, recompute, fp8, fp8_layers)) {}
    ~TestModel() {
        tear_down_in_test([&] { synchronize(stream); });
    }

    // Makes a step of one micro-batch and returns its record; `weight` is as in Trainer::micro_step().
    StepRecord step(const Batch& batch, float weight = 1.0f) {
        begin_step();
        trainer.micro_step(batch.tokens.data(), batch.targets.data(), weight);
        return finish_step();
    }
    void begin_step(bool count_losses = true) { trainer.begin_step({.count_losses = count_losses}); }
    StepRecord finish_step() {
        left_fp8 = trainer.finish_step();
        return *trainer.take_result(0);
    }
    std::vector<Fp8Fallback> left_fp8;  // by the last step
    int layers_in_fp8() const {
        const auto& layers = model.linear().all();
        return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](const auto* l) { return l->is_fp8(); }));
    }

    // Loads the fixture's weights; wte's padded rows are 0.
    template <class Fixture>
    void load(const Fixture& fixture) {
        for (const Unit& unit : table.units())
            for (const ParameterTensor& tensor : unit.tensors)
                trainer.set_weight(tensor.name, fixture.file.read_floats(tensor.name));
        trainer.weights_are_set();
    }

    std::vector<Fp8State> fp8_states() { return read_back(fp8->states(), static_cast<size_t>(fp8->count()), stream); }

    // All gradients, tensor after tensor.
    std::vector<std::vector<float>> all_gradients() {
        std::vector<std::vector<float>> all;
        for (size_t u = 0; u < table.units().size(); u++)
            for (size_t t = 0; t < table.unit(u).tensors.size(); t++)
                all.push_back(gradients.get_gradient(u, t, stream));
        return all;
    }

    template <class T>
    T read(const T* device) {
        return read_back(device, stream);
    }
    double mean_train_loss() {
        return read(model.train_loss_sum()) / static_cast<double>(read(model.train_loss_count()));
    }
    double mean_eval_loss() { return read(model.eval_loss_sum()) / static_cast<double>(read(model.eval_loss_count())); }
};

// The losses of some steps from initial weights. Checks that the last step's products were in FP8 where they should be.
template <class Real>
std::vector<double> training_losses(const TrainerConfig& config, int steps) {
    TestModel<Real> test(config);
    test.trainer.initialize(3);
    std::vector<double> losses;
    for (int step = 0; step < steps; step++)
        losses.push_back(test.step(small_batch(step, config.batch * config.seq)).loss);
    const int64_t layers = config.model.layers * std::ssize(linear_names(config.model));
    CHECK(test.trainer.submitted().products.fp8 == test.trainer.expected_fp8_products());
    CHECK(test.trainer.submitted().products.fp8 == (config.is_fp8() ? 3 * layers : 0));
    return losses;
}

// -log p of every next token of one sequence, from generation's logits.
template <class Real>
std::vector<double> generation_losses(TestModel<Real>& test, const Batch& batch) {
    std::vector<double> losses;
    for (size_t t = 0; t < batch.tokens.size(); t++) {
        const std::vector<float> logits =
            test.model.next_token_logits(batch.tokens.data(), static_cast<int>(t) + 1, test.stream);
        double sum = 0;
        for (const float x : logits) sum += std::exp(double{x});
        losses.push_back(std::log(sum) - logits[batch.targets[t]]);
    }
    return losses;
}

}  // namespace llmc::test
