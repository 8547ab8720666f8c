// Tensor-core wrappers against FP64 and against the layouts in the PTX ISA ("Matrix Fragments for mma.m16n8k16",
// "ldmatrix"), written down here a second time. Matrices are asymmetric, so any transposition shows. Most hold small
// integers, so sums are exact on both devices.
#include "llmc/device/mma.cuh"

#include <cmath>
#include <random>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The row and column in its tile of element i (0 to 7 of A, 0 to 3 of B and C) of a lane's fragment.
struct Position {
    int row, column;
};
LLMC_HD Position position_in_a(int lane, int i) {
    const int group = lane >> 2, in_group = lane % 4;
    const bool upper = i < 2 || (i >= 4 && i < 6);
    return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
LLMC_HD Position position_in_b(int lane, int i) { return {(lane % 4) * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2}; }
LLMC_HD Position position_in_c(int lane, int i) { return {(lane >> 2) + (i < 2 ? 0 : 8), (lane % 4) * 2 + (i & 1)}; }

LLMC_HD uint32_t pack(bf16 low, bf16 high) {
    return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
}

// c (16 x 8N) += a (16 x 16) * b (16 x 8N), each row-major, with one set of matrices per warp.
template <int N, bool one_by_one>
__global__ void mma_kernel(float* c, const bf16* a, const bf16* b) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    a += warp * 16 * 16;
    b += warp * 16 * 8 * N;
    c += warp * 16 * 8 * N;
    uint32_t a_fragment[4], b_fragment[N][2];
    float c_fragment[N][4];
    const auto a_at = [&](int i) { return a[position_in_a(lane, i).row * 16 + position_in_a(lane, i).column]; };
    LLMC_UNROLL
    for (int i = 0; i < 4; i++) a_fragment[i] = pack(a_at(2 * i), a_at(2 * i + 1));
    LLMC_UNROLL
    for (int j = 0; j < N; j++) {
        const auto b_at = [&](int i) {
            return b[position_in_b(lane, i).row * 8 * N + j * 8 + position_in_b(lane, i).column];
        };
        LLMC_UNROLL
        for (int i = 0; i < 2; i++) b_fragment[j][i] = pack(b_at(2 * i), b_at(2 * i + 1));
        LLMC_UNROLL
        for (int i = 0; i < 4; i++) {
            const Position p = position_in_c(lane, i);
            c_fragment[j][i] = c[p.row * 8 * N + j * 8 + p.column];
        }
    }
    if constexpr (one_by_one) {
        LLMC_UNROLL
        for (int j = 0; j < N; j++) mma_m16n8k16(c_fragment[j], a_fragment, b_fragment[j]);
    } else {
        mma_row(c_fragment, a_fragment, b_fragment);
    }
    LLMC_UNROLL
    for (int j = 0; j < N; j++) {
        LLMC_UNROLL
        for (int i = 0; i < 4; i++) {
            const Position p = position_in_c(lane, i);
            c[p.row * 8 * N + j * 8 + p.column] = c_fragment[j][i];
        }
    }
}

std::vector<bf16> random_integers(size_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<bf16> values(count);
    for (bf16& v : values) v = to_bf16(static_cast<float>(static_cast<int>(engine() % 17) - 8));
    return values;
}

// The largest error relative to (sum of |a b| + |c|), over all warps; infinite if anything is NaN.
template <int N, bool one_by_one>
double mma_error(const std::vector<bf16>& a, const std::vector<bf16>& b, int warps) {
    std::vector<float> c(static_cast<size_t>(warps * 16 * 8 * N));
    for (size_t i = 0; i < c.size(); i++) c[i] = static_cast<float>(i % 23) - 11;
    DeviceArray<bf16> a_device(a), b_device(b);
    DeviceArray<float> c_device(c);
    launch<mma_kernel<N, one_by_one>>({1, static_cast<unsigned>(warps * 32), 0, test_stream()}, inout(c_device),
                                      in(a_device), in(b_device));
    const std::vector<float> actual = c_device.download();
    double worst = 0;
    for (int w = 0; w < warps; w++)
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 8 * N; column++) {
                const size_t at = static_cast<size_t>((w * 16 + row) * 8 * N + column);
                double sum = c[at], scale = std::fabs(sum);
                for (int k = 0; k < 16; k++) {
                    const double product =
                        static_cast<double>(to_float(a[static_cast<size_t>((w * 16 + row) * 16 + k)])) *
                        static_cast<double>(to_float(b[static_cast<size_t>((w * 16 + k) * 8 * N + column)]));
                    sum += product;
                    scale += std::fabs(product);
                }
                const double error = std::fabs(static_cast<double>(actual[at]) - sum) / (scale + 1e-30);
                if (!(error <= worst)) worst = error == error ? error : HUGE_VAL;
            }
    return worst;
}

