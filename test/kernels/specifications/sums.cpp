// Gradients of biases, first values of tensors and their checksums, element-wise sums, squares of gradients, and
// pieces of several ranks, in FP32, BF16 and FP8.
#include <set>

#include "llmc/comm/reductions.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/kernels/initial_values.h"
#include "test/kernels/specifications/reference_quantize.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

template <class Real>
void bias_gradients(Trial& t, const Rows& s) {
    const auto dout = t.normal<Real>(s.n(), 1.0f, 0.5f);
    const auto before = t.random<float>(s.C, 10.0f);
    float *dbias = t.result<float>("dbias", s.C), *accumulated = t.result("accumulated dbias", s.C, before),
          *scratch = t.scratch<float>(bias_gradient_scratch(s.N, s.C));
    t.run_twice([&] {
        bias_gradient<Real>(dbias, scratch, dout, s.N, s.C, false, t.stream());
        bias_gradient<Real>(accumulated, scratch, dout, s.N, s.C, true, t.stream());
    });
    const std::vector<double> sums = reference::column_sums(reference::to_floats(dout.values), s.C);
    t.within(dbias, Bounded(sums, reference::kColumnSumError, 1.0 + 0.5 * s.N));
    t.within(accumulated, Bounded(plus(sums, before), reference::kColumnSumError, 10.0 + 0.5 * s.N));
}

struct Tensors {
    std::vector<size_t> sizes;
    std::string text() const { return ""; }
};

