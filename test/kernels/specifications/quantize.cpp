// Quantization with one scale per tensor or per block, compared with the definitions of cast and block: activations,
// gradients with their bias gradients, weights whole and in slices; and back.
#include <set>

#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {

// ---- one scale per tensor -------------------------------------------------------------------------------------------
namespace {

struct Shape {
    int N, C;
    bool bad = false;     // NaN and infinity among the values
    float scale = 0;      // 0: the usual scale, at which some values saturate and some become 0
    float deviation = 0;  // 0: magnitudes spread over 24 powers of two
    bool low = false;     // the values come in two halves, as attention writes its output
    bool bias = true;     // the cast of a gradient also sums its columns

    size_t n() const { return size_t{1} * N * C; }
    std::string text() const { return fmt::format(" N={} C={}{}", N, C, bad ? " with NaN and infinity" : ""); }
    float scale_or(float usual) const { return scale > 0 ? scale : usual; }
};

template <class Real>
std::vector<Real> values_of(Trial& t, const Shape& s) {
    auto x = s.deviation > 0 ? t.random<Real>(s.n(), s.deviation)
                             : reference::wide_values<Real>(s.n(), static_cast<uint32_t>(7 * s.N + s.C));
    if (s.bad) {
        x[3] = to<Real>(NAN);
        x[s.n() - 10 * s.C + 1] = to<Real>(INFINITY);
        x[s.n() - 1] = to<Real>(-INFINITY);
    }
    return x;
}

template <class F8>
void activation(Trial& t, const Shape& s) {
    const auto inp = t.input(values_of<bf16>(t, s)), rest = t.normal<bf16>(s.n(), 0.001f);
    std::vector<float> sum = reference::to_floats(inp.values);
    for (size_t i = 0; i < sum.size() && s.low; i++) sum[i] += rest.at(i);
    const float scale = s.scale_or(std::is_same_v<F8, e4m3> ? 16.0f : 30000.0f);
    const CodeRanges<F8> expected(Bounded::exactly(sum), scale);
    each_pass<F8>(t, kAllPasses, s.N, s.C, scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        trial.run_twice([&] {
            quantize<F8>(to.target(), nullptr, nullptr, inp, s.low ? rest.data : nullptr, s.N, s.C, false, pass,
                         t.stream());
        });
        to.compare(expected, {pass});
    });
}

// Casts a gradient and sums its columns: accumulated with both layouts, new with only the transposed one, and not with
// only rows.
template <class F8>
void gradient(Trial& t, const Shape& s) {
    auto values = t.random<bf16>(s.n(), 1.0f, 0.2f);
    if (s.bad) {
        values[3] = to<bf16>(NAN);
        values[s.n() - 1] = to<bf16>(INFINITY);
    }
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 40000.0f;  // some saturate
    const CodeRanges<F8> expected(Bounded::exactly(values), scale);
    const auto inp = t.input(values);
    const auto before = t.random<float>(s.C, 10.0f);
    const auto sums = reference::column_sums(reference::to_floats(values), s.C);
    each_pass<F8>(t, kAllPasses, s.N, s.C, scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const bool with_bias = s.bias && to.layouts != Layouts::row, accumulate = to.layouts == Layouts::both;
        float* dbias = with_bias ? trial.result("dbias", s.C, before) : nullptr;
        float* scratch = with_bias ? trial.scratch<float>(quantize_scratch(s.N, s.C)) : nullptr;
        trial.run_twice(
            [&] { quantize<F8>(to.target(), dbias, scratch, inp, nullptr, s.N, s.C, accumulate, pass, t.stream()); });
        to.compare(expected, {pass});
        if (!with_bias) return;
        if (pass == QuantizePass::measure) return trial.equal(dbias, before);
        trial.within(dbias, Bounded(accumulate ? plus(sums, before) : sums, reference::kColumnSumError,
                                    (accumulate ? 10.0 : 1.0) + 0.2 * s.N));
    });
}

// A weight and its codes.
template <class Master>
struct Weight {
    Input<Master> master;
    float scale;

    Weight(Trial& t, const Shape& s) : master(t.input(values_of<Master>(t, s))), scale(s.scale_or(16.0f)) {}
    CodeRanges<e4m3> codes() const { return {Bounded::exactly(reference::to_floats(master.values)), scale}; }
};

