// Kernels for tests of the runtime's calls: PTX in hand-made fat binaries, registered like nvcc's code does it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace virtual_gpu::test {

// A fat binary; images are added in order.
class FatBinary {
public:
    enum Flag : uint64_t { kPlain = 0, kCompressed = 0x8000, kArchitecture = 0x100000, kFamily = 0x200000 };
    FatBinary& ptx(int capability, const std::string& text, uint64_t flags = kPlain);
    FatBinary& cubin(int capability, const std::string& elf, uint64_t flags = kPlain);
    const void* data();  // valid until another image is added

private:
    FatBinary& add(uint16_t kind, int capability, std::string payload, uint64_t flags);
    std::string bytes_;
};

// An ELF file with ptxas's information about one kernel's registers.
std::string cubin_of(const std::string& kernel, int registers);

// The PTX of a module with one kernel, given its parameters and body.
std::string module_of(const std::string& name, const std::string& parameters, const std::string& body,
                      const std::string& directives = "");

// The host function address that stands for a kernel of the fat binary; every call makes a new one.
const void* register_kernel(FatBinary& binary, const std::string& name);
// The same for a module that runs on every card.
const void* register_kernel(const std::string& name, const std::string& parameters, const std::string& body,
                            const std::string& directives = "");

char* device_bytes(size_t bytes);  // from cudaMalloc

// add(float* x, float y): x[i] += y for each thread of block 0.
const void* add_kernel();
// poke(char* x, long at): writes four bytes at x + at.
const void* poke_kernel();

// Launches with cudaLaunchKernel and pointers to the values.
template <class... T>
cudaError_t launch(const void* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, T... values) {
    void* arguments[] = {static_cast<void*>(&values)..., nullptr};
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

}  // namespace virtual_gpu::test
