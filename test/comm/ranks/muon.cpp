// Muon over ranks: one rank's bits on any number of ranks and in every stage, wherever slices cut the matrices, and the
// planned number of bytes on the wire.
#include "test/comm/ranks/exact_gradients.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr size_t kBlocks = 5;
constexpr int kMuonSteps = 2;

std::vector<Unit> units() {
    std::vector<Unit> all(kBlocks + 2);
    all[0] = {"embedding", {{"wte", {72, 24}, true}}};
    for (size_t u = 1; u <= kBlocks; u++) {
        const std::string name = std::to_string(u);
        all[u] = {"block " + name,
                  {{name + ".qkv", {72, 24}, true, 0, {24, 24, 24}},
                   {name + ".fc", {96, 24}, true},
                   {name + ".proj", {24, 96}, true},
                   {name + ".norm", {24}, false}}};
    }
    all[kBlocks + 1] = {"final", {{"last", {24}, false}}};
    return all;
}

struct MuonResult {
    std::vector<std::vector<float>> weights;
    double bytes = 0, planned = 0, calls = 0, planned_calls = 0;  // per step, averaged over the ranks
};

template <class Real>
MuonResult train(const Comm& comm, OptimizerKind kind, int stage, int within, int ranks) {
    OptimizerSetup setup{.schedule = {ScheduleKind::constant, 1e-2, 0, 100, 0}, .clip = 1};
    setup.optimizer.kind = kind;
    // NorMuon with AdamW's moments in BF16, Muon with moments in FP32.
    setup.optimizer.adam_moments = kind == OptimizerKind::normuon ? StateFormat::bf16 : StateFormat::fp32;
    ExactRun<Real> run(units(), comm, {.stage = stage, .within = within}, setup);
    for (int step = 0; step < kMuonSteps; step++) run.step(step, ranks);
    MuonResult result;
    result.weights = all_weights(run.weights, run.stream);
    const Muon<Real>& muon = *run.optimizer.muon();
    const Traffic& traffic = muon.comm().traffic();
    const uint64_t mine[] = {traffic.bytes(), traffic.all_to_all.calls + traffic.broadcast.calls};
    std::vector<uint64_t> all(2 * as_size(comm.world()));
    comm.host_all_gather(all.data(), mine, sizeof mine);
    for (size_t r = 0; r < as_size(comm.world()); r++)
        result.bytes += static_cast<double>(all[2 * r]) / kMuonSteps / comm.world();
    result.calls = static_cast<double>(mine[1]) / kMuonSteps;
    result.planned = muon.sent_in_step().bytes;
    result.planned_calls = muon.sent_in_step().calls;
    return result;
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE_TEMPLATE("muon on any number of ranks", Real, float, bf16) {
    const int ranks = world().world();
    for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon}) {
        CAPTURE(static_cast<int>(kind));
        const MuonResult expected = train<Real>(Comm::self(), kind, 0, 0, ranks);
        CHECK(expected.bytes == 0);
        CHECK(expected.planned == 0);
        for (int stage = 0; stage <= 3; stage++) {
            if (kind == OptimizerKind::normuon && stage % 2 == 1) continue;
            CAPTURE(stage);
            const MuonResult result = train<Real>(world(), kind, stage, 0, ranks);
            CHECK(same_bits(result.weights, expected.weights));
            CHECK(result.bytes == doctest::Approx(result.planned).epsilon(1e-12));
            CHECK(result.calls == result.planned_calls);
            // A slice's directions travel to owners and back, except those that a rank owns itself.
            const double parameters = kBlocks * (72 * 24 + 2 * 96 * 24.0);
            const double most = stage == 0 ? parameters : 2 * parameters / ranks;
            CHECK(result.bytes <= most * sizeof(Real));
            if (ranks > 2) CHECK(result.bytes > most * sizeof(Real) / 4);
        }
        if (ranks % 2 == 0 && kind == OptimizerKind::muon)
            CHECK(same_bits(train<Real>(world(), kind, 1, ranks / 2, ranks).weights, expected.weights));
    }
    // Shows that another gradient is noticed.
    const auto other = train<Real>(Comm::self(), OptimizerKind::muon, 0, 0, ranks + 1);
    CHECK(!same_bits(other.weights, train<Real>(world(), OptimizerKind::muon, 1, 0, ranks).weights));
}

TEST_SUITE_END();
