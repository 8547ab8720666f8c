// The cards that can be simulated. CUDA's documentation gives the properties of their compute capability (CUDA C++
// Programming Guide, "Compute Capabilities"), and data sheets their size.
#pragma once
#include <cstddef>
#include <string>

namespace virtual_gpu {

struct Card {
    const char* name;   // as in VIRTUAL_GPU_CARD and nvcc's options
    const char* model;  // the product name
    int capability;     // 90 for 9.0
    int multiprocessors;
    size_t memory_bytes;
    size_t l2_bytes;
    int shared_per_block;  // with the opt-in; 48 KiB without
    int shared_per_multiprocessor;
    int threads_per_multiprocessor;
    int blocks_per_multiprocessor;
    int clock_khz, memory_clock_khz, memory_bus_bits;
};

constexpr int kSharedWithoutOptIn = 48 * 1024;
constexpr int kSharedReserved = 1024;  // per block, for the system (8.0 and newer)
constexpr int kRegistersPerMultiprocessor = 65536;
constexpr int kRegistersPerThread = 255;
constexpr int kThreadsPerBlock = 1024;
constexpr int kLargestBlock[] = {1024, 1024, 64}, kLargestGrid[] = {2147483647, 65535, 65535};

const Card& card();  // the simulated card
const Card* find_card(const std::string& name);

}  // namespace virtual_gpu
