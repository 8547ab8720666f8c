// Multiplies small FP32 matrices that fit into the cache, for attention: C (M, N) = A (M, K) B (K, N), or += with
// `add`.
//
// B and C are row-major, and N is a multiple of the lanes. Element (m, k) of A lies at m * row + k * step, so A may be
// transposed. Sums run over k in order, starting with C's old value or with 0.
#pragma once
#include "llmc/kernels/host/vectors.h"

namespace llmc::host {

struct Left {
    const float* values;
    size_t row, step;
};
struct Matrix {
    float* values;
    size_t stride;
};

// kExact says that every product of two elements is exact in FP32, which holds for BF16 values.
template <bool kExact>
LLMC_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
    return kExact ? add_exact_product(a, b, sum) : sum + a * b;
}

template <bool kExact, int Rows, int Vectors>
LLMC_INLINE void product_tile(const Matrix& c, const Left& a, const Matrix& b, int K, bool add) {
    Floats sum[Rows][Vectors];
    for (int r = 0; r < Rows; r++)
        for (int v = 0; v < Vectors; v++) sum[r][v] = add ? load(c.values + r * c.stride + v * kLanes) : Floats{};
    for (int k = 0; k < K; k++) {
        Floats line[Vectors];
        for (int v = 0; v < Vectors; v++) line[v] = load(b.values + k * b.stride + v * kLanes);
        for (int r = 0; r < Rows; r++) {
            const Floats factor = splat(a.values[r * a.row + k * a.step]);
            for (int v = 0; v < Vectors; v++) sum[r][v] = multiply_add<kExact>(factor, line[v], sum[r][v]);
        }
    }
    for (int r = 0; r < Rows; r++)
        for (int v = 0; v < Vectors; v++) store(c.values + r * c.stride + v * kLanes, sum[r][v]);
}

template <bool kExact, int Vectors>
void product_panel(const Matrix& c, const Left& a, const Matrix& b, int M, int K, bool add) {
    int m = 0;
    const auto tile = [&]<int Rows>() {
        product_tile<kExact, Rows, Vectors>({c.values + m * c.stride, c.stride}, {a.values + m * a.row, a.row, a.step},
                                            b, K, add);
        m += Rows;
    };
    while (m + 6 <= M) tile.template operator()<6>();
    while (m + 2 <= M) tile.template operator()<2>();
    if (m < M) tile.template operator()<1>();
}

template <bool kExact>
void product(const Matrix& c, const Left& a, const Matrix& b, int M, int N, int K, bool add) {
    constexpr int kMost = kLanes == 16 ? 4 : 2;  // six rows of these sums fill most registers
    int n = 0;
    for (; n + kMost * kLanes <= N; n += kMost * kLanes)
        product_panel<kExact, kMost>({c.values + n, c.stride}, a, {b.values + n, b.stride}, M, K, add);
    for (; n < N; n += kLanes)
        product_panel<kExact, 1>({c.values + n, c.stride}, a, {b.values + n, b.stride}, M, K, add);
}

// C = A B, summed in the order of the FP32 attention kernels (attention_quads.cuh): each of the four lanes of a quad
// has eight sums over k = 32 i + 8 lane + e, which sum8() and quad_sum_each() add up. K is a multiple of 32.
inline void quad_product(const Matrix& c, const Left& a, const Matrix& b, int M, int N, int K) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n += kLanes) {
            Floats quarter[4];
            for (int lane = 0; lane < 4; lane++) {
                Floats sum[8] = {};
                for (int i = lane * 8; i < K; i += 32)
                    for (int e = 0; e < 8; e++)
                        sum[e] +=
                            splat(a.values[m * a.row + (i + e) * a.step]) * load(b.values + (i + e) * b.stride + n);
                quarter[lane] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
            }
            store(c.values + m * c.stride + n, (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]));
        }
}

// The same for two rows of K elements.
inline float quad_dot(const float* a, const float* b, int K) {
    float quarter[4];
    for (int lane = 0; lane < 4; lane++) {
        float sum[8] = {};
        for (int i = lane * 8; i < K; i += 32)
            for (int e = 0; e < 8; e++) sum[e] += a[i + e] * b[i + e];
        quarter[lane] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    }
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

}  // namespace llmc::host
