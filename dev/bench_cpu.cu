// Measures the host device: the cost of a launch, a GPU thread, a barrier or a warp collective, and the speed of
// kernels.
//
//   bench_cpu [TEXT]    runs the benchmarks whose name contains TEXT (default: all)
//
// "ns" is the time of one OS thread per element: wall time multiplied by the number of OS threads that share the work.
// build: optimized
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "llmc/device/kernel.cuh"

using namespace llmc;

namespace {

// ---- kernels that do one thing --------------------------------------------------------------------------------------

__global__ void empty_kernel(float*) {}

__global__ void scalar_kernel(float* y, const float* x, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = y[i] * 0.5f + x[i];
}
__global__ void vector_kernel(float* y, const float* x, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= n) return;
    float a[8], b[8];
    load8(y + i, a);
    load8(x + i, b);
    LLMC_UNROLL
    for (int k = 0; k < 8; k++) a[k] = a[k] * 0.5f + b[k];
    store8(y + i, a);
}
__global__ void shared_block_kernel(float* y, int n) {  // one barrier and 4 KB of shared memory
    LLMC_SHARED(float, tile, [1024]);
    tile[threadIdx.x] = 1;
    __syncthreads();
    if (n < 0) y[threadIdx.x] = tile[threadIdx.x ^ 1];
}
__global__ void barrier_kernel(float*, int repeats) {
    for (int i = 0; i < repeats; i++) __syncthreads();
}
__global__ void syncwarp_kernel(float*, int repeats) {
    for (int i = 0; i < repeats; i++) __syncwarp();
}
__global__ void shuffle_kernel(float* y, int repeats) {
    float value = static_cast<float>(threadIdx.x);
    for (int i = 0; i < repeats; i++) value = __shfl_xor_sync(~0u, value, 1 + (i & 15));
    if (value < 0) y[threadIdx.x] = value;
}
__global__ void warp_sum_kernel(float* y, int repeats) {
    float value = static_cast<float>(threadIdx.x);
    for (int i = 0; i < repeats; i++) value = warp_sum(value) * 0.03f;
    if (value < 0) y[threadIdx.x] = value;
}
__global__ void warp_sum4_kernel(float* y, int repeats) {
    float values[4] = {static_cast<float>(threadIdx.x), 1, 2, 3};
    for (int i = 0; i < repeats; i++) {
        warp_sum_each(values);
        LLMC_UNROLL
        for (int k = 0; k < 4; k++) values[k] *= 0.03f;
    }
    if (values[0] + values[1] + values[2] + values[3] < 0) y[threadIdx.x] = values[0];
}
template <int N>
__global__ void mma_kernel(float* y, int repeats) {
    const uint32_t one = pack_bf16x2(0.01f, 0.02f);
    uint32_t a[4] = {one, one, one, one}, b[N][2];
    float c[N][4] = {};
    for (int j = 0; j < N; j++) b[j][0] = b[j][1] = one;
    for (int i = 0; i < repeats; i++) mma_row(c, a, b);
    if (c[0][0] < 0) y[threadIdx.x] = c[N - 1][3];
}
template <int N>
__global__ void ldmatrix_kernel(float* y, int repeats) {
    LLMC_SHARED(bf16, tile, [16 * N * 16]);
    for (int i = static_cast<int>(threadIdx.x); i < 16 * N * 16; i += 32) tile[i] = bf16{0};
    __syncwarp();
    uint32_t b[2 * N][2], sum = 0;
    for (int i = 0; i < repeats; i++) {
        ldmatrix_tiles<false, 2 * N>(b, tile + threadIdx.x % 16 * 16, 16 * 16 * static_cast<int>(sizeof(bf16)));
        sum += b[0][0];
    }
    if (sum == 1) y[threadIdx.x] = 1;
}

// ---- the table ------------------------------------------------------------------------------------------------------

struct Benchmark {
    std::string name;
    const char* element;  // the thing that is counted
    double elements;      // per run
    std::function<void()> run;
    bool one_thread = false;  // true if OS threads do not share the work
};

// The benchmarks. Each is one call of add().
class Table {
public:
    explicit Table(const char* filter) : filter_(filter) {}
    void add(const Benchmark& benchmark) {
        if (benchmark.name.find(filter_) != std::string::npos) benchmarks_.push_back(benchmark);
    }
    void run() const {
        std::printf("%-44s %10s %16s\n", "", "ns", "per second");
        for (const Benchmark& b : benchmarks_) {
            const double seconds = best_time(b.run);
            const double threads = b.one_thread ? 1 : device_info().multiprocessors;
            std::printf("%-44s %10.2f %16.4g %s\n", b.name.c_str(), seconds * threads / b.elements * 1e9,
                        b.elements / seconds, b.element);
        }
    }

private:
    static double best_time(const std::function<void()>& run) {
        double best = 1e30, total = 0;
        for (int i = 0; i < 1000 && (i < 3 || total < 0.5); i++) {
            const auto start = std::chrono::steady_clock::now();
            run();
            synchronize_device();
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            best = std::min(best, seconds);
            total += seconds;
        }
        return best;
    }
    std::string filter_;
    std::vector<Benchmark> benchmarks_;
};

