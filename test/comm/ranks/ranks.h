// Shared by the tests of several ranks.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "llmc/comm/comm.h"
#include "test/kernel_test.h"

namespace llmc::test {

const Comm& world();  // connected by main.cpp

int run_scenario(int argc, char** argv);

// Seeds that all ranks of a communicator share; each use gets a new one.
inline uint32_t& seed() {
    static uint32_t value = 0;
    return value;
}

// All ranks' data, computed on every rank: [rank][element].
template <class T>
std::vector<std::vector<T>> random_by_rank(int ranks, size_t count) {
    std::vector<std::vector<T>> all;
    seed()++;
    for (int r = 0; r < ranks; r++) {
        std::mt19937 engine(seed() * 64 + static_cast<uint32_t>(r));
        std::vector<T> values(count);
        for (T& v : values) {
            if constexpr (std::is_floating_point_v<T>)
                v = std::normal_distribution<T>(0, 1)(engine) * (engine() % 5 == 0 ? T(1e4) : T(1));
            else
                v = static_cast<T>(engine());
        }
        all.push_back(std::move(values));
    }
    return all;
}

inline size_t as_size(int n) { return static_cast<size_t>(n); }

// Counts around vector widths and blocks of threads, and zero.
inline const std::vector<size_t>& odd_counts() {
    static const std::vector<size_t> counts = {0, 1, 2, 7, 8, 64, 1023, 2048, 4097};
    return counts;
}

// Poisoned device memory for a workspace of this many bytes; nullptr for none.
class Workspace {
public:
    explicit Workspace(size_t bytes) : array_(bytes), bytes_(bytes) {}
    void* get() { return bytes_ ? array_.get() : nullptr; }

private:
    DeviceArray<uint8_t> array_;
    size_t bytes_;
};

}  // namespace llmc::test
