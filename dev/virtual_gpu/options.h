// How the virtual GPU plays, from the environment. A variable that begins with VIRTUAL_GPU_ and is none of these, and a
// value that is none of those named, end the process with a message.
#pragma once
#include <cstdint>
#include <string>

namespace virtual_gpu {

enum class Streams { now, lazy, random };
enum class Order { ascending, descending, random };
enum class Arithmetic { fp32, ampere, ada, hopper, blackwell };

constexpr int kReversed = -1;

struct Options {
    std::string card = "sm_90a";     // VIRTUAL_GPU_CARD=sm_80|sm_89|sm_90a|sm_100|sm_120: see card.h
    int multiprocessors = 0;         // VIRTUAL_GPU_MULTIPROCESSORS: of a smaller card; 0: those of the card
    int devices = 1;                 // VIRTUAL_GPU_DEVICES: how many such cards the process sees
    Streams streams = Streams::now;  // VIRTUAL_GPU_STREAMS=now|lazy|random: when work runs, of what may run
    Order order = Order::ascending;  // VIRTUAL_GPU_ORDER=ascending|descending|random: of blocks, and of their warps
    uint64_t seed = 1;               // VIRTUAL_GPU_SEED: of what is random
    Arithmetic arithmetic =
        Arithmetic::fp32;         // VIRTUAL_GPU_ARITHMETIC=fp32|ampere|ada|hopper|blackwell: tensor cores' sums
    bool approximate = false;     // VIRTUAL_GPU_APPROXIMATE=1: ex2, rsqrt, div.approx err by what the PTX ISA allows
    int threads = 0;              // VIRTUAL_GPU_THREADS: that run blocks; 0: one a core
    bool races = false;           // VIRTUAL_GPU_RACES=1: looks for races in kernels (one thread)
    std::string counts;           // VIRTUAL_GPU_COUNTS=FILE: what each kernel did, as JSON, at the process's end
    std::string uuid;             // VIRTUAL_GPU_UUID=TEXT: what cards' identities are made of; else of the card
    int driver_version = 0;       // VIRTUAL_GPU_DRIVER=NNNNN: the CUDA version of the driver; 0: that of the runtime
    int heuristic = 0;            // VIRTUAL_GPU_HEURISTIC=N|reversed: cuBLASLt proposes algorithms from the N-th on
    int cublas_version = 130000;  // VIRTUAL_GPU_CUBLAS=NNNNNN: the version of cuBLASLt that is played
    int nccl_version = 22800;     // VIRTUAL_GPU_NCCL=NNNNN: that of NCCL
    std::string lose;             // VIRTUAL_GPU_LOSE=KERNEL:LINE: the instruction on that line of the PTX does nothing
    std::string fault;            // VIRTUAL_GPU_FAULT=KIND[:N],...: what goes wrong on purpose: planned_faults.h
};

const Options& options();

}  // namespace virtual_gpu
