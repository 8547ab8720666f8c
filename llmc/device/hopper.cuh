// Hopper's own instructions (compute capability 9.0), in small wrappers by topic: mbarriers, TMA copies of tiles,
// registers per warpgroup, named barriers, wgmma with its descriptors, and stmatrix.
//
// Only nvcc sees this file; the host device has no counterpart, and the virtual GPU executes the PTX. Sources: PTX ISA
// 8.x, chapters "mbarrier", "cp.async.bulk.tensor" and "wgmma".
#pragma once
#include <cuda.h>

#include "llmc/device/kernel.cuh"

// True in the device pass for sm_90a. Other passes compile the kernels' bodies to nothing.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LLMC_HOPPER 1
#else
#define LLMC_HOPPER 0
#endif

namespace llmc::hopper {

// A tile is rows of 128 bytes (64 bf16), swizzled by TMA: the 16-byte piece p of row r lies at piece p ^ (r % 8). It
// starts at a multiple of 1024 bytes.
constexpr int kTileColumns = 64;
constexpr int kTileRowBytes = 128;
constexpr int kTileAlignment = 1024;

// Describes a bf16 tensor (batches, rows, columns), columns contiguous, for loads of one tile of `tile_rows` rows and
// 64 columns. Rows beyond the tensor arrive as zeros. Needs a base and a row length that are multiples of 16 bytes.
// Throws Error(failure) if the driver refuses. Host code.
CUtensorMap tensor_map(const bf16* base, int batches, int rows, size_t columns, int tile_rows);

#if LLMC_ON_GPU

LLMC_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- mbarrier ------------------------------------------------------------------------------------------------------

struct Barrier {
    uint64_t word;
};

// A phase of the barrier completes after `arrivals` arrivals and the bytes that were announced.
LLMC_DEVICE void init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to TMA. One thread calls it after init(); __syncthreads() follows.
LLMC_DEVICE void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
LLMC_DEVICE void arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives and announces bytes that TMA will deliver in this phase.
LLMC_DEVICE void arrive_and_expect(Barrier& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}
// Waits until the phase of this parity is complete. A new barrier counts as having completed parity 1.
LLMC_DEVICE void wait(Barrier& barrier, int parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@done bra through%=;\n\t"
        "bra again%=;\n"
        "through%=:\n\t}" ::"r"(shared_address(&barrier)),
        "r"(parity)
        : "memory");
}

// Position in a ring of `Stages` barriers: the stage, and the parity that a reader of its data waits for.
template <int Stages>
struct RingPosition {
    int stage = 0, parity = 0;
    LLMC_DEVICE void advance() {
        if (++stage < Stages) return;
        stage = 0;
        parity ^= 1;
    }
};

// ---- copies into shared memory -------------------------------------------------------------------------------------

// Starts the load of a tile whose first element is (batch, row, column); `full` counts its bytes. One thread calls it.
LLMC_DEVICE void load_tile(void* tile, const CUtensorMap& map, Barrier& full, int column, int row, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(tile)),
        "l"(&map), "r"(shared_address(&full)), "r"(column), "r"(row), "r"(batch)
        : "memory");
}

// Starts the store of a tile, of which no part may lie outside the tensor. One thread calls it, after all threads that
// wrote the tile have called fence_async_proxy() and met; the same thread then calls commit_stores().
LLMC_DEVICE void store_tile(const void* tile, const CUtensorMap& map, int column, int row, int batch) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                 "r"(shared_address(tile)), "r"(column), "r"(row), "r"(batch)
                 : "memory");
}
LLMC_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until this thread's committed stores have read their tiles.
LLMC_DEVICE void wait_until_stores_have_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Orders this thread's writes to shared memory before later reads by wgmma or TMA (the "async proxy").
LLMC_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- warpgroups ----------------------------------------------------------------------------------------------------

