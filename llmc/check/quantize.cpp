// Quantization with one scale per tensor, held to the definition of a cast: activations, gradients with their bias
// gradients, weights whole and in slices.
#include "llmc/kernels/quantize.h"

#include <set>

#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"

namespace llmc::check {
namespace {

struct Shape {
    int N, C;
    bool bad = false;     // NaN and infinity among the values
    float scale = 0;      // 0: the usual, where some values saturate and some vanish
    float deviation = 0;  // 0: values over 24 binary orders of magnitude

    size_t n() const { return size_t{1} * N * C; }
    std::string text() const { return fmt::format(" N={} C={}{}", N, C, bad ? " with NaN and infinity" : ""); }
    float scale_or(float usual) const { return scale > 0 ? scale : usual; }
};

template <class Real>
std::vector<Real> values_of(Trial& t, const Shape& s) {
    auto x = s.deviation > 0 ? t.random<Real>(s.n(), s.deviation)
                             : reference::wide_values<Real>(s.n(), static_cast<uint32_t>(7 * s.N + s.C));
    if (s.bad) {
        const size_t C = static_cast<size_t>(s.C);
        x[3] = to<Real>(std::nanf("")), x[s.n() - 10 * C + 1] = to<Real>(INFINITY), x[s.n() - 1] = to<Real>(-INFINITY);
    }
    return x;
}

// An activation; with `low`, attention's output, which carries what rounding cut off.
template <class F8>
void activation(Trial& t, const Shape& s, bool with_low) {
    const auto values = values_of<bf16>(t, s), rest = t.random<bf16>(s.n(), 0.001f);
    std::vector<float> sum = reference::to_floats(values);
    for (size_t i = 0; i < sum.size() && with_low; i++) sum[i] += to_float(rest[i]);
    const float scale = s.scale_or(std::is_same_v<F8, e4m3> ? 16.0f : 30000.0f);
    const CodeRanges<F8> expected(Bounded::exactly(sum), scale);
    each_pass<F8>(t, kAllPasses, s.N, s.C, scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const auto inp = trial.input(values), low = with_low ? trial.input(rest) : Input<bf16>();
        trial.run_twice(
            [&] { quantize<F8>(to.target(), nullptr, nullptr, inp, low, s.N, s.C, false, pass, t.stream()); });
        to.compare(expected, {pass});
    });
}

// A gradient, and sums of its columns: accumulated, alone with columns alone, and left out with rows alone.
template <class F8>
void gradient(Trial& t, const Shape& s, bool bias) {
    auto values = t.random<bf16>(s.n(), 1.0f, 0.2f);
    if (s.bad) values[3] = to<bf16>(std::nanf("")), values[s.n() - 1] = to<bf16>(INFINITY);
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 40000.0f;  // some saturate
    const CodeRanges<F8> expected(Bounded::exactly(values), scale);
    const auto before = t.random<float>(static_cast<size_t>(s.C), 10.0f);
    const auto sums = reference::column_sums(reference::to_floats(values), s.C);
    each_pass<F8>(t, kAllPasses, s.N, s.C, scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const bool with_bias = bias && to.layouts != Layouts::row, accumulate = to.layouts == Layouts::both;
        const auto inp = trial.input(values);
        float* dbias = with_bias ? trial.result("dbias", line(s.C), before) : nullptr;
        float* scratch = with_bias ? trial.scratch<float>(quantize_scratch(s.N, s.C)) : nullptr;
        trial.run_twice(
            [&] { quantize<F8>(to.target(), dbias, scratch, inp, nullptr, s.N, s.C, accumulate, pass, t.stream()); });
        to.compare(expected, {pass});
        if (!with_bias) return;
        if (pass == QuantizePass::measure) return trial.equal(dbias, before);
        std::vector<double> total = sums;
        for (size_t c = 0; c < total.size() && accumulate; c++) total[c] += static_cast<double>(before[c]);
        trial.within(dbias, Bounded(total, reference::kColumnSumError, (accumulate ? 10.0 : 1.0) + 0.2 * s.N));
    });
}