// Two buffers that all benchmarks use.
struct Buffers {
    static constexpr int n = 1 << 20;
    stream_t stream = create_stream();
    float* x = static_cast<float*>(device_malloc(n * sizeof(float)));
    float* y = static_cast<float*>(device_malloc(n * sizeof(float)));
    Buffers() {
        set_bytes(x, 0, n * sizeof(float), stream);
        set_bytes(y, 0, n * sizeof(float), stream);
    }
};

// ---- costs of the host device itself --------------------------------------------------------------------------------

void add_launches(Table& table, const Buffers& buffers) {
    float* y = buffers.y;
    const stream_t stream = buffers.stream;
    const auto many_launches = [=](unsigned blocks) {
        for (int i = 0; i < 1000; i++) launch<empty_kernel>({blocks, 32, 0, stream}, {out(y, 1)}, y);
    };
    table.add({"launch of 1 block of 32", "launches", 1e3, [=] { many_launches(1); }, true});
    table.add({"launch of 2 blocks of 32 (forks OS threads)", "launches", 1e3, [=] { many_launches(2); }, true});
    for (const unsigned block : {32u, 256u, 1024u})
        table.add({fmt::format("empty thread, block of {}", block), "threads", 2e3 * block, [=] {
                       launch<empty_kernel>({2000, block, 0, stream}, {out(y, 1)}, y);
                   }});
    for (const unsigned block : {32u, 256u, 1024u})
        table.add({fmt::format("thread with a barrier and shared memory, {}", block), "threads", 2e3 * block, [=] {
                       launch<shared_block_kernel>({2000, block, 0, stream}, {out(y, 1024)}, y, 1);
                   }});
}

void add_elementwise(Table& table, const Buffers& buffers) {
    const Buffers b = buffers;
    constexpr int n = Buffers::n;
    table.add({"elementwise, 1 float a thread", "floats", n, [=] {
                   launch<scalar_kernel>({n / 256, 256, 0, b.stream}, {inout(b.y, n), in(b.x, n)}, b.y, b.x, n);
               }});
    table.add({"elementwise, 8 floats a thread", "floats", n, [=] {
                   launch<vector_kernel>({n / 2048, 256, 0, b.stream}, {inout(b.y, n), in(b.x, n)}, b.y, b.x, n);
               }});
}

// Adds a kernel in which every thread of 8 blocks calls one collective `repeats` times.
template <auto kernel>
void add_collective(Table& table, const Buffers& buffers, const char* name, unsigned block, const char* element,
                    double elements_a_warp) {
    float* y = buffers.y;
    const stream_t stream = buffers.stream;
    const int repeats = static_cast<int>(32000 / block);
    table.add(
        {fmt::format("{}, block of {}", name, block), element, 8.0 * repeats * (block / 32) * elements_a_warp, [=] {
             launch<kernel>({8, block, 0, stream}, {out(y, 1024)}, y, repeats);
         }});
}

void add_collectives(Table& table, const Buffers& buffers) {
    for (const unsigned block : {32u, 128u, 256u, 1024u})
        add_collective<barrier_kernel>(table, buffers, "__syncthreads", block, "threads", 32);
    for (const unsigned block : {32u, 256u}) {
        add_collective<syncwarp_kernel>(table, buffers, "__syncwarp", block, "lanes", 32);
        add_collective<shuffle_kernel>(table, buffers, "shuffle", block, "lanes", 32);
        add_collective<warp_sum_kernel>(table, buffers, "warp_sum", block, "lanes", 32);
        add_collective<warp_sum4_kernel>(table, buffers, "warp_sum_each of 4", block, "lanes", 32);
    }
    add_collective<mma_kernel<1>>(table, buffers, "mma_row of 1 tile", 128, "warps", 1);
    add_collective<mma_kernel<8>>(table, buffers, "mma_row of 8 tiles", 128, "warps", 1);
    add_collective<mma_kernel<8>>(table, buffers, "mma_row of 8 tiles, in FLOP", 128, "FLOP", 8 * 2.0 * 16 * 16 * 8);
    add_collective<ldmatrix_kernel<1>>(table, buffers, "ldmatrix_x4", 32, "warps", 1);
    add_collective<ldmatrix_kernel<4>>(table, buffers, "ldmatrix_tiles of 8", 32, "warps", 1);
}

}  // namespace

int main(int argc, char** argv) {
    open_device(0);
    std::printf("%s\n", device_info().name.c_str());
    const Buffers buffers;
    Table table(argc > 1 ? argv[1] : "");
    add_launches(table, buffers);
    add_elementwise(table, buffers);
    add_collectives(table, buffers);
    table.run();
}
