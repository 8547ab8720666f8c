// One warp's product by way of cp.async, ldmatrix and mma, as attention computes its scores and its output: on small
// integers, whose sums are exact in every order.
#include <random>

#include "llmc/check/families.h"
#include "llmc/check/trial.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/mma.cuh"

namespace llmc::check {
namespace {

constexpr int kRows = 16, kColumns = 64, kDepth = 64;
constexpr int kPitch = 64 + 8;  // elements from one row in shared memory to the next
constexpr int kValidRows = 11;  // of a: the rest is filled with zeros, and never read
constexpr int kHalf = kDepth / 2;

// Where element i (0 to 3) of a lane's C fragment lies (PTX ISA, "Matrix Fragments for mma.m16n8k16").
LLMC_HD int row_in_c(int lane, int i) { return lane / 4 + (i < 2 ? 0 : 8); }
LLMC_HD int column_in_c(int lane, int i) { return lane % 4 * 2 + i % 2; }

// Starts copying a half of `rows` rows of 64 elements (the left half, or with `lower` that of upper rows).
LLMC_DEVICE void copy_part(bf16* tile, const bf16* from, int first_row, int rows, int valid_rows, int first,
                           int count) {
    const int lane = static_cast<int>(threadIdx.x), pieces = count / 8;
    for (int i = lane; i < rows * pieces; i += 32) {
        const int row = first_row + i / pieces, column = first + i % pieces * 8;
        const bool valid = row < valid_rows;
        cp_async16(tile + row * kPitch + column, from + (valid ? row * 64 + column : 0), valid);
    }
}

// c (16 x 64) = a (16 x 64) * b, where b is (64 columns, 64 deep) or, loaded transposed, (64 deep, 64 columns). The
// second half in depth is on its way while the first is multiplied.
template <bool Transposed>
__global__ void warp_product_kernel(float* c, const bf16* a, const bf16* b) {
    LLMC_SHARED(bf16, a_tile, [kRows * kPitch]);
    LLMC_SHARED(bf16, b_tile, [64 * kPitch]);
    const int lane = static_cast<int>(threadIdx.x);
    for (int half = 0; half < 2; half++) {
        copy_part(a_tile, a, 0, kRows, kValidRows, half * kHalf, kHalf);
        if constexpr (Transposed)
            copy_part(b_tile, b, half * kHalf, kHalf, kDepth, 0, kColumns);
        else
            copy_part(b_tile, b, 0, kColumns, kColumns, half * kHalf, kHalf);
        cp_async_commit();
    }
    constexpr int kTiles = kColumns / 8;
    float sums[kTiles][4] = {};
    for (int k = 0; k < kDepth; k += 16) {
        if (k == 0) cp_async_wait<1>();
        if (k == kHalf) cp_async_wait<0>();
        __syncwarp();
        uint32_t a_fragment[4], b_fragment[kTiles][2];
        ldmatrix_x4<false>(a_fragment, a_tile + lane % 16 * kPitch + k + lane / 16 * 8);
        if constexpr (Transposed)
            ldmatrix_tiles<true, kTiles>(b_fragment, b_tile + (k + lane % 16) * kPitch + lane / 16 * 8,
                                         16 * static_cast<int>(sizeof(bf16)));
        else
            ldmatrix_tiles<false, kTiles>(b_fragment,
                                          b_tile + (lane % 8 + lane / 16 * 8) * kPitch + k + lane / 8 % 2 * 8,
                                          16 * kPitch * static_cast<int>(sizeof(bf16)));
        mma_row(sums, a_fragment, b_fragment);
    }
    LLMC_UNROLL
    for (int j = 0; j < kTiles; j++) {
        LLMC_UNROLL
        for (int i = 0; i < 4; i++) c[row_in_c(lane, i) * kColumns + j * 8 + column_in_c(lane, i)] = sums[j][i];
    }
}

std::vector<bf16> small_integers(size_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<bf16> values(count);
    for (bf16& v : values) v = to_bf16(static_cast<float>(static_cast<int>(engine() % 17) - 8));
    return values;
}

template <bool Transposed>
std::string check_product(stream_t stream) {
    Trial trial(stream);
    const auto a = small_integers(kRows * kDepth, 1), b = small_integers(kColumns * kDepth, 2);
    const bf16 *device_a = trial.input(a), *device_b = trial.input(b);
    float* c = trial.result<float>("c", {{"row", kRows}, {"column", kColumns}});
    trial.run_twice([&] {
        launch<warp_product_kernel<Transposed>>({1, 32, 0, stream}, out(c, kRows * kColumns), in(device_a, a.size()),
                                                in(device_b, b.size()));
    });
    Bounded expected(kRows * kColumns);
    for (size_t row = 0; row < kValidRows; row++)
        for (size_t column = 0; column < kColumns; column++)
            for (size_t k = 0; k < kDepth; k++)
                expected.values[row * kColumns + column] +=
                    static_cast<double>(to_float(a[row * kDepth + k])) *
                    static_cast<double>(to_float(b[Transposed ? k * kColumns + column : column * kDepth + k]));
    for (size_t row = kValidRows; row < kRows; row++)
        for (size_t column = 0; column < kColumns; column++) expected.values[row * kColumns + column] = 0;
    trial.within(c, expected);
    return trial.problem();
}

}  // namespace

void add_tensor_cores(Items& items, const KernelUse& use) {
    if (!use.bf16) return;
    items.push_back({"cp.async, ldmatrix, mma m16n8k16", "tensor cores", "", check_product<false>});
    items.push_back({"cp.async, ldmatrix transposed, mma m16n8k16", "tensor cores", "", check_product<true>});
}

}  // namespace llmc::check