// Tensors one after the other in an array of partial sums.
template <class T>
void global_norm(Trial& t, const Tensors& s) {
    size_t blocks = 0;
    for (const size_t n : s.sizes) blocks += global_norm_blocks(n);
    std::vector<Input<T>> grads;
    for (const size_t n : s.sizes) grads.push_back(t.normal<T>(n, 0.01f, 0.002f));
    double* partials = t.result<double>("partials", blocks);
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

// The first micro-step adds one micro-batch and the second three, one after the other. Every sum is rounded to BF16 by
// its own random bits.
void gradient_sums(Trial& t, size_t n) {
    const size_t batches = n % 8 == 0 ? 3 : 1;
    constexpr StateRounding kRounding{77, 8};
    const auto first = t.normal<float>(n, 0.2f), second = t.normal<float>(batches * n, 0.2f);
    bf16* sum = t.result<bf16>("sum", n);
    t.run_twice([&] {
        add_gradients(sum, first, 1, n, true, kRounding, 0, t.stream());
        add_gradients(sum, second, static_cast<int>(batches), n, false, kRounding, 1, t.stream());
    });
    t.equal(sum, [&](size_t i) {
        const uint64_t place = kRounding.first + i;
        float value = 0;
        for (size_t batch = 0; batch <= batches; batch++) {
            const float added = batch == 0 ? first.at(i) : second.at((batch - 1) * n + i);
            const uint64_t bits = gradient_bits(kRounding.key, batch, place / 4 * 4) >> (place % 4 * 16) & 0xffff;
            value = static_cast<float>(reference::stochastic_bf16(value + added, bits));
        }
        return to_bf16(value);
    });
}

// The bits are those that the host computes. Places begin anywhere, and the last third is padding.
template <class T>
void first_values(Trial& t, size_t n) {
    constexpr size_t kFirst = 4099;
    const size_t used = n - n / 3;
    InitialValues drawn{.key = 77, .deviation = 0.02f, .constant = 1, .count = kFirst + used}, constant = drawn;
    constant.deviation = 0;
    T *normal = t.result<T>("normal numbers", n), *same = t.result<T>("constants", n);
    t.run_twice([&] {
        draw_initial_values(normal, drawn, kFirst, n, t.stream());
        draw_initial_values(same, constant, kFirst, n, t.stream());
    });
    t.equal(normal,
            [&](size_t i) { return to<T>(i < used ? drawn.deviation * normal_number(drawn.key, kFirst + i) : 0.0f); });
    t.equal(same, [&](size_t i) { return to<T>(i < used ? 1.0f : 0.0f); });
}

// Two parts of a tensor, the second from an odd place on, added to a sum that wraps around.
template <class T>
void value_checksum(Trial& t, size_t n) {
    constexpr uint64_t kKey = 0xfedcba9876543210u, kBefore = ~uint64_t{0} - 1;
    const auto values = t.normal<T>(n, 1.0f);
    const size_t part = n / 3 | 1;
    uint64_t* sum = t.result("checksum", 1, std::vector<uint64_t>{kBefore});
    t.run_twice([&] {
        const StateArray all = values;
        checksum_values(sum, all, kKey, 5, part, t.stream());
        checksum_values(sum, all.from(part), kKey, 5 + part, n - part, t.stream());
    });
    uint64_t expected = kBefore;
    for (size_t i = 0; i < n; i++) expected += mix64(kKey + float_bits(values.at(i)) + (5 + i + 1) * kGolden64);
    t.equal(sum, std::vector<uint64_t>{expected});
}

void sum(Trial& t, size_t n) {
    const auto a = t.normal<float>(n, 1.0f), b = t.normal<float>(n, 10.0f);
    float *out = t.result<float>("sum", n), *over = t.result("sum in place", n, a.values);
    t.run_twice([&] {
        add(out, a, b, n, t.stream());
        add(over, over, b, n, t.stream());
    });
    for (float* const result : {out, over}) t.equal(result, [&](size_t i) { return a.at(i) + b.at(i); });
}

template <class T>
void difference(Trial& t, size_t n) {
    const auto a = t.normal<T>(n, 1.0f);
    const auto before = t.random<float>(n, 1.0f);
    float* out = t.result("difference", n, before);
    t.run_twice([&] { subtract_from(out, a, n, t.stream()); });
    t.equal(out, [&](size_t i) { return a.at(i) - before[i]; });
}

// An average is one FMA of a rounded difference. With a share of 1 it is a copy.
template <class T>
void averages(Trial& t, size_t n) {
    constexpr float kShare = 1 / 3.0f;
    const auto values = t.normal<T>(n, 1.0f);
    const auto before = t.random<float>(n, 1.0f);
    float *average = t.result("average", n, before), *copy = t.result("average of one", n, before);
    t.run_twice([&] {
        add_to_average(average, values, kShare, n, t.stream());
        add_to_average(copy, values, 1, n, t.stream());
    });
    t.within(average, [&](size_t i) {
        const double old = before[i], difference = values.at(i) - old, sum = old + kShare * difference;
        return std::pair{sum, reference::kUnit * (std::fabs(sum) + std::fabs(kShare * difference))};
    });
    t.equal(copy, [&](size_t i) { return values.at(i); });
}

// ---- several ranks -------------------------------------------------------------------------------------------------

constexpr float kLossScale = 1024.0f;

struct Pieces {
    int world;
    size_t count;
    std::string text() const { return fmt::format(" world={} count={}", world, count); }
};

template <class T>
void summed_pieces(Trial& t, const Pieces& s) {
    const auto [world, count] = s;
    const auto pieces = t.normal<T>(world * count, 100.0f);
    const auto before = t.random<float>(count, 100.0f);
    float *sum = t.result<float>("sum", count), *accumulated = t.result("accumulated sum", count, before);
    t.run_twice([&] {
        sum_pieces<T>(sum, pieces, world, count, false, t.stream());
        sum_pieces<T>(accumulated, pieces, world, count, true, t.stream());
    });
    const auto sum_on = [&](float total, size_t i, int first) {
        for (int r = first; r < world; r++) total += pieces.at(r * count + i);
        return total;
    };
    t.equal(sum, [&](size_t i) { return sum_on(pieces.at(i), i, 1); });
    t.equal(accumulated, [&](size_t i) { return sum_on(before[i], i, 0); });
}

template <class T>
void reduced_pieces(Trial& t, const Pieces& s) {
    const auto [world, count] = s;
    std::vector<T> values;
    for (const float x : t.random<float>(world * count, 1e6f)) values.push_back(static_cast<T>(x));
    const auto pieces = t.input(values);
    T *sum = t.result<T>("sum", count), *largest = t.result<T>("max", count);
    t.run_twice([&] {
        reduce_pieces<T>(sum, pieces, world, count, ReduceOp::sum, t.stream());
        reduce_pieces<T>(largest, pieces, world, count, ReduceOp::max, t.stream());
    });
    std::vector<T> sums(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)), most = sums;
    for (size_t i = count; i < values.size(); i++) {
        sums[i % count] += values[i];
        most[i % count] = std::max(most[i % count], values[i]);
    }
    t.equal(sum, sums);
    t.equal(largest, most);
}