template <class Master>
void weight(Trial& t, const Shape& s) {
    const Weight<Master> w(t, s);
    const CodeRanges<e4m3> expected = w.codes();
    each_pass<e4m3>(t, kAllPasses, s.N, s.C, w.scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        trial.run_twice([&] { quantize_weight(to.target(), w.master, s.N, s.C, pass, t.stream()); });
        to.compare(expected, {pass});
    });
}

// A weight in two slices, the second of which begins inside a row, and transposed afterwards.
template <class Master>
void weight_slices(Trial& t, const Shape& s) {
    const size_t cut = s.n() / 3 / 64 * 64 + 16;
    const Weight<Master> w(t, s);
    const CodeRanges<e4m3> expected = w.codes();
    for (const QuantizePass pass :
         {QuantizePass::measure, QuantizePass::write, QuantizePass::write_counted, QuantizePass::replay})
        t.nested([&](Trial& trial) {
            const QuantizedResults<e4m3> to(trial, s.N, s.C, w.scale);
            trial.run_twice([&] {
                quantize_flat(to.row, w.master, cut, to.state, pass, t.stream());
                quantize_flat(to.row + cut, w.master + cut, s.n() - cut, to.state, pass, t.stream());
                if (pass != QuantizePass::measure) transpose_codes(to.transposed, to.row, s.N, s.C, t.stream());
            });
            to.compare(expected, {pass});
        });
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class F8>
void add_gradient(Items& items, const Shape& s) {
    const char* const kind = s.bias ? "with bias gradient" : "of gradients";
    add_kernel(items, fmt::format("quantize {} {}", type_name<F8>(), kind), gradient<F8>, s);
}
template <class Master>
void add_weight(Items& items, const Shape& s, bool slices) {
    const std::string masters = sizeof(Master) == 2 ? " of bf16" : "";
    add_kernel(items, "quantize_weight" + masters, weight<Master>, s);
    if (slices) add_kernel(items, "quantize_flat, transpose_codes" + masters, weight_slices<Master>, s);
}

}  // namespace

void add_quantize(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    const int N = 144, C = use.channels;  // a tile of 128 rows and a part
    add_kernel<e4m3>(items, "quantize", activation<e4m3>, {.N = N, .C = use.attention_heads().width(), .low = true});
    for (const int width : std::set{C, use.attention_heads().qkv_width(), use.fc_channels()})
        with_type<e4m3, e5m2>(use.e4m3_gradients,
                              [&]<class F8>(F8) { add_gradient<F8>(items, {.N = N, .C = width, .bias = use.biases}); });
    with_type<bf16, float>(use.optimizer.masters == StateFormat::bf16, [&]<class Master>(Master) {
        add_weight<Master>(items, {.N = N, .C = C}, use.several_ranks);
    });
}

void add_quantize_tests(Items& items) {
    // Smaller and larger than a tile, and no multiple of it.
    for (const auto& [N, C] : {std::pair{16, 16}, {48, 64}, {80, 144}, {144, 128}, {16, 1600}, {272, 144}, {48, 768}}) {
        for (const bool low : {false, true}) {
            add_kernel<e4m3>(items, "quantize", activation<e4m3>, {.N = N, .C = C, .low = low});
            add_kernel<e5m2>(items, "quantize", activation<e5m2>, {.N = N, .C = C, .scale = 0.3f, .low = low});
        }
        each_type<e4m3, e5m2>([&]<class F8>(F8) { add_gradient<F8>(items, {N, C}); });
        each_type<float, bf16>(
            [&]<class Master>(Master) { add_weight<Master>(items, {.N = N, .C = C, .scale = 23.0f}, true); });
    }
    const Shape bad{144, 144, true, 2.0f, 1.0f};
    each_type<e4m3, e5m2>([&]<class F8>(F8) {
        add_kernel<F8>(items, "quantize", activation<F8>, bad);
        add_gradient<F8>(items, bad);
    });
    each_type<float, bf16>([&]<class Master>(Master) { add_weight<Master>(items, bad, true); });
    add_weight<float>(items, {16, 16, true, 1.0f, 1.0f}, false);
    // Products with the scale overflow FP32.
    add_kernel<e4m3>(items, "quantize", activation<e4m3>, {16, 16, false, 3e38f, 1e10f});
}

// ---- one scale per block --------------------------------------------------------------------------------------------
namespace {

using reference::BlockReference;

// Codes and scales of a matrix.
struct BlockResults : QuantizedResults<e4m3> {
    ScaleLayout layout;
    char *row_scales, *transposed_scales;

