// Gradients whose sums over a few ranks are exact in any order, so that one rank can compute them for many.
#pragma once
#include <random>
#include <vector>

#include "llmc/device/transfer.h"
#include "llmc/shard/gradients.h"
#include "test/comm/ranks/ranks.h"

namespace llmc::test {

// Multiples of 2^-10 below one, different for every argument.
inline std::vector<float> exact_values(int rank, int step, size_t unit, size_t tensor, size_t count) {
    std::seed_seq seed{rank, step, static_cast<int>(unit), static_cast<int>(tensor)};
    std::mt19937 engine(seed);
    std::vector<float> values(count);
    for (float& value : values) value = (static_cast<float>(engine() % 2048) - 1024) / 1024;
    return values;
}

// Writes a unit's gradients: this rank's own, or, on a communicator of one rank, the sums over `ranks` ranks.
inline void write_exact_gradients(Gradients& gradients, const Unit& unit, size_t place, const Comm& comm, int step,
                                  int ranks, stream_t stream) {
    for (size_t t = 0; t < unit.tensors.size(); t++) {
        const size_t count = unit.tensors[t].count();
        std::vector<float> sum = exact_values(comm.rank(), step, place, t, count);
        for (int r = 1; r < ranks && comm.world() == 1; r++) {
            const std::vector<float> more = exact_values(r, step, place, t, count);
            for (size_t i = 0; i < count; i++) sum[i] += more[i];
        }
        write_through(gradients.gradient(place, t), sum.data(), count, stream);
    }
}

}  // namespace llmc::test
