// The cards that can be played: what CUDA's documentation says of their compute capability (CUDA C++ Programming Guide,
// "Compute Capabilities") and their data sheets of their size.
#pragma once
#include <cstddef>
#include <string>

namespace virtual_gpu {

struct Card {
    const char* name;   // as VIRTUAL_GPU_CARD and nvcc name it
    const char* model;  // the card
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
constexpr int kSharedReserved = 1024;  // of each block, for the system (8.0 and newer)
constexpr int kRegistersPerMultiprocessor = 65536;
constexpr int kRegistersPerThread = 255;
constexpr int kThreadsPerBlock = 1024;
constexpr int kLargestBlock[] = {1024, 1024, 64}, kLargestGrid[] = {2147483647, 65535, 65535};

const Card& card();  // the one being played
const Card* find_card(const std::string& name);

}  // namespace virtual_gpu
