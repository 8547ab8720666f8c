// Kernels for tests of the calls: PTX in fat binaries made by hand, registered as nvcc's code does it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace virtual_gpu::test {

// A fat binary, to which images are added in order.
class FatBinary {
public:
    enum Flag : uint64_t { kPlain = 0, kCompressed = 0x8000, kArchitecture = 0x100000, kFamily = 0x200000 };
    FatBinary& ptx(int capability, const std::string& text, uint64_t flags = kPlain);
    FatBinary& cubin(int capability, const std::string& elf, uint64_t flags = kPlain);
    const void* data();  // until something is added

private:
    FatBinary& add(uint16_t kind, int capability, std::string payload, uint64_t flags);
    std::string bytes_;
};

// An ELF file with what ptxas says of one kernel's registers.
std::string cubin_of(const std::string& kernel, int registers);

// PTX of a module with one kernel: its parameters and body.
std::string module_of(const std::string& name, const std::string& parameters, const std::string& body,
                      const std::string& directives = "");

// The address of a host function that stands for a kernel of the fat binary, new at every call.
const void* register_kernel(FatBinary& binary, const std::string& name);
// Of a module for every card.
const void* register_kernel(const std::string& name, const std::string& parameters, const std::string& body,
                            const std::string& directives = "");

char* device_bytes(size_t bytes);  // by cudaMalloc

// add(float* x, float y): x[i] += y for each thread of block 0.
const void* add_kernel();
// poke(char* x, long at): writes four bytes at x + at.
const void* poke_kernel();

// Values lie where parameters are looked for, and the call is cudaLaunchKernel.
template <class... T>
cudaError_t launch(const void* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, T... values) {
    void* arguments[] = {static_cast<void*>(&values)..., nullptr};
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

}  // namespace virtual_gpu::test