// Moves registers between warpgroups: the sum over a block must not exceed what the launch gave.
template <int Registers>
LLMC_DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
LLMC_DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// A barrier for some of a block's warps; ids 1 to 15 (0 is __syncthreads()).
template <int Id, int Threads>
LLMC_DEVICE void named_barrier() {
    asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

// The same with an id that is only known at run time. A warp that calls arrive_at_barrier() does not wait.
LLMC_DEVICE void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
LLMC_DEVICE void arrive_at_barrier(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A barrier for the four warps of a warpgroup: the first has id 1.
LLMC_DEVICE void warpgroup_barrier(int warpgroup) { asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory"); }

// The thread's place in its warpgroup. The compiler does not keep what follows from it in registers through a loop.
LLMC_DEVICE int thread_of_warpgroup() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128;
}

// A value that is the same in all lanes, as the compiler cannot see: it then keeps branches on it uniform.
LLMC_DEVICE int same_in_warp(int value) { return __shfl_sync(~0u, value, 0); }

// ---- wgmma ---------------------------------------------------------------------------------------------------------
//
// A warpgroup multiplies 64 rows at once: d (64, N) += a (64, 16) * b (16, N), bf16 with FP32 sums. Thread t holds of d
// rows 16 (t / 32) + (t % 32) / 4 and 8 below it, in the order of mma.sync's accumulators: d[4 j + i] is row 8 (i / 2),
// column 8 j + 2 (t % 4) + i % 2. The order of calls is
//
//     fence_accumulators(d); begin_products(); multiply_...(d, ...); commit_products(); wait_for_products<0>();
//     fence_accumulators(d);
//
// Between the two fences the registers of d, and of an `a` in registers, belong to the tensor cores.

// The descriptor of a tile: 128-byte swizzle, 1024 bytes from eight rows to the next. Sixteen columns further is + 2,
// eight rows further + 64 (both in units of 16 bytes).
LLMC_DEVICE uint64_t tile_descriptor(const void* tile) {
    return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) | uint64_t{1} << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | uint64_t{1} << 62;
}
// The same for panels of 64 columns, `bytes` apart, of which a product sums over the rows.
LLMC_DEVICE uint64_t panels_descriptor(const void* panels, int bytes) {
    return tile_descriptor(panels) + (static_cast<uint64_t>(bytes >> 4) - 1 << 16);
}
constexpr int kSixteenColumns = 16 * 2 >> 4;
constexpr int kSixteenRows = 16 * kTileRowBytes >> 4;

// Keeps the compiler from moving uses of d across this point, and orders its registers before the next wgmma.
template <int N>
LLMC_DEVICE void fence_accumulators(float (&d)[N]) {
    LLMC_UNROLL
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
LLMC_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LLMC_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `Pending` committed groups are unfinished.
template <int Pending>
LLMC_DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Operands of the assembler, eight accumulators at a time.
#define LLMC_D8(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define LLMC_D32(i) LLMC_D8(i), LLMC_D8(i + 8), LLMC_D8(i + 16), LLMC_D8(i + 24)
#define LLMC_D64 LLMC_D32(0), LLMC_D32(32)
#define LLMC_D128 LLMC_D64, LLMC_D32(64), LLMC_D32(96)
#define LLMC_NAMES_32                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMC_NAMES_64                                                                                             \
    LLMC_NAMES_32                                                                                                 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLMC_NAMES_128                                                                             \
    LLMC_NAMES_64                                                                                  \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = or += a b. INSTRUCTION is "mNxKy" and the types; the operands A, B and ACCUMULATE have the numbers after d's.
// `accumulate` false: the old d is not read.
#define LLMC_MULTIPLY(INSTRUCTION, NAMES, A, B, ACCUMULATE, MODIFIERS, ...)                      \
    asm volatile("{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, %" ACCUMULATE           \
                 ", 0;\n\twgmma.mma_async.sync.aligned." INSTRUCTION " {" NAMES "}, %" A ", %" B \
                 ", accumulate, " MODIFIERS ";\n\t}"                                             \
                 : __VA_ARGS__                                                                   \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))

// d (64, N) = or += a b^T: a is 64 rows of a tile, b N rows of one, both 16 columns wide.
LLMC_DEVICE void multiply_rows(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    LLMC_MULTIPLY("m64n64k16.f32.bf16.bf16", LLMC_NAMES_32, "32", "33", "34", "1, 1, 0, 0", LLMC_D32(0));
}
LLMC_DEVICE void multiply_rows(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
    LLMC_MULTIPLY("m64n128k16.f32.bf16.bf16", LLMC_NAMES_64, "64", "65", "66", "1, 1, 0, 0", LLMC_D64);
}
LLMC_DEVICE void multiply_rows(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
    LLMC_MULTIPLY("m64n256k16.f32.bf16.bf16", LLMC_NAMES_128, "128", "129", "130", "1, 1, 0, 0", LLMC_D128);
}
// d (64, 256) = or += a b, with 16 rows of four panels for b.
LLMC_DEVICE void multiply_columns(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
    LLMC_MULTIPLY("m64n256k16.f32.bf16.bf16", LLMC_NAMES_128, "128", "129", "130", "1, 1, 0, 1", LLMC_D128);
}
// d (64, 64) += a b: a (64, 16) in registers, as fragments of mma.sync; b is 16 rows of a tile of 64 columns.
LLMC_DEVICE void multiply_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LLMC_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : LLMC_D32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d (64, N) = or += a b^T on FP8 codes: 64 rows of a tile of F8, N rows of one of E4M3, both 32 codes wide. These are
// as many bytes as sixteen columns of BF16.
template <class F8>
LLMC_DEVICE void multiply_codes(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
    if constexpr (std::is_same_v<F8, e5m2>)
        LLMC_MULTIPLY("m64n128k32.f32.e5m2.e4m3", LLMC_NAMES_64, "64", "65", "66", "1, 1", LLMC_D64);
    else
        LLMC_MULTIPLY("m64n128k32.f32.e4m3.e4m3", LLMC_NAMES_64, "64", "65", "66", "1, 1", LLMC_D64);
}
template <class F8>
LLMC_DEVICE void multiply_codes(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
    if constexpr (std::is_same_v<F8, e5m2>)
        LLMC_MULTIPLY("m64n256k32.f32.e5m2.e4m3", LLMC_NAMES_128, "128", "129", "130", "1, 1", LLMC_D128);
    else
        LLMC_MULTIPLY("m64n256k32.f32.e4m3.e4m3", LLMC_NAMES_128, "128", "129", "130", "1, 1", LLMC_D128);
}

// ---- matrices of 8 x 8 16-bit elements -----------------------------------------------------------------------------

// Stores four matrices, and loads them transposed. Lane l passes where row l % 8 of matrix l / 8 lies: its
// shared_address(), because 32 bits take half the registers of a pointer.
LLMC_DEVICE void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
LLMC_DEVICE void load_transposed_matrices(uint32_t row, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

#undef LLMC_D8
#undef LLMC_MULTIPLY
#undef LLMC_D32
#undef LLMC_D64
#undef LLMC_D128
#undef LLMC_NAMES_32
#undef LLMC_NAMES_64
#undef LLMC_NAMES_128

#endif  // LLMC_ON_GPU

}  // namespace llmc::hopper
