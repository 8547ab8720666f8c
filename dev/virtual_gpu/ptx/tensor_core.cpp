// ldmatrix and mma.sync: PTX ISA, "Warp Level Matrix Instructions". Sums are FP32, one after the other, or, with
// VIRTUAL_GPU_ARITHMETIC, those of the named generation's tensor cores.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/arithmetic/fused_sum.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/address.h"
#include "dev/virtual_gpu/ptx/floats.h"
#include "dev/virtual_gpu/ptx/instructions.h"

namespace virtual_gpu {

namespace {

void transpose(uint32_t* words) {  // 8 x 8 elements of 16 bits
    uint16_t from[8][8], to[8][8];
    std::memcpy(from, words, sizeof from);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) to[j][i] = from[i][j];
    std::memcpy(words, to, sizeof to);
}

}  // namespace

void load_matrix(Warp& w, const Op& op) {
    constexpr uint32_t kRowBytes = 16;
    if (w.mask != w.alive && w.run_others_first()) return;
    w.need_all_lanes(op, "ldmatrix");
    const uint32_t providers = op.count == 4 ? kAllLanes : op.count == 2 ? 0xffffu : 0xffu;  // of the rows' addresses
    Addresses rows;
    w.mask = providers;
    resolve(w, op, kRowBytes, "ldmatrix", rows);
    note_read(w, op, rows, kRowBytes);
    for (uint32_t left = providers; left; left &= left - 1)
        if (const int i = first_lane(left); !all_written<kRowBytes>(rows.written[i]))
            fail_unwritten(w, op, i, rows, kRowBytes, "ldmatrix");
    w.mask = kAllLanes;
    uint32_t results[4][kLanes];
    for (int m = 0; m < op.count; m++) {
        // As they lie, a row's four words are those of four lanes.
        for (int r = 0; r < 8; r++) std::memcpy(&results[m][4 * r], rows.bytes[m * 8 + r], kRowBytes);
        if (op.mode) transpose(results[m]);
    }
    for (int m = 0; m < op.count; m++)
        std::memcpy(w.at<uint32_t>(op.at[static_cast<size_t>(m)]), results[m], sizeof results[m]);
}

namespace {

constexpr int kRows = 16, kColumns = 8;

template <Element E>
constexpr int kElements = E == Element::bf16 ? 2 : 4;  // of a register

template <Element E>
const float* fp8_numbers() {
    static const std::array<float, 256> table = [] {
        std::array<float, 256> numbers;
        for (int code = 0; code < 256; code++)
            numbers[static_cast<size_t>(code)] = E == Element::e4m3 ? float_of_e4m3(static_cast<uint8_t>(code))
                                                                    : float_of_e5m2(static_cast<uint8_t>(code));
        return numbers;
    }();
    return table.data();
}

// In the four lanes of a group a fragment's register has consecutive elements of one row; Stride leads to the next row.
template <Element E, int Stride>
void widen(const uint32_t* words, float* to) {
    constexpr int kWide = 4 * kElements<E>;
    const float* const numbers = E == Element::bf16 ? nullptr : fp8_numbers<E>();
    for (int group = 0; group < 8; group++)
        for (int e = 0; e < kWide; e++) {
            const uint32_t word = words[group * 4 + e / kElements<E>];
            if constexpr (E == Element::bf16)
                to[group * Stride + e] = std::bit_cast<float>(e % 2 ? word & 0xffff0000u : word << 16);
            else
                to[group * Stride + e] = numbers[word >> (8 * (e % 4)) & 255];
        }
}

// D = A B + C, 16 x K by K x 8: at 0 D, 4 A, 8 B, 10 C. K is 16 for 16-bit elements and 32 for 8-bit ones; the layout
// of the fragments is the same in both, by registers: lane 4 g + t has rows g and g + 8, columns t of each half.
template <Element EA, Element EB>
void mma(Warp& w, const Op& op) {
    constexpr int kHalf = 4 * kElements<EA>, K = 2 * kHalf;
    if (w.mask != w.alive && w.run_others_first()) return;
    w.need_all_lanes(op, "mma");
    alignas(64) float A[kRows][K], BT[kColumns][K], sum[kRows][kColumns];
    for (int r = 0; r < 4; r++) {
        const auto place = static_cast<size_t>(r);
        widen<EA, K>(w.at<const uint32_t>(op.at[4 + place]), &A[r % 2 * 8][r / 2 * kHalf]);
        if (r < 2) widen<EB, K>(w.at<const uint32_t>(op.at[8 + place]), &BT[0][r * kHalf]);
    }
    // Of C and D, two registers have eight rows: lane by lane two neighbours each.
    for (size_t half = 0; half < 2; half++) {
        const float *const c0 = w.at<const float>(op.at[10 + 2 * half]), *const c1 =
                                                                             w.at<const float>(op.at[11 + 2 * half]);
        float* const rows = sum[8 * half];
        for (int lane = 0; lane < kLanes; lane++) rows[2 * lane] = c0[lane], rows[2 * lane + 1] = c1[lane];
    }
    if (options().arithmetic == Arithmetic::fp32) {
        alignas(64) float B[K][kColumns];
        for (int k = 0; k < K; k++)
            for (int n = 0; n < kColumns; n++) B[k][n] = BT[n][k];
        for (int k = 0; k < K; k++)
            for (int m = 0; m < kRows; m++) {
                const float a = A[m][k];
#pragma GCC unroll 1  // unrolled it would not be vectorised
                for (int n = 0; n < kColumns; n++) sum[m][n] = std::fma(a, B[k][n], sum[m][n]);
            }
        for (float& x : std::span(&sum[0][0], size_t{kRows} * kColumns)) x = canonical(x);
    } else {
        const TensorCore core = tensor_core(options().arithmetic, operands_of(EA));
        const Exponents exponents{least_exponent(EA), least_exponent(EB)};
        for (int m = 0; m < kRows; m++)
            for (int n = 0; n < kColumns; n++) sum[m][n] = tensor_sum(A[m], BT[n], K, sum[m][n], core, exponents);
    }
    for (size_t half = 0; half < 2; half++) {
        float *const d0 = w.at<float>(op.at[2 * half]), *const d1 = w.at<float>(op.at[2 * half + 1]);
        const float* const rows = sum[8 * half];
        for (int lane = 0; lane < kLanes; lane++) d0[lane] = rows[2 * lane];
        for (int lane = 0; lane < kLanes; lane++) d1[lane] = rows[2 * lane + 1];
    }
}

}  // namespace

Execute find_mma(std::string_view opcode) {
    if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") return mma<Element::bf16, Element::bf16>;
    if (opcode == "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32") return mma<Element::e4m3, Element::e4m3>;
    if (opcode == "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32") return mma<Element::e4m3, Element::e5m2>;
    if (opcode == "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32") return mma<Element::e5m2, Element::e4m3>;
    if (opcode == "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32") return mma<Element::e5m2, Element::e5m2>;
    return nullptr;
}

}  // namespace virtual_gpu