void weight(Trial& t, const Shape& s) {
    const auto values = values_of<float>(t, s);
    const float scale = s.scale_or(16.0f);
    const CodeRanges<e4m3> expected(Bounded::exactly(values), scale);
    each_pass<e4m3>(t, kAllPasses, s.N, s.C, scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const auto master = trial.input(values);
        trial.run_twice([&] { quantize_weight(to.target(), master, s.N, s.C, pass, t.stream()); });
        to.compare(expected, {pass});
    });
}

// A weight in two slices, and transposed afterwards.
void weight_slices(Trial& t, const Shape& s) {
    const size_t cut = std::min(s.n(), s.n() / 3 / 64 * 64 + 64);
    const auto values = values_of<float>(t, s);
    const float scale = s.scale_or(16.0f);
    const CodeRanges<e4m3> expected(Bounded::exactly(values), scale);
    for (const QuantizePass pass :
         {QuantizePass::measure, QuantizePass::write, QuantizePass::write_counted, QuantizePass::replay})
        t.nested([&](Trial& trial) {
            const auto master = trial.input(values);
            const QuantizedResults<e4m3> to(trial, s.N, s.C, scale);
            trial.run_twice([&] {
                quantize_flat(to.row, master, cut, to.state, pass, t.stream());
                quantize_flat(to.row + cut, master + cut, s.n() - cut, to.state, pass, t.stream());
                if (pass != QuantizePass::measure) transpose_codes(to.transposed, to.row, s.N, s.C, t.stream());
            });
            to.compare(expected, {pass});
        });
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class F8>
const char* format_name() {
    return std::is_same_v<F8, e4m3> ? "e4m3" : "e5m2";
}
template <class F8>
void add_activation(Items& items, const Shape& s, bool with_low) {
    add_kernel(items, std::string("quantize ") + format_name<F8>() + s.text(),
               [=](Trial& t) { activation<F8>(t, s, with_low); });
}
template <class F8>
void add_gradient(Items& items, const Shape& s, bool bias) {
    add_kernel(
        items,
        fmt::format("quantize {} {}", format_name<F8>(), bias ? "with bias gradient" : "of gradients") + s.text(),
        [=](Trial& t) { gradient<F8>(t, s, bias); });
}
void add_weight(Items& items, const Shape& s) {
    add_kernel(items, "quantize_weight" + s.text(), [s](Trial& t) { weight(t, s); });
}
void add_weight_slices(Items& items, const Shape& s) {
    add_kernel(items, "quantize_flat, transpose_codes" + s.text(), [s](Trial& t) { weight_slices(t, s); });
}

}  // namespace

void add_quantize(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    const int N = 144, C = use.channels;  // a tile of 128 rows and a part
    add_activation<e4m3>(items, {N, use.attention_heads().width()}, true);
    for (const int width : std::set{C, use.attention_heads().qkv_width(), use.fc_channels()})
        use.e4m3_gradients ? add_gradient<e4m3>(items, {N, width}, use.biases)
                           : add_gradient<e5m2>(items, {N, width}, use.biases);
    add_weight(items, {N, C});
    if (use.several_ranks) add_weight_slices(items, {N, C});
}

void add_quantize_tests(Items& items) {
    // Smaller and larger than a tile, and no multiple of it.
    for (const auto& [N, C] : {std::pair{16, 16}, {48, 64}, {80, 144}, {144, 128}, {16, 1600}, {272, 144}, {48, 768}}) {
        for (const bool low : {false, true}) {
            add_activation<e4m3>(items, {N, C}, low);
            add_activation<e5m2>(items, {N, C, false, 0.3f}, low);
        }
        add_gradient<e4m3>(items, {N, C}, true), add_gradient<e5m2>(items, {N, C}, true);
        add_weight(items, {N, C, false, 23.0f}), add_weight_slices(items, {N, C, false, 23.0f});
    }
    const Shape bad{144, 144, true, 2.0f, 1.0f};
    add_activation<e4m3>(items, bad, false), add_activation<e5m2>(items, bad, false);
    add_gradient<e4m3>(items, bad, true), add_gradient<e5m2>(items, bad, true);
    add_weight(items, {16, 16, true, 1.0f, 1.0f}), add_weight_slices(items, bad);
    add_activation<e4m3>(items, {16, 16, false, 3e38f, 1e10f}, false);  // products with the scale overflow FP32
}

}  // namespace llmc::check
