// The virtual GPU's options, from the environment. An unknown variable that begins with VIRTUAL_GPU_, or an unknown
// value, ends the process with a message.
#pragma once
#include <cstdint>
#include <string>

namespace virtual_gpu {

enum class Streams { now, lazy, random };
enum class Order { ascending, descending, random };
enum class Arithmetic { fp32, ampere, ada, hopper, blackwell };

constexpr int kReversed = -1;

struct Options {
    std::string card = "sm_90a";     // VIRTUAL_GPU_CARD=sm_80|sm_89|sm_90a|sm_100|sm_120 (card.h)
    int multiprocessors = 0;         // VIRTUAL_GPU_MULTIPROCESSORS: for a smaller card; 0 for the card's own number
    int devices = 1;                 // VIRTUAL_GPU_DEVICES: the number of such cards
    Streams streams = Streams::now;  // VIRTUAL_GPU_STREAMS=now|lazy|random: which of the runnable work runs next
    Order order = Order::ascending;  // VIRTUAL_GPU_ORDER=ascending|descending|random: of blocks and of their warps
    uint64_t seed = 1;               // VIRTUAL_GPU_SEED: for everything random
    Arithmetic arithmetic =
        Arithmetic::fp32;         // VIRTUAL_GPU_ARITHMETIC=fp32|ampere|ada|hopper|blackwell: tensor cores' sums
    bool approximate = false;     // VIRTUAL_GPU_APPROXIMATE=1: ex2, rsqrt, div.approx err by the PTX ISA's bounds
    int threads = 0;              // VIRTUAL_GPU_THREADS: threads that run blocks; 0 for one per core
    bool races = false;           // VIRTUAL_GPU_RACES=1: detects races in kernels (uses one thread)
    std::string counts;           // VIRTUAL_GPU_COUNTS=FILE: writes each kernel's work as JSON when the process ends
    std::string uuid;             // VIRTUAL_GPU_UUID=TEXT: seed of the cards' identities; default: the card's name
    int driver_version = 0;       // VIRTUAL_GPU_DRIVER=NNNNN: CUDA version of the driver; 0 for the runtime's
    int heuristic = 0;            // VIRTUAL_GPU_HEURISTIC=N|reversed: cuBLASLt proposes algorithms from the N-th on
    int cublas_version = 130000;  // VIRTUAL_GPU_CUBLAS=NNNNNN: the simulated version of cuBLASLt
    int nccl_version = 22800;     // VIRTUAL_GPU_NCCL=NNNNN: the simulated version of NCCL
    std::string lose;             // VIRTUAL_GPU_LOSE=KERNEL:LINE: turns the PTX instruction on that line into a no-op
    std::string fault;            // VIRTUAL_GPU_FAULT=KIND[:N],...: deliberate faults (planned_faults.h)
};

const Options& options();

}  // namespace virtual_gpu