template <int N>
void check_mma() {
    CAPTURE(N);
    constexpr int kWarps = 3;
    const size_t a_size = kWarps * 16 * 16, b_size = kWarps * 16 * 8 * N;
    CHECK(mma_error<N, false>(random_integers(a_size, 1), random_integers(b_size, 2), kWarps) == 0);
    CHECK(mma_error<N, true>(random_integers(a_size, 3), random_integers(b_size, 4), kWarps) == 0);
    // Real numbers: products are exact in FP32 and 16 additions round (tensor cores truncate, which costs a little
    // more).
    CHECK(mma_error<N, false>(random_normal<bf16>(a_size, 1, 5), random_normal<bf16>(b_size, 1, 6), kWarps) < 2e-6);
}

}  // namespace

TEST_CASE("mma: products of fragments in the PTX layout") {
    check_mma<1>();
    check_mma<2>();
    check_mma<4>();
    check_mma<8>();
}

TEST_CASE("mma: NaN and infinity reach the right elements") {
    std::vector<bf16> a(256, to_bf16(1)), b(128, to_bf16(2));
    a[5 * 16 + 3] = bf16{0x7fc0};
    a[9 * 16 + 1] = bf16{0x7f80};
    DeviceArray<bf16> a_device(a), b_device(b);
    DeviceArray<float> c_device(std::vector<float>(128, 0.5f));
    launch<mma_kernel<1, false>>({1, 32, 0, test_stream()}, inout(c_device), in(a_device), in(b_device));
    const std::vector<float> c = c_device.download();
    int wrong = 0;
    for (size_t i = 0; i < 128; i++) {
        if (i / 8 == 5)
            wrong += c[i] == c[i];
        else if (i / 8 == 9)
            wrong += !std::isinf(c[i]);
        else
            wrong += c[i] != 32.5f;
    }
    CHECK(wrong == 0);
}

// ---- ldmatrix -------------------------------------------------------------------------------------------------------

namespace {

constexpr int kStride = 24;  // elements from row to row: 48 bytes, so rows are aligned and not contiguous

// Lane l gives the address of row (7 * l) % 32 of a tile of 32 rows of 8, so the addresses are not a simple sequence.
LLMC_HD int row_of_lane(int lane) { return 7 * lane % 32; }

template <bool Transposed>
__global__ void ldmatrix_kernel(uint32_t* out) {
    LLMC_SHARED(uint16_t, tile, [32 * kStride]);
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = lane; i < 32 * kStride; i += 32) tile[i] = static_cast<uint16_t>(i);
    __syncwarp();
    uint32_t r[4];
    ldmatrix_x4<Transposed>(r, tile + row_of_lane(lane) * kStride);
    LLMC_UNROLL
    for (int m = 0; m < 4; m++) out[lane * 4 + m] = r[m];
}

template <bool Transposed>
int wrong_ldmatrix() {
    DeviceArray<uint32_t> out_array(128);
    launch<ldmatrix_kernel<Transposed>>({1, 32, 0, test_stream()}, out(out_array));
    const std::vector<uint32_t> actual = out_array.download();
    int wrong = 0;
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++)
            for (int half = 0; half < 2; half++) {
                // Lane 4i + j receives elements 2j and 2j + 1 of row i, or of column i with .trans.
                const int outer = lane / 4, inner = lane % 4 * 2 + half;
                const int row = Transposed ? inner : outer, column = Transposed ? outer : inner;
                const int expected = row_of_lane(m * 8 + row) * kStride + column;
                wrong += (actual[static_cast<size_t>(lane * 4 + m)] >> 16 * half & 0xffff) !=
                         static_cast<uint32_t>(expected);
            }
    return wrong;
}

