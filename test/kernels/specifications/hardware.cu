// Checks of a card's own instructions: casts of all values, copies within its memory, and a warp's matrix product with
// cp.async, ldmatrix and mma.
#include <random>

#include "llmc/device/kernel.cuh"
#include "llmc/device/mma.cuh"
#include "llmc/kernels/elementwise.h"
#include "llmc/kernels/quantize.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

// ---- casts: every BF16 number, and FP32 numbers at and next to every place where a code changes --------------------

constexpr int kSide = 256;  // all BF16 numbers as a matrix
constexpr size_t kBf16Values = 65536;

std::vector<bf16> all_bf16() {
    std::vector<bf16> values(kBf16Values);
    for (size_t i = 0; i < kBf16Values; i++) values[i].bits = static_cast<uint16_t>(i);
    return values;
}

// Every BF16 number, the tie above it, and the FP32 neighbours of the tie.
void narrowing(Trial& t) {
    std::vector<float> wide;
    for (uint32_t bits = 0; bits < kBf16Values; bits++)
        for (const uint32_t low : {0u, 0x7fffu, 0x8000u, 0x8001u}) wide.push_back(float_from_bits(bits << 16 | low));
    const auto inp = t.input(wide);
    bf16* out = t.result<bf16>("bf16", wide.size());
    t.run_twice([&] { cast(out, inp.data, wide.size(), t.stream()); });
    t.equal(out, [&](size_t i) { return reference::nearest_bf16(static_cast<double>(wide[i])); });
}

void widening(Trial& t) {
    const auto inp = t.input(all_bf16());
    float* out = t.result<float>("fp32", kBf16Values);
    t.run_twice([&] { cast(out, inp.data, kBf16Values, t.stream()); });
    t.equal(out, [](size_t i) { return float_from_bits(static_cast<uint32_t>(i) << 16); });
}

template <class F8>
void quantize_all_bf16(Trial& t) {
    const auto inp = t.input(all_bf16());
    for (const float scale : {1.0f, 1024.0f})
        t.nested([&](Trial& trial) {
            const QuantizedResults<F8> to(trial, kSide, kSide, scale);
            trial.run_twice([&] {
                quantize<F8>(to.target(), nullptr, nullptr, inp, nullptr, kSide, kSide, false,
                             QuantizePass::train_counted, t.stream());
            });
            to.compare(CodeRanges<F8>(Bounded::exactly(inp.values), scale), {QuantizePass::train_counted});
        });
}

// Codes' values, the ties between them, and the FP32 numbers next to both; NaN and infinity; the smallest numbers.
std::vector<float> edges_of_e4m3() {
    const std::vector<double>& table = reference::magnitudes<e4m3>();
    const float inf = static_cast<float>(HUGE_VAL);
    std::vector<float> edges = {std::nanf(""), inf, 1e-45f, 1e-38f, 3e38f, 448.0f, 464.0f, 480.0f, 512.0f};
    for (size_t code = 0; code < table.size(); code++)
        for (const double value : {table[code], (table[code] + (code > 0 ? table[code - 1] : 0.0)) / 2}) {
            const float edge = static_cast<float>(value);
            for (const float number : {edge, std::nextafterf(edge, inf), std::nextafterf(edge, 0.0f)})
                edges.push_back(number);
        }
    const size_t positive = edges.size();
    for (size_t i = 0; i < positive; i++) edges.push_back(-edges[i]);
    edges.resize((edges.size() + 255) / 256 * 256);
    return edges;
}

void quantize_edges(Trial& t) {
    const auto master = t.input(edges_of_e4m3());
    const int R = 16, C = static_cast<int>(master.values.size()) / R;
    const QuantizedResults<e4m3> to(t, R, C, 1.0f);
    t.run_twice([&] { quantize_weight(to.target(), master, R, C, QuantizePass::train_counted, t.stream()); });
    to.compare(CodeRanges<e4m3>(Bounded::exactly(master.values), 1.0f), {QuantizePass::train_counted});
}