// Gradients whose magnitude changes from block to block.
std::vector<float> uneven_gradients(Trial& t, size_t n) {
    std::vector<float> values = t.random<float>(n, 1.0f);
    for (size_t i = 0; i < n; i++) values[i] *= power_of_two(static_cast<int>(i / 100 % 60) - 40);
    return values;
}

// Casts with residuals, one value being infinite; the same again with store = false, which must leave the residuals
// unchanged; and without residuals.
void cast_to_wire(Trial& t, const Pieces& s) {
    const auto [world, count] = s;
    const size_t n = world * count;
    std::vector<float> values = uneven_gradients(t, n);
    if (count > Fp8Piece::kBlock) values[n / 2] = INFINITY;
    const auto owed = t.random<bf16>(n, 1e-6f);
    const auto expected = reference::cast_pieces(values, owed, world, count, kLossScale),
               alone = reference::cast_pieces(values, std::vector<bf16>(n), world, count, 1);
    const auto inp = t.input(values), loss_scale = t.input_of(kLossScale);
    const auto skips = t.input_of(int32_t{0});
    const auto result = [&](const char* name) { return t.result<uint8_t>(name, {{"byte ", expected.pieces.size()}}); };
    uint8_t *pieces = result("pieces"), *again = result("pieces cast again"),
            *plain = result("pieces without residual");
    bf16 *residual = t.result("residual", n, owed), *kept = t.result("kept residual", n, owed);
    t.run_twice([&] {
        cast_pieces(pieces, inp, world, count, {residual, loss_scale, skips}, t.stream());
        cast_pieces(again, inp, world, count, {kept, loss_scale, skips, false}, t.stream());
        cast_pieces(plain, inp, world, count, {}, t.stream());
    });
    t.equal(pieces, expected.pieces);
    t.equal(again, expected.pieces);
    t.equal(plain, alone.pieces);
    t.equal(residual, expected.residual);
    t.equal(kept, owed);
}

void sum_of_wire(Trial& t, const Pieces& s) {
    const auto [world, count] = s;
    const size_t n = world * count;
    const auto pieces =
        t.input(reference::cast_pieces(uneven_gradients(t, n), std::vector<bf16>(n), world, count, 1).pieces);
    const auto before = t.random<float>(count, 1.0f);
    float *sum = t.result<float>("sum", count), *accumulated = t.result("accumulated sum", count, before);
    t.run_twice([&] {
        sum_fp8_pieces(sum, pieces, world, count, false, t.stream());
        sum_fp8_pieces(accumulated, pieces, world, count, true, t.stream());
    });
    t.equal(sum, reference::sum_fp8_pieces(pieces.values, world, count, {}));
    t.equal(accumulated, reference::sum_fp8_pieces(pieces.values, world, count, before));
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class T>
void add_first_values(Items& items, size_t n) {
    add_kernel<T>(items, "draw_initial_values", first_values<T>, n);
    add_kernel<T>(items, "checksum_values", value_checksum<T>, n);
}
template <class T>
void add_averages(Items& items, size_t n) {
    add_kernel<T>(items, "add_to_average", averages<T>, n);
}

// The kernels that work on the pieces of several ranks.
constexpr std::pair<const char*, void (*)(Trial&, const Pieces&)> kOfPieces[] = {
    {"sum_pieces fp32", summed_pieces<float>},
    {"sum_pieces bf16", summed_pieces<bf16>},
    {"reduce_pieces fp32", reduced_pieces<float>},
    {"reduce_pieces fp64", reduced_pieces<double>},
    {"reduce_pieces int32", reduced_pieces<int32_t>},
    {"cast_pieces fp8", cast_to_wire},
    {"sum_fp8_pieces", sum_of_wire}};

// Checks 4099 elements, which kernels access one by one, and 4096, which they access 16 bytes at a time.
void add_pieces(Items& items, const std::string& name) {
    for (const auto& [kernel, check] : kOfPieces)
        if (kernel == name)
            add_kernel(items, name, [check](Trial& t) {
                for (const size_t count : {4099, 4096}) t.nested([&](Trial& trial) { check(trial, {3, count}); });
            });
}

template <class Real>
void add_biases(Items& items, const KernelUse& use) {
    const int qkv = use.attention_heads().qkv_width();
    for (const int width : std::set{use.channels, qkv})
        add_kernel<Real>(items, "bias_gradient", bias_gradients<Real>, {149, width});
}

}  // namespace

