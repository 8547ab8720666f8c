// Warp-level matrix multiply on tensor cores (sm_80 and later): mma.sync m16n8k16 on bf16 with FP32 accumulation, and
// ldmatrix, which loads its operands from shared memory.
//
// Fragment layouts (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4 and t = lane % 4:
//   A (16 x 16)  a[0] = (g, 2t..2t+1)   a[1] = (g+8, 2t..)   a[2] = (g, 2t+8..)   a[3] = (g+8, 2t+8..)
//   B (16 x 8)   b[0] = (2t..2t+1, g)   b[1] = (2t+8.., g)
//   C (16 x 8)   c[0..1] = (g, 2t..2t+1)   c[2..3] = (g+8, 2t..2t+1)
// Two neighbouring C tiles, packed to bf16, form one A fragment.
#pragma once
#include "llmc/device/async_copy.cuh"
#include "llmc/device/formats.cuh"

namespace llmc {

#if LLMC_ON_GPU

__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c[j] += a * b[j] for N column tiles of 8.
template <int N>
__device__ __forceinline__ void mma_row(float (&c)[N][4], const uint32_t (&a)[4], const uint32_t (&b)[N][2]) {
    LLMC_UNROLL
    for (int j = 0; j < N; j++) mma_m16n8k16(c[j], a, b[j]);
}

// Loads four 8x8 bf16 matrices. Lane l gives the address of row l % 8 of matrix l / 8: 16 bytes, 16-byte aligned.
// Register m of lane l receives elements (l/4, 2(l%4)) and the next one of matrix m, or of its transpose.
template <bool Transposed>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    if constexpr (Transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
}

// Runs N/2 ldmatrix.x4, each `step` bytes after the previous one, and fills the B fragments of N column tiles.
template <bool Transposed, int N>
__device__ __forceinline__ void ldmatrix_tiles(uint32_t (&b)[N][2], const void* row, int step) {
    LLMC_UNROLL
    for (int p = 0; p < N / 2; p++) {
        uint32_t r[4];
        ldmatrix_x4<Transposed>(r, static_cast<const char*>(row) + p * step);
        b[2 * p][0] = r[0];
        b[2 * p][1] = r[1];
        b[2 * p + 1][0] = r[2];
        b[2 * p + 1][1] = r[3];
    }
}

#else

namespace host {
// Defined by the emulator of GPU threads: c[j] += a * b[j] for `tiles` column tiles, and `count` ldmatrix.x4, each
// `step` bytes after the previous one.
void mma(float (*c)[4], const uint32_t* a, const uint32_t (*b)[2], int tiles, const char* file, int line);
void ldmatrix(uint32_t* r, const void* row, int step, int count, bool transposed, const char* file, int line);
}  // namespace host

template <int N>
__forceinline__ void mma_row(float (&c)[N][4], const uint32_t (&a)[4], const uint32_t (&b)[N][2], LLMC_CALLER) {
    host::mma(c, a, b, N, file, line);
}
__forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LLMC_CALLER) {
    host::mma(&c, a, &b, 1, file, line);
}
template <bool Transposed>
__forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row, LLMC_CALLER) {
    host::ldmatrix(r, row, 0, 1, Transposed, file, line);
}
template <bool Transposed, int N>
__forceinline__ void ldmatrix_tiles(uint32_t (&b)[N][2], const void* row, int step, LLMC_CALLER) {
    host::ldmatrix(&b[0][0], row, step, N / 2, Transposed, file, line);
}

#endif

}  // namespace llmc