template <class F8>
void dequantize_all(Trial& t) {
    std::vector<F8> codes;
    for (int code = 0; code < 256; code++) codes.push_back({static_cast<uint8_t>(code)});
    const auto inp = t.input(codes);
    bf16* out = t.result<bf16>("value of code", codes.size());
    t.run_twice([&] {
        dequantize<F8>(out, inp, nullptr, ScaleLayout::vectors, 1, static_cast<int>(codes.size()), t.stream());
    });
    t.equal(out,
            [](size_t code) { return reference::nearest_bf16(reference::value_of<F8>(static_cast<uint8_t>(code))); });
}

// ---- copies within the device's memory ------------------------------------------------------------------------------

constexpr size_t kCopied = 250'007;  // numbers; a prime

void copy(Trial& t) {
    std::vector<uint32_t> values(kCopied);
    for (size_t i = 0; i < kCopied; i++) values[i] = static_cast<uint32_t>(i) * 2'654'435'761u;  // all differ
    const auto inp = t.input(values);
    uint32_t* out = t.result<uint32_t>("copy", kCopied);
    t.run_twice([&] { copy_on_device(out, inp, kCopied * sizeof(uint32_t), t.stream()); });
    t.equal(out, values);
}

// ---- a warp's product, as attention computes its scores and its output: on small integers, whose sums are exact -----

constexpr int kRows = 16, kColumns = 64, kDepth = 64;
constexpr int kPitch = 64 + 8;  // elements from one row in shared memory to the next
constexpr int kValidRows = 11;  // rows of a; the rest is filled with zeros and never read
constexpr int kHalf = kDepth / 2;

// The place of element i (0 to 3) of a lane's C fragment (PTX ISA, "Matrix Fragments for mma.m16n8k16").
LLMC_HD int row_in_c(int lane, int i) { return lane / 4 + (i < 2 ? 0 : 8); }
LLMC_HD int column_in_c(int lane, int i) { return lane % 4 * 2 + i % 2; }

// Starts copying `count` columns from column `first` on of `rows` rows of 64 elements. Rows from valid_rows on become
// 0.
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
void warp_product(Trial& t) {
    const auto a = t.input(small_integers(kRows * kDepth, 1)), b = t.input(small_integers(kColumns * kDepth, 2));
    float* c = t.result<float>("c", {{"row", kRows}, {"column", kColumns}});
    t.run_twice([&] {
        launch<warp_product_kernel<Transposed>>({1, 32, 0, t.stream()}, out(c, kRows * kColumns),
                                                in(a.data, a.values.size()), in(b.data, b.values.size()));
    });
    t.within(c, [&](size_t i) {
        const size_t row = i / kColumns, column = i % kColumns;
        float sum = 0;
        for (size_t k = 0; k < kDepth && row < kValidRows; k++)
            sum += a.at(row * kDepth + k) * b.at(Transposed ? k * kColumns + column : column * kDepth + k);
        return std::pair{sum, 0.0};
    });
}

}  // namespace

void add_hardware(Items& items, const KernelUse& use) {
    const auto add = [&](const char* name, void (*check)(Trial&), const char* family = "casts") {
        add_kernel(items, name, check).family = family;
    };
    add("copy", copy, "memory");
    if (!use.bf16) return;
    add("cp.async, ldmatrix, mma m16n8k16", warp_product<false>, "tensor cores");
    add("cp.async, ldmatrix transposed, mma m16n8k16", warp_product<true>, "tensor cores");
    add("fp32 to bf16, all values and ties", narrowing);
    add("bf16 to fp32, all values", widening);
    if (!use.fp8) return;
    add("bf16 to e4m3, all values", quantize_all_bf16<e4m3>);
    add("fp32 to e4m3, edges", quantize_edges);
    add("e4m3 to bf16, all codes", dequantize_all<e4m3>);
    if (use.scaling != Fp8Scaling::tensor || use.e4m3_gradients) return;
    add("bf16 to e5m2, all values", quantize_all_bf16<e5m2>);
    add("e5m2 to bf16, all codes", dequantize_all<e5m2>);
}

}  // namespace llmc::check
