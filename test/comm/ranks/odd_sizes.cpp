// Sharding needs no divisible sizes: a hundred tensors of odd sizes on any number of ranks, with exact sums, get the
// same bits as on one rank.
#include <random>

#include "llmc/device/formats.cuh"
#include "llmc/device/transfer.h"
#include "llmc/optim/optimizer.h"
#include "test/comm/ranks/exact_gradients.h"
#include "test/model/all_weights.h"

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
    const stream_t stream = test_stream();
    const ParameterTable table(odd_units(), comm.world());
    Sharding sharding;
    sharding.stage = stage;
    const ShardLayout layout(table, comm, sharding);
    Weights<Real> model(layout);
    Gradients gradients(layout);
    Optimizer<Real> optimizer({.schedule = {ScheduleKind::constant, 1e-2, 0, 100, 0}}, model, gradients);
    model.allocate(stream);
    gradients.allocate(stream);
    optimizer.allocate(stream);
    for (size_t u = 0; u < kUnits; u++)
        for (size_t t = 0; t < kTensors; t++)
            model.set_tensor(u, t, exact_values(-1, 0, u, t, table.unit(u).tensors[t].count()), stream);
    model.publish(stream);
    double* loss_sum = static_cast<double*>(device_malloc(sizeof(double)));
    write_through(loss_sum, 1.0, stream);
    for (int step = 0; step < kSteps; step++) {
        gradients.begin_micro_step(true, true);
        for (size_t u = 0; u < kUnits; u++) {
            model.gather(u, stream);
            gradients.acquire(u, stream);
            write_exact_gradients(gradients, table.unit(u), u, comm, step, ranks, stream);
            model.release(u, stream);
            gradients.reduce(u, stream);
        }
        optimizer.update(loss_sum, nullptr, stream);
        model.publish(stream);
    }
    const auto weights = all_weights(model, stream);
    size_t next = 0;  // on every rank, the model reads the masters' values
    for (size_t u = 0; u < kUnits; u++) {
        model.gather(u, stream);
        for (size_t t = 0; t < kTensors; t++) {
            const std::vector<float>& master = weights[next++];
            const std::vector<Real> working = read_back(model.weight(u, t), master.size(), stream);
            bool same = true;
            for (size_t i = 0; i < master.size(); i++) same &= to_float(working[i]) == to_float(to<Real>(master[i]));
            CHECK(same);
        }
        model.release(u, stream);
    }
    synchronize(stream);
    device_free(loss_sum);
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
