// Biases and their gradients, element-wise sums, squares of gradients, and pieces of several ranks, in FP32, BF16 and
// FP8.
#include <set>

#include "llmc/check/families.h"
#include "llmc/check/reference_quantize.h"
#include "llmc/comm/rank_reduce.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"

namespace llmc::check {
namespace {

template <class Real>
void bias(Trial& t, int N, int C) {
    const auto before = t.random<Real>(size_t{1} * N * C, 3.0f);
    const auto bias = t.normal<Real>(static_cast<size_t>(C), 1.0f);
    Real* out = t.result("out", matrix(N, C), before);
    t.run_twice([&] { add_bias<Real>(out, bias, N, C, t.stream()); });
    std::vector<Real> expected(before.size());
    for (size_t i = 0; i < expected.size(); i++)
        expected[i] = reference::stored_sum(before[i], bias.values[i % static_cast<size_t>(C)]);
    t.equal(out, expected);
}

template <class Real>
void bias_gradients(Trial& t, int N, int C) {
    const auto dout = t.normal<Real>(size_t{1} * N * C, 1.0f, 0.5f);
    const auto before = t.random<float>(static_cast<size_t>(C), 10.0f);
    float *dbias = t.result<float>("dbias", line(C)), *accumulated = t.result("accumulated dbias", line(C), before),
          *scratch = t.scratch<float>(bias_gradient_scratch(N, C));
    t.run_twice([&] {
        bias_gradient<Real>(dbias, scratch, dout, N, C, false, t.stream());
        bias_gradient<Real>(accumulated, scratch, dout, N, C, true, t.stream());
    });
    std::vector<double> expected = reference::column_sums(reference::to_floats(dout.values), C);
    t.within(dbias, Bounded(expected, reference::kColumnSumError, 1.0 + 0.5 * N));
    for (size_t c = 0; c < expected.size(); c++) expected[c] += static_cast<double>(before[c]);
    t.within(accumulated, Bounded(expected, reference::kColumnSumError, 10.0 + 0.5 * N));
}

// Tensors one after the other in an array of partial sums.
void global_norm(Trial& t, const std::vector<size_t>& sizes) {
    size_t blocks = 0;
    for (const size_t n : sizes) blocks += global_norm_blocks(n);
    std::vector<Input<float>> grads;
    for (const size_t n : sizes) grads.push_back(t.normal<float>(n, 0.01f, 0.002f));
    double* partials = t.result<double>("partials", line(blocks));
    t.run_twice([&] {
        size_t offset = 0;
        for (const auto& grad : grads) {
            global_norm_partials(partials + offset, grad, grad.values.size(), t.stream());
            offset += global_norm_blocks(grad.values.size());
        }
    });
    const std::vector<double> parts = t.read(partials);
    auto part = parts.begin();
    for (const auto& grad : grads) {
        double sum = 0, expected = 0;
        for (size_t i = 0; i < global_norm_blocks(grad.values.size()); i++) sum += *part++;
        for (const double g : grad.doubles()) expected += g * g;
        // Eight squares are added in FP32, all positive: at most eight roundings of each.
        t.note(not_within({"sum of partials", {}}, {sum}, Bounded({expected}, 8 * reference::kUnit, 0)));
    }
}

template <class Real>
void sum(Trial& t, size_t n) {
    const auto a = t.normal<Real>(n, 1.0f), b = t.normal<Real>(n, 10.0f);
    Real *out = t.result<Real>("sum", line(n)), *over = t.result("sum in place", line(n), a.values);
    t.run_twice([&] {
        add<Real>(out, a, b, n, t.stream());
        add<Real>(over, over, b, n, t.stream());
    });
    std::vector<Real> expected(n);
    for (size_t i = 0; i < n; i++) expected[i] = reference::stored_sum(a.values[i], b.values[i]);
    t.equal(out, expected), t.equal(over, expected);
}

// ---- several ranks -------------------------------------------------------------------------------------------------

constexpr size_t kWorld = 3;
constexpr float kLossScale = 1024.0f;

template <class T>
void summed_pieces(Trial& t, size_t count) {
    const auto pieces = t.normal<T>(kWorld * count, 100.0f);
    std::vector<float> sums = t.random<float>(count, 100.0f);
    float* out = t.result<float>("sum", line(count), sums);
    t.run_twice([&] { sum_pieces<T>(out, pieces, kWorld, count, true, t.stream()); });
    for (size_t i = 0; i < kWorld * count; i++) sums[i % count] += to_float(pieces.values[i]);
    t.equal(out, sums);
}

void largest_piece(Trial& t) {
    const size_t count = 4099;
    const auto pieces = t.normal<float>(kWorld * count, 100.0f);
    float* out = t.result<float>("max", line(count));
    t.run_twice([&] { reduce_pieces<float>(out, pieces, kWorld, count, ReduceOp::max, t.stream()); });
    std::vector<float> largest(count, -INFINITY);
    for (size_t i = 0; i < pieces.values.size(); i++)
        largest[i % count] = std::max(largest[i % count], pieces.values[i]);
    t.equal(out, largest);
}

// Gradients of other sizes from block to block.
std::vector<float> uneven_gradients(Trial& t, size_t n) {
    std::vector<float> values = t.random<float>(n, 1.0f);
    for (size_t i = 0; i < n; i++) values[i] *= power_of_two(static_cast<int>(i / 100 % 60) - 40);
    return values;
}

// The cast with what it owes, where something in one block is not finite.
void cast_to_wire(Trial& t, size_t count) {
    const size_t n = kWorld * count;
    std::vector<float> values = uneven_gradients(t, n);
    values[n / 2] = INFINITY;
    const auto owed = t.random<bf16>(n, 1e-6f);
    const reference::CastPieces expected = reference::cast_pieces(values, owed, kWorld, count, kLossScale);
    const auto inp = t.input(values), loss_scale = t.input(std::vector<float>{kLossScale});
    const auto skips = t.input(std::vector<int32_t>{0});
    uint8_t* pieces = t.result<uint8_t>("pieces", {{"byte ", expected.pieces.size()}});
    bf16* residual = t.result("residual", line(n), owed);
    t.run_twice([&] { cast_pieces(pieces, inp, kWorld, count, {residual, loss_scale, skips}, t.stream()); });
    t.equal(pieces, expected.pieces);
    t.equal(residual, expected.residual);
}

void sum_of_wire(Trial& t, size_t count) {
    const size_t n = kWorld * count;
    const auto pieces =
        t.input(reference::cast_pieces(uneven_gradients(t, n), std::vector<bf16>(n), kWorld, count, 1).pieces);
    const auto before = t.random<float>(count, 1.0f);
    float* sum = t.result("sum", line(count), before);
    t.run_twice([&] { sum_fp8_pieces(sum, pieces, kWorld, count, true, t.stream()); });
    t.equal(sum, reference::sum_fp8_pieces(pieces.values, kWorld, count, before));
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_bias_item(Items& items, int N, int C) {
    add_kernel(items, fmt::format("add_bias {} N={} C={}", type_name<Real>(), N, C),
               [=](Trial& t) { bias<Real>(t, N, C); });
}
template <class Real>
void add_bias_gradient(Items& items, int N, int C) {
    add_kernel(items, fmt::format("bias_gradient {} N={} C={}", type_name<Real>(), N, C),
               [=](Trial& t) { bias_gradients<Real>(t, N, C); });
}
template <class Real>
void add_sum(Items& items, size_t n) {
    add_kernel(items, fmt::format("add {} n={}", type_name<Real>(), n), [n](Trial& t) { sum<Real>(t, n); });
}
void add_global_norm(Items& items, const std::vector<size_t>& sizes) {
    add_kernel(items, "global_norm_partials", [sizes](Trial& t) { global_norm(t, sizes); });
}

// Element by element, and in 16-byte accesses.
void add_pieces(Items& items, const char* name, void (*check)(Trial&, size_t)) {
    add_kernel(items, name, [check](Trial& t) {
        for (const size_t count : {4099, 4096}) t.nested([&](Trial& trial) { check(trial, count); });
    });
}

template <class Real>
void add_biases(Items& items, const KernelUse& use) {
    const int qkv = use.attention_heads().qkv_width();
    for (const int width : std::set{use.channels, qkv, use.fc_channels()}) add_bias_item<Real>(items, 149, width);
    for (const int width : std::set{use.channels, qkv}) add_bias_gradient<Real>(items, 149, width);
}

template <class Real>
void add_tests(Items& items) {
    // More columns than a block has, more than eight rows a thread, several parts and slabs with tails in both.
    std::vector<std::pair<int, int>> sizes = {{3, 2056}, {17000, 8}, {5000, 24}, {1031, 264}};
    for (const int N : {1, 7, 33, 250})
        for (const int C : {8, 64, 128, 192, 768, 1600}) sizes.push_back({N, C});
    for (const auto& [N, C] : sizes) add_bias_item<Real>(items, N, C), add_bias_gradient<Real>(items, N, C);
    // One element, a part of a group, whole groups, whole blocks, and one more than each.
    for (const size_t n : {1, 7, 8, 9, 2048, 2049, 5003}) add_sum<Real>(items, n);
}

}  // namespace

void add_sums(Items& items, const KernelUse& use) {
    if (use.biases) use.bf16 ? add_biases<bf16>(items, use) : add_biases<float>(items, use);
    add_global_norm(items, {70001});
    if (use.several_ranks) {
        add_pieces(items, "sum_pieces fp32", summed_pieces<float>);
        if (use.bf16) add_pieces(items, "sum_pieces bf16", summed_pieces<bf16>);
        add_kernel(items, "reduce_pieces max", largest_piece);
        add_sum<float>(items, 5003);
    }
    if (!use.fp8_wire) return;
    add_pieces(items, "cast_pieces fp8", cast_to_wire);
    add_pieces(items, "sum_fp8_pieces", sum_of_wire);
}

void add_sum_tests(Items& items) {
    add_tests<float>(items), add_tests<bf16>(items);
    // 70001: three blocks, whose threads take several strides, and a tail of one element.
    add_global_norm(items, {1, 7, 8, 2051, 32768, 70001});
}

}  // namespace llmc::check
