// Warp-level matrix multiply on tensor cores (sm_80 and later): mma.sync m16n8k16 on bf16 with FP32 accumulation, and
// ldmatrix, which loads its operands from shared memory.
//
// Fragment layouts (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4 and t = lane % 4:
//   A (16 x 16)  a[0] = (g, 2t..2t+1)   a[1] = (g+8, 2t..)   a[2] = (g, 2t+8..)   a[3] = (g+8, 2t+8..)
//   B (16 x 8)   b[0] = (2t..2t+1, g)   b[1] = (2t+8.., g)
//   C (16 x 8)   c[0..1] = (g, 2t..2t+1)   c[2..3] = (g+8, 2t..2t+1)
// Two neighbouring C tiles, packed to bf16, form one A fragment.
//
// On the host the last of the 32 lanes to arrive decodes the fragments of all lanes, multiplies in FP32 and writes all
// results. The batch forms run several instructions in one rendezvous, because switching lanes costs as much as the
// arithmetic.
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

template <int N>
struct MmaArguments {
    float (*c)[4];
    const uint32_t* a;
    const uint32_t (*b)[2];
};

template <int N>
void mma_all_lanes(void** lanes) {
    float A[16][16], B[16][8 * N], C[16][8 * N];
    for (int l = 0; l < 32; l++) {
        const auto& lane = *static_cast<MmaArguments<N>*>(lanes[l]);
        const int g = l >> 2, t = (l & 3) * 2;
        for (int i = 0; i < 4; i++) {
            const int row = g + (i & 1) * 8, column = t + (i >> 1) * 8;
            A[row][column] = bf16x2_low(lane.a[i]);
            A[row][column + 1] = bf16x2_high(lane.a[i]);
        }
        for (int j = 0; j < N; j++) {
            for (int i = 0; i < 2; i++) {
                B[t + i * 8][j * 8 + g] = bf16x2_low(lane.b[j][i]);
                B[t + i * 8 + 1][j * 8 + g] = bf16x2_high(lane.b[j][i]);
            }
            C[g][j * 8 + t] = lane.c[j][0];
            C[g][j * 8 + t + 1] = lane.c[j][1];
            C[g + 8][j * 8 + t] = lane.c[j][2];
            C[g + 8][j * 8 + t + 1] = lane.c[j][3];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8 * N; column++) {  // vectorised over columns; each sum stays in a register
            float sum = C[row][column];
            for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][column];
            C[row][column] = sum;
        }
    for (int l = 0; l < 32; l++) {
        const auto& lane = *static_cast<MmaArguments<N>*>(lanes[l]);
        const int g = l >> 2, t = (l & 3) * 2;
        for (int j = 0; j < N; j++) {
            lane.c[j][0] = C[g][j * 8 + t];
            lane.c[j][1] = C[g][j * 8 + t + 1];
            lane.c[j][2] = C[g + 8][j * 8 + t];
            lane.c[j][3] = C[g + 8][j * 8 + t + 1];
        }
    }
}

// Each lane reads its own rows when it arrives, so the race detector sees the accesses. The last lane distributes.
template <int N>
struct LdmatrixArguments {
    uint32_t* r;
    uint16_t row[N][8];
};

template <bool Transposed, int N>
void ldmatrix_all_lanes(void** lanes) {
    for (int p = 0; p < N; p++)
        for (int m = 0; m < 4; m++) {
            const uint16_t* matrix[8];
            for (int i = 0; i < 8; i++) matrix[i] = static_cast<LdmatrixArguments<N>*>(lanes[m * 8 + i])->row[p];
            for (int l = 0; l < 32; l++) {
                const int i = l >> 2, j = (l & 3) * 2;
                const uint32_t low = Transposed ? matrix[j][i] : matrix[i][j];
                const uint32_t high = Transposed ? matrix[j + 1][i] : matrix[i][j + 1];
                static_cast<LdmatrixArguments<N>*>(lanes[l])->r[p * 4 + m] = low | high << 16;
            }
        }
}

template <bool Transposed, int N>
LLMC_DEVICE void ldmatrix(uint32_t* r, const void* row, int step, const char* file, int line) {
    LdmatrixArguments<N> mine;
    mine.r = r;
    if ((reinterpret_cast<uintptr_t>(row) | static_cast<uintptr_t>(step)) & 15)
        executor().fail("ldmatrix row address is not 16-byte aligned at %s:%d", file, line);
    for (int p = 0; p < N; p++) std::memcpy(mine.row[p], static_cast<const char*>(row) + p * step, 16);
    executor().collective(~0u, &mine, "ldmatrix", file, line,
                          [](void** lanes) { ldmatrix_all_lanes<Transposed, N>(lanes); });
}

}  // namespace host

template <int N>
LLMC_DEVICE void mma_row(float (&c)[N][4], const uint32_t (&a)[4], const uint32_t (&b)[N][2], LLMC_CALLER) {
    host::MmaArguments<N> mine{c, a, b};
    host::executor().collective(~0u, &mine, "mma.m16n8k16", file, line,
                                [](void** lanes) { host::mma_all_lanes<N>(lanes); });
}
LLMC_DEVICE void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LLMC_CALLER) {
    host::MmaArguments<1> mine{&c, a, &b};
    host::executor().collective(~0u, &mine, "mma.m16n8k16", file, line,
                                [](void** lanes) { host::mma_all_lanes<1>(lanes); });
}
template <bool Transposed>
LLMC_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row, LLMC_CALLER) {
    host::ldmatrix<Transposed, 1>(r, row, 0, file, line);
}
template <bool Transposed, int N>
LLMC_DEVICE void ldmatrix_tiles(uint32_t (&b)[N][2], const void* row, int step, LLMC_CALLER) {
    host::ldmatrix<Transposed, N / 2>(&b[0][0], row, step, file, line);
}

#endif

}  // namespace llmc