    BlockResults(Trial& t, ScaleLayout l, int rows, int columns, Layouts asked = Layouts::both)
        : QuantizedResults(t, rows, columns, 3.0f, asked), layout(l) {
        row_scales = t.result<char>("scales", {{"byte ", scale_bytes(layout, N, C)}});
        transposed_scales = t.result<char>("transposed scales", {{"byte ", scale_bytes(layout, C, N)}});
    }
    Quantized<e4m3> target() const {
        if (!has_transposed()) return {row, nullptr, state, row_scales, nullptr};
        return {row, transposed, state, row_scales, transposed_scales};
    }
    void compare(const BlockReference& rows, const BlockReference& columns, QuantizePass pass) const {
        compare_layout(row, row_scales, rows);
        if (has_transposed()) {
            compare_layout(transposed, transposed_scales, columns);
        } else {
            trial.untouched(transposed);
            trial.untouched(transposed_scales);
        }
        trial.equal(state, rows.after(before, pass));
    }

private:
    void compare_layout(const e4m3* codes, const char* scales, const BlockReference& reference) const {
        trial.equal(codes, reference.codes);
        const size_t wrong = reference::wrong_scales(trial.read(scales), layout, reference);
        if (wrong > 0) trial.note(fmt::format("{}: {} are wrong", trial.shape_of(scales).name, wrong));
    }
};

struct BlockShape {
    int N, C;
    Fp8Scaling scaling;
    bool bad = false;  // NaN and infinity among the values

    int length() const { return scaling == Fp8Scaling::mx ? kMxVector : kScaleVector; }
    ScaleLayout layout() const { return scaling == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors; }
    std::string text() const {
        return fmt::format(" {} N={} C={}{}", scaling == Fp8Scaling::mx ? "mx" : "block", N, C,
                           bad ? " with NaN and infinity" : "");
    }
};

// Both layouts of a matrix as they should be.
struct References {
    BlockReference rows, columns;
    References(const std::vector<bf16>& values, const BlockShape& s)
        : rows(reference::to_floats(values), s.N, s.C, 1, s.length()),
          columns(reference::turned(reference::to_floats(values), s.N, s.C), s.C, s.N, 1, s.length()) {}
};

void blocks(Trial& t, const BlockShape& s) {
    const auto inp = t.input(reference::uneven_values<bf16>(s.N, s.C, static_cast<uint32_t>(s.N + 3 * s.C)));
    const References expected(inp.values, s);
    const auto run = [&](QuantizePass pass, Layouts layouts) {
        t.nested([&](Trial& trial) {
            const BlockResults to(trial, s.layout(), s.N, s.C, layouts);
            trial.run_twice([&] {
                quantize_blocks(to.target(), nullptr, nullptr, inp, s.N, s.C, s.scaling, false, pass, t.stream());
            });
            to.compare(expected.rows, expected.columns, pass);
        });
    };
    for (const QuantizePass pass : kWritingPasses) run(pass, Layouts::both);
    run(QuantizePass::replay, Layouts::row);  // an evaluation needs no transposed copy
}

void bias_gradient(Trial& t, const BlockShape& s) {
    auto values = t.random<bf16>(size_t{1} * s.N * s.C, 1.0f, 0.2f);
    if (s.bad) {
        values[5] = to<bf16>(INFINITY);
        values[99] = to<bf16>(NAN);
        values[values.size() - 7] = to<bf16>(-INFINITY);
    }
    const References expected(values, s);
    const auto inp = t.input(values);
    const BlockResults to(t, s.layout(), s.N, s.C);
    const auto before = t.random<float>(s.C, 1.0f);
    float *dbias = t.result<float>("dbias", s.C), *accumulated = t.result("accumulated dbias", s.C, before),
          *scratch = t.scratch<float>(quantize_scratch(s.N, s.C));
    Fp8State* other_state = t.scratch<Fp8State>(1);
    t.run_twice([&] {
        quantize_blocks(to.target(), dbias, scratch, inp, s.N, s.C, s.scaling, false, QuantizePass::train, t.stream());
        const Quantized<e4m3> rows{to.row, nullptr, other_state, to.row_scales, nullptr};
        quantize_blocks(rows, accumulated, scratch, inp, s.N, s.C, s.scaling, true, QuantizePass::replay, t.stream());
    });
    to.compare(expected.rows, expected.columns, QuantizePass::train);
    const std::vector<double> sums = reference::column_sums(reference::to_floats(values), s.C);
    t.within(dbias, Bounded(sums, reference::kColumnSumError, 1.0 + 0.2 * s.N));
    t.within(accumulated, Bounded(plus(sums, before), reference::kColumnSumError, 1.0 + 0.2 * s.N));
}

template <class Master>
void weight_tiles(Trial& t, const Rows& s) {
    auto masters = reference::uneven_values<Master>(s.N, s.C, static_cast<uint32_t>(3 * s.N + s.C));
    for (size_t i = 0; i < size_t{128} * s.C; i++)  // tiles differ
        if (i % s.C < 128) masters[i] = to<Master>(to_float(masters[i]) * 1e-6f);
    const auto master = t.input(masters);
    const auto values = reference::to_floats(masters);
    const BlockReference rows(values, s.N, s.C, kScaleVector, kScaleVector),
        columns(reference::turned(values, s.N, s.C), s.C, s.N, kScaleVector, kScaleVector);
    for (const QuantizePass pass : kWritingPasses)
        t.nested([&](Trial& trial) {
            const BlockResults to(trial, ScaleLayout::tiles, s.N, s.C);
            trial.run_twice([&] { quantize_weight_tiles(to.target(), master, s.N, s.C, pass, t.stream()); });
            to.compare(rows, columns, pass);
        });
}

// Codes and scales are as the definition gives them, and every value is a BF16 number: nothing is rounded.
void dequantize(Trial& t, const BlockShape& s) {
    const auto values = reference::to_floats(reference::uneven_values<bf16>(s.N, s.C, 104));
    const BlockReference rows(values, s.N, s.C, 1, s.length());
    const auto inp = t.input(rows.codes);
    const auto scales = t.input(reference::scale_table(s.layout(), rows));
    bf16* out = t.result<bf16>("values", matrix(s.N, s.C));
    t.run_twice([&] { llmc::dequantize(out, inp.data, scales.data, s.layout(), s.N, s.C, t.stream()); });
    t.equal(out, [&](size_t i) {
        const int exponent = rows.exponent(static_cast<int>(i) / s.C, static_cast<int>(i) % s.C);
        return reference::nearest_bf16(std::ldexp(reference::value_of<e4m3>(rows.codes[i].bits), exponent));
    });
}

// ---- items ---------------------------------------------------------------------------------------------------------

void add_bias_gradient(Items& items, const BlockShape& s) {
    add_kernel(items, "quantize_blocks with bias gradient", bias_gradient, s);
}
template <class Master>
void add_weight_tiles(Items& items, const Rows& s) {
    add_kernel(items, sizeof(Master) == 2 ? "quantize_weight_tiles of bf16" : "quantize_weight_tiles",
               weight_tiles<Master>, s);
}

}  // namespace