void add_sums(Items& items, const KernelUse& use) {
    if (use.biases) with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add_biases<Real>(items, use); });
    const bool narrow_gradients = use.gradients == StateFormat::bf16;
    with_type<bf16, float>(
        narrow_gradients, [&]<class T>(T) { add_kernel<T>(items, "global_norm_partials", global_norm<T>, {{70001}}); });
    if (narrow_gradients)
        for (const size_t n : {4099, 4096}) add_kernel(items, "add_gradients", gradient_sums, n);
    with_type<bf16, float>(use.optimizer.masters == StateFormat::bf16, [&]<class Master>(Master) {
        add_first_values<Master>(items, 70001);
        if (use.signals) add_kernel<Master>(items, "subtract_from", difference<Master>, 4099);
        if (use.optimizer.averages()) add_averages<Master>(items, 4099);
    });
    if (use.several_ranks) {
        add_pieces(items, "sum_pieces fp32");
        if (use.bf16) add_pieces(items, "sum_pieces bf16");
        add_pieces(items, "reduce_pieces fp32");
        add_kernel<float>(items, "add", sum, 5003);
    }
    if (!use.fp8_wire) return;
    add_pieces(items, "cast_pieces fp8");
    add_pieces(items, "sum_fp8_pieces");
}

void add_sum_tests(Items& items) {
    // More columns than a block has, more than eight rows a thread, several parts and slabs with tails in both.
    std::vector<std::pair<int, int>> sizes = {{3, 2056}, {17000, 8}, {5000, 24}, {1031, 264}};
    for (const int N : {1, 7, 33, 250})
        for (const int C : {8, 64, 128, 192, 768, 1600}) sizes.push_back({N, C});
    each_type<float, bf16>([&]<class T>(T) {
        for (const auto& [N, C] : sizes) {
            add_kernel<T>(items, "bias_gradient", bias_gradients<T>, {N, C});
        }
        // 70001: three blocks, whose threads take several strides, and a tail of one element.
        add_kernel<T>(items, "global_norm_partials", global_norm<T>, {{1, 7, 8, 2051, 32768, 70001}});
        for (const size_t n : {1, 2048, 4099}) {
            add_kernel<T>(items, "subtract_from", difference<T>, n);
            add_averages<T>(items, n);
        }
        for (const size_t n : {1, 2048, 4099, 70001}) add_first_values<T>(items, n);
    });
    // One element, a part of a group, whole groups, whole blocks, and one more than each.
    for (const size_t n : {1, 7, 8, 9, 2048, 2049, 5003}) add_kernel<float>(items, "add", sum, n);
    for (const size_t n : {1, 6, 8, 2048, 2056, 4099}) add_kernel(items, "add_gradients", gradient_sums, n);
}

void add_piece_tests(Items& items) {
    for (const auto& [name, check] : kOfPieces)
        for (const int world : {1, 2, 3, 8})
            for (const size_t count : {1, 3, 4, 8, 15, 16, 127, 128, 129, 255, 1000, 2048, 2049, 4099, 16384})
                add_kernel(items, name, check, {world, count});
}

}  // namespace llmc::check
