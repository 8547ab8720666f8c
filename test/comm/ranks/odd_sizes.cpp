// Sharding needs no divisible sizes: a hundred tensors of odd sizes on any number of ranks, with exact sums, get the
// same bits as on one rank.
#include <random>

#include "llmc/device/formats.cuh"
#include "test/comm/ranks/exact_gradients.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kUnits = 10, kTensors = 10, kSteps = 3;

std::vector<Unit> odd_units() {
    std::mt19937 engine(5);
    std::vector<Unit> units(kUnits);
    for (int u = 0; u < kUnits; u++) {
        units[as_size(u)].name = "unit " + std::to_string(u);
        for (int t = 0; t < kTensors; t++) {
            const int rows = 1 + static_cast<int>(engine() % 13), columns = 1 + static_cast<int>(engine() % 97);
            const bool matrix = t < 6;
            units[as_size(u)].tensors.push_back(
                {fmt::format("{}.{}", u, t), matrix ? std::vector{rows, columns} : std::vector{columns}, matrix, 0});
        }
    }
    return units;
}

// Makes some steps. Sums the gradients of `ranks` ranks, or with several real ranks only this rank's own.
template <class Real>
std::vector<std::vector<float>> weights_after(const Comm& comm, int stage, int ranks) {
    ExactRun<Real> run(odd_units(), comm, {.stage = stage}, {.schedule = {ScheduleKind::constant, 1e-2, 0, 100, 0}});
    for (int step = 0; step < kSteps; step++) run.step(step, ranks);
    const auto weights = all_weights(run.weights, run.stream);
    size_t next = 0;  // on every rank, the model reads the masters' values
    for (size_t u = 0; u < kUnits; u++) {
        run.weights.gather(u, run.stream);
        for (size_t t = 0; t < kTensors; t++) {
            const std::vector<float>& master = weights[next++];
            const std::vector<Real> working = read_back(run.weights.weight(u, t), master.size(), run.stream);
            bool same = true;
            for (size_t i = 0; i < master.size(); i++) same &= to_float(working[i]) == to_float(to<Real>(master[i]));
            CHECK(same);
        }
        run.weights.release(u, run.stream);
    }
    return weights;
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE_TEMPLATE("a hundred tensors of odd sizes, on any number of ranks", Real, float, bf16) {
    const auto expected = weights_after<Real>(Comm::self(), 0, world().world());
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        CHECK(same_bits(weights_after<Real>(world(), stage, world().world()), expected));
    }
}

TEST_SUITE_END();
