// Kernels as the CUDA runtime uses them: read from PTX, then launched.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace virtual_gpu {

struct Parameter {
    std::string name;
    uint32_t offset, bytes;
};

struct Code;  // the executable form: machine.h
struct Source;

struct Kernel {
    Kernel();
    ~Kernel();
    std::string name, readable;  // mangled, demangled
    std::vector<Parameter> parameters;
    uint32_t parameter_bytes = 0;
    uint32_t shared_bytes = 0;       // static
    uint32_t max_threads = 1024;     // per block: .maxntid
    int registers = 0;               // per thread, from ptxas; 0 if unknown
    std::unique_ptr<Source> source;  // its text
    std::unique_ptr<Code> code;      // decoded at the first launch
};

// Returns every kernel of a PTX module. The text must outlive them. Throws Fault if it is not PTX.
std::vector<std::unique_ptr<Kernel>> read_module(std::string_view text);

struct Launch {
    Kernel* kernel;
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared_bytes;
    std::vector<unsigned char> parameters;  // parameter_bytes of them
};

// Runs all blocks to their end, on VIRTUAL_GPU_THREADS threads. Only one launch at a time. Throws Fault, also for an
// unknown instruction, which it names with its line.
void run_grid(const Launch& launch);

// Writes the work of every kernel when the process ends, if VIRTUAL_GPU_COUNTS is set (counts.h).
void write_counts(const std::string& path);

}  // namespace virtual_gpu
