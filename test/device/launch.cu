// launch(): every thread of a grid runs once with its own indices; shared memory static and dynamic, small and large;
// the kernel's name.
#include "llmc/device/launch.cuh"

#include <string>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

__global__ void indices_kernel(unsigned* out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(out + block * threads + thread, 1 + threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z +
                                                  1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z);
}

// Two static arrays and the dynamic memory must not overlap. Reads come after all writes.
__global__ void shared_kernel(int* out, int words) {
    LLMC_SHARED(int, first, [64]);
    LLMC_SHARED(int, second, [2][64]);
    LLMC_DYNAMIC_SHARED(int, memory);
    const int t = static_cast<int>(threadIdx.x);
    first[t] = t;
    second[0][t] = 100 + t;
    second[1][t] = 200 + t;
    for (int i = t; i < words; i += 64) memory[i] = 1000 + i;
    __syncthreads();
    int wrong = first[63 - t] != 63 - t || second[0][63 - t] != 163 - t || second[1][63 - t] != 263 - t;
    for (int i = 63 - t; i < words; i += 64) wrong += memory[i] != 1000 + i;
    const size_t misaligned = reinterpret_cast<size_t>(memory) % 128 + reinterpret_cast<size_t>(second) % 16;
    out[blockIdx.x * 64 + threadIdx.x] = wrong + static_cast<int>(misaligned) * 1000;
}

// One static array reached by two calls of a function is the same array, as in CUDA.
LLMC_DEVICE int* shared_counter() {
    LLMC_SHARED(int, counter, [1]);
    return counter;
}
__global__ void one_array_kernel(int* out) {
    if (threadIdx.x == 0) shared_counter()[0] = 0;
    __syncthreads();
    atomicAdd(shared_counter(), 1);
    __syncthreads();
    if (threadIdx.x == 7) out[blockIdx.x] = shared_counter()[0];
}

template <class Real, int N>
__global__ void named_kernel(Real* out) {
    out[threadIdx.x] = to<Real>(static_cast<float>(N));
}

}  // namespace

TEST_CASE("launch: every thread of the grid runs once with its own indices") {
    for (const auto& [grid, block] :
         {std::pair(dim3(3, 4, 5), dim3(4, 2, 8)), std::pair(dim3(7), dim3(33)), std::pair(dim3(1), dim3(1))}) {
        const size_t threads = block.x * block.y * block.z, count = grid.x * grid.y * grid.z * threads;
        DeviceArray<unsigned> to(std::vector<unsigned>(count, 0));
        launch<indices_kernel>({grid, block, 0, test_stream()}, inout(to));
        const std::vector<unsigned> actual = to.download();
        size_t at = 0;
        int wrong = 0;
        for (unsigned bz = 0; bz < grid.z; bz++)
            for (unsigned by = 0; by < grid.y; by++)
                for (unsigned bx = 0; bx < grid.x; bx++)
                    for (unsigned z = 0; z < block.z; z++)
                        for (unsigned y = 0; y < block.y; y++)
                            for (unsigned x = 0; x < block.x; x++)
                                wrong +=
                                    actual[at++] != 1 + x + 10 * y + 100 * z + 1000 * bx + 10000 * by + 100000 * bz;
        CHECK(wrong == 0);
    }
}

TEST_CASE("launch: shared memory, static and dynamic, up to more than 48 KB") {
    DeviceArray<int> to(3 * 64);
    // With 768 bytes of static arrays: 48 KB in total with 12096 words, then more, though not in dynamic memory alone.
    // Every GPU since sm_80 can give 92 KB. A granted limit stays granted.
    for (const int words : {1, 5, 64, 1000, 12096, 12097, 12288, 23000, 16000, 23000}) {
        launch<shared_kernel>({3, 64, static_cast<size_t>(words) * 4, test_stream()}, out(to), words);
        CHECK(to.download() == std::vector<int>(3 * 64, 0));
    }
}

TEST_CASE("launch: more shared memory than the device has is refused by name") {
    const size_t limit = device_info().shared_memory_per_block, too_much = limit - 768 + 16;
    CHECK(limit >= (size_t{99} << 10));
    CHECK(limit == shared_memory_per_block());
    DeviceArray<int> to(3 * 64);
    const auto with = [&](size_t bytes) {
        return error_of([&] {
            launch<shared_kernel>({3, 64, bytes, test_stream()}, out(to), static_cast<int>(bytes / 4));
            synchronize(test_stream());
        });
    };
    CHECK(with(4) == "");
    const std::string message = with(too_much);
    CAPTURE(message);
    for (const std::string& part :
         {std::string("shared_kernel"), std::string("launch.cu:"), fmt::format("768 static + {} dynamic", too_much),
          fmt::format("gives a block {}", limit)})
        CHECK(contains(message, part));
    CHECK(with(too_much - 16) == "");
    CHECK(to.download() == std::vector<int>(3 * 64, 0));
}

TEST_CASE("launch: a static array is one array for all calls of its function") {
    DeviceArray<int> to(4);
    launch<one_array_kernel>({4, 96, 0, test_stream()}, out(to));
    CHECK(to.download() == std::vector<int>(4, 96));
}

TEST_CASE("launch: kernels have names") {
    const std::string name = kernel_name<named_kernel<bf16, 3>>();
    CAPTURE(name);
    CHECK(name.find("named_kernel<") != std::string::npos);
    CHECK(name.find("bf16") != std::string::npos);
    CHECK(name.find("3") != std::string::npos);
    CHECK(name.find("kernel = ") == std::string::npos);
    CHECK(std::string(kernel_name<one_array_kernel>()).find("one_array_kernel") != std::string::npos);
    DeviceArray<bf16> to(32);
    launch<named_kernel<bf16, 3>>({1, 32, 0, test_stream()}, out(to));
    CHECK(to_float(to.download()[31]) == 3);
}

namespace {

__global__ void doubled_kernel(float* out, const float* in, int n) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) out[i] = 2 * in[i];
}

}  // namespace

TEST_CASE("launch: a tensor argument is declared, a plain pointer is not") {
    constexpr int n = 100;
    DeviceArray<float> from(random_normal<float>(n, 1, 3)), to(n);
    const auto expected = [&] {
        std::vector<float> x = from.download();
        for (float& value : x) value *= 2;
        return x;
    }();
    launch<doubled_kernel>({1, 64, 0, test_stream()}, out(to.get(), n), in(from.get(), n), n);
    CHECK(to.download() == expected);
    launch<doubled_kernel>({1, 64, 0, test_stream()}, {out(to.get(), n), in(to.get(), n)}, to.get(), to.get(), n);
    CHECK(to.download()[0] == 2 * expected[0]);
#if !LLMC_CUDA
    const float* const plain = from.get();
    CHECK(error_of([&] {
              launch<doubled_kernel>({1, 64, 0, test_stream()}, out(to.get(), n), plain, n);
          }).find("is in no tensor that the launch declares") != std::string::npos);
#endif
    static_assert(!std::is_convertible_v<Tensor<const float>, float*>, "in() is not for what a kernel may write");
}
