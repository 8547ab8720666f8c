// Steps of an optimizer on gradients whose sums over a few ranks are exact in any order, so that one rank can compute
// them for many.
#pragma once
#include <random>
#include <vector>

#include "llmc/device/transfer.h"
#include "llmc/optim/optimizer.h"
#include "test/comm/ranks/ranks.h"
#include "test/model/all_weights.h"

namespace llmc::test {

// Multiples of 2^-10 below one, different for every argument.
inline std::vector<float> exact_values(int rank, int step, size_t unit, size_t tensor, size_t count) {
    std::seed_seq seed{rank, step, static_cast<int>(unit), static_cast<int>(tensor)};
    std::mt19937 engine(seed);
    std::vector<float> values(count);
    for (float& value : values) value = (static_cast<float>(engine() % 2048) - 1024) / 1024;
    return values;
}

template <class Real>
struct ExactRun {
    const stream_t stream = test_stream();
    const ParameterTable table;
    const ShardLayout layout;
    Weights<Real> weights{layout};
    Gradients gradients{layout};
    Matmul matmul{false};
    Optimizer<Real> optimizer;
    DeviceArray<double> loss_sum{std::vector<double>{1.0}};

    ExactRun(const std::vector<Unit>& units, const Comm& comm, const Sharding& sharding, const OptimizerSetup& setup)
        : table(units, comm.world()), layout(table, comm, sharding), optimizer(setup, weights, gradients, &matmul) {
        weights.allocate(stream);
        gradients.allocate(stream);
        optimizer.allocate(stream);
        for (size_t u = 0; u < units.size(); u++)
            for (size_t t = 0; t < units[u].tensors.size(); t++)
                weights.set_tensor(u, t, exact_values(-1, 0, u, t, units[u].tensors[t].count()), stream);
        weights.publish(stream);
    }
    ~ExactRun() { synchronize(stream); }

    // With this rank's gradients, or, on a communicator of one rank, with the sums over `ranks` ranks.
    void step(int step, int ranks) {
        gradients.begin_micro_step(true, true);
        for (size_t u = 0; u < table.units().size(); u++) {
            weights.gather(u, stream);
            gradients.acquire(u, stream);
            for (size_t t = 0; t < table.unit(u).tensors.size(); t++) write_gradient(step, u, t, ranks);
            weights.release(u, stream);
            gradients.reduce(u, stream);
        }
        optimizer.update(loss_sum, nullptr, stream);
        weights.publish(stream);
    }

private:
    void write_gradient(int step, size_t unit, size_t tensor, int ranks) {
        const size_t count = table.unit(unit).tensors[tensor].count();
        std::vector<float> sum = exact_values(layout.comm().rank(), step, unit, tensor, count);
        for (int r = 1; r < ranks && layout.comm().world() == 1; r++) {
            const std::vector<float> more = exact_values(r, step, unit, tensor, count);
            for (size_t i = 0; i < count; i++) sum[i] += more[i];
        }
        write_through(gradients.gradient(unit, tensor), sum.data(), count, stream);
    }
};

}  // namespace llmc::test