void add_quantize_blocks(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling == Fp8Scaling::tensor) return;
    const bool mx = use.scaling == Fp8Scaling::mx;
    const BlockShape narrow{mx ? 160 : 256, use.channels, use.scaling};
    for (const int C : std::set{use.channels, use.fc_channels()}) {
        const BlockShape s{narrow.N, C, use.scaling};
        if (use.biases) add_bias_gradient(items, s);
        if (!use.biases || C == narrow.C) add_kernel(items, "quantize_blocks", blocks, s);
    }
    add_kernel(items, "dequantize_blocks", dequantize, narrow);
    if (mx) return;
    with_type<bf16, float>(use.optimizer.masters == StateFormat::bf16, [&]<class Master>(Master) {
        add_weight_tiles<Master>(items, {narrow.N, narrow.C});
    });
}

void add_quantize_blocks_tests(Items& items) {
    for (const BlockShape& s : {BlockShape{128, 128, Fp8Scaling::block},
                                {384, 128, Fp8Scaling::block},
                                {128, 640, Fp8Scaling::block},
                                {256, 384, Fp8Scaling::block},
                                {32, 32, Fp8Scaling::mx},
                                {32, 160, Fp8Scaling::mx},
                                {96, 64, Fp8Scaling::mx},
                                {160, 128, Fp8Scaling::mx},
                                {288, 352, Fp8Scaling::mx}}) {
        add_kernel(items, "quantize_blocks", blocks, s);
        add_bias_gradient(items, s);
        add_kernel(items, "dequantize_blocks", dequantize, s);
        if (s.scaling == Fp8Scaling::block)
            each_type<float, bf16>([&]<class Master>(Master) { add_weight_tiles<Master>(items, {s.N, s.C}); });
    }
    add_bias_gradient(items, {128, 256, Fp8Scaling::block, true});
    add_bias_gradient(items, {128, 256, Fp8Scaling::mx, true});
}

}  // namespace llmc::check