// A warp's product using ldmatrix: c (16 x 8N) = a (16 x K) * b. Here b is (8N x K) row-major or, loaded transposed, (K
// x 8N) row-major: the two forms that attention needs.
template <int N, bool b_is_k_by_n>
__global__ void warp_product_kernel(float* c, const bf16* a, const bf16* b, int K) {
    constexpr int kMaxK = 64, kPad = 8, kColumns = 8 * N;
    constexpr int kAStride = kMaxK + kPad, kBStride = (b_is_k_by_n ? kColumns : kMaxK) + kPad;
    LLMC_SHARED(bf16, a_tile, [16 * kAStride]);
    LLMC_SHARED(bf16, b_tile, [(b_is_k_by_n ? kMaxK : kColumns) * kBStride]);
    const int lane = static_cast<int>(threadIdx.x);
    const int b_columns = b_is_k_by_n ? kColumns : K;
    for (int i = lane; i < 16 * K; i += 32) a_tile[i / K * kAStride + i % K] = a[i];
    for (int i = lane; i < K * kColumns; i += 32) b_tile[i / b_columns * kBStride + i % b_columns] = b[i];
    __syncwarp();
    float sums[N][4] = {};
    for (int k = 0; k < K; k += 16) {
        uint32_t a_fragment[4], b_fragment[N][2];
        ldmatrix_x4<false>(a_fragment, a_tile + lane % 16 * kAStride + k + lane / 16 * 8);
        if constexpr (b_is_k_by_n) {
            // Two 8 x 8 blocks along k, two along n: b_fragment[j][h] is k + 8h, column tile j.
            ldmatrix_tiles<true, N>(b_fragment, b_tile + (k + lane % 16) * kBStride + lane / 16 * 8, 16 * sizeof(bf16));
        } else {
            ldmatrix_tiles<false, N>(b_fragment, b_tile + (lane % 8 + lane / 16 * 8) * kBStride + k + lane / 8 % 2 * 8,
                                     16 * kBStride * static_cast<int>(sizeof(bf16)));
        }
        mma_row(sums, a_fragment, b_fragment);
    }
    LLMC_UNROLL
    for (int j = 0; j < N; j++) {
        LLMC_UNROLL
        for (int i = 0; i < 4; i++) {
            const Position p = position_in_c(lane, i);
            c[p.row * kColumns + j * 8 + p.column] = sums[j][i];
        }
    }
}

template <int N, bool b_is_k_by_n>
int wrong_products(int K, uint32_t seed) {
    constexpr int kColumns = 8 * N;
    const size_t k_size = static_cast<size_t>(K);
    const std::vector<bf16> a = random_integers(16 * k_size, seed), b = random_integers(kColumns * k_size, seed + 1);
    DeviceArray<bf16> a_device(a), b_device(b);
    DeviceArray<float> c_device(16 * kColumns);
    launch<warp_product_kernel<N, b_is_k_by_n>>({1, 32, 0, test_stream()}, out(c_device), in(a_device), in(b_device),
                                                K);
    const std::vector<float> actual = c_device.download();
    int wrong = 0;
    for (size_t row = 0; row < 16; row++)
        for (size_t column = 0; column < kColumns; column++) {
            double sum = 0;
            for (size_t k = 0; k < k_size; k++)
                sum += static_cast<double>(to_float(a[row * k_size + k])) *
                       static_cast<double>(to_float(b[b_is_k_by_n ? k * kColumns + column : column * k_size + k]));
            wrong += !(static_cast<double>(actual[row * kColumns + column]) == sum);
        }
    return wrong;
}

}  // namespace

TEST_CASE("ldmatrix: every lane receives the elements that the PTX ISA documents") {
    CHECK(wrong_ldmatrix<false>() == 0);
    CHECK(wrong_ldmatrix<true>() == 0);
}

TEST_CASE("ldmatrix: products of a warp with B in either orientation") {
    CHECK(wrong_products<4, false>(64, 10) == 0);
    CHECK(wrong_products<8, false>(48, 11) == 0);
    CHECK(wrong_products<2, false>(16, 12) == 0);
    CHECK(wrong_products<4, true>(64, 13) == 0);
    CHECK(wrong_products<8, true>(48, 14) == 0);
    CHECK(wrong_products<2, true>(16, 15) == 0);
}
