// Quantization with one scale a tensor, at the run's widths, against the definition of a cast: activations and
// gradients in all passes, bias gradients, weights whole and in slices.
#include "llmc/kernels/quantize.h"

#include <set>

#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/check/reference_rows.h"

namespace llmc::check {

namespace {

constexpr int kRows = 144;  // a tile of 128 and a part
constexpr float kScale = 16.0f;

// An output of attention, which carries what rounding cut off.
std::string check_activation(int C, stream_t stream) {
    const size_t n = kRows * static_cast<size_t>(C);
    const auto values = reference::wide_values<bf16>(n, 91), rest = reference::random_normal<bf16>(n, 0.001f, 92);
    std::vector<float> sum(n);
    for (size_t i = 0; i < n; i++) sum[i] = to_float(values[i]) + to_float(rest[i]);
    const CodeRanges<e4m3> expected(Bounded::exactly(sum), kScale);
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16 *inp = trial.input(values), *low = trial.input(rest);
        const QuantizedResults<e4m3> to(trial, kRows, C, kScale);
        trial.run_twice([&] { quantize<e4m3>(to.both(), nullptr, nullptr, inp, low, kRows, C, false, pass, stream); });
        to.compare(expected, pass);
    });
}

template <class F8>
std::string check_gradient(int columns, bool bias, stream_t stream) {
    const size_t C = static_cast<size_t>(columns), n = kRows * C;
    const auto values = reference::random_normal<bf16>(n, 1.0f, 93, 0.2f);
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 40000.0f;  // some saturate
    const CodeRanges<F8> expected(Bounded::exactly(values), scale);
    const auto before = reference::random_normal<float>(C, 10.0f, 94);
    std::vector<double> sums = reference::column_sums(reference::to_floats(values), columns);
    for (size_t c = 0; c < C; c++) sums[c] += static_cast<double>(before[c]);
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16* inp = trial.input(values);
        const QuantizedResults<F8> to(trial, kRows, columns, scale);
        float* dbias = bias ? trial.result("dbias", {{"", C}}, before) : nullptr;
        float* scratch = bias ? trial.scratch<float>(quantize_scratch(kRows, columns)) : nullptr;
        trial.run_twice(
            [&] { quantize<F8>(to.both(), dbias, scratch, inp, nullptr, kRows, columns, true, pass, stream); });
        to.compare(expected, pass);
        if (!bias) return;
        if (pass == QuantizePass::measure)
            trial.equal(dbias, before);
        else
            trial.within(dbias, Bounded(sums, reference::kColumnSumError, 10.0 + 0.2 * kRows));
    });
}

std::string check_weight(int C, stream_t stream) {
    const auto values = reference::wide_values<float>(kRows * static_cast<size_t>(C), 95);
    const CodeRanges<e4m3> expected(Bounded::exactly(values), kScale);
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const float* master = trial.input(values);
        const QuantizedResults<e4m3> to(trial, kRows, C, kScale);
        trial.run_twice([&] { quantize_weight(to.both(), master, kRows, C, pass, stream); });
        to.compare(expected, pass);
    });
}

// In two slices, and turned afterwards.
std::string check_weight_slices(int C, stream_t stream) {
    const size_t n = kRows * static_cast<size_t>(C), cut = n / 3 / 64 * 64;
    const auto values = reference::wide_values<float>(n, 96);
    const CodeRanges<e4m3> expected(Bounded::exactly(values), kScale);
    constexpr QuantizePass passes[] = {QuantizePass::measure, QuantizePass::write, QuantizePass::write_counted,
                                       QuantizePass::replay};
    return each_pass(passes, stream, [&](Trial& trial, QuantizePass pass) {
        const float* master = trial.input(values);
        const QuantizedResults<e4m3> to(trial, kRows, C, kScale);
        trial.run_twice([&] {
            quantize_flat(to.row, master, cut, to.state, pass, stream);
            quantize_flat(to.row + cut, master + cut, n - cut, to.state, pass, stream);
            if (pass != QuantizePass::measure) transpose_codes(to.transposed, to.row, kRows, C, stream);
        });
        to.compare(expected, pass);
    });
}

template <class F8>
void add_gradients(Items& items, const KernelUse& use, const char* format) {
    const bool bias = use.biases;
    for (const int width : std::set{use.channels, use.attention_heads().qkv_width(), use.fc_channels()})
        items.push_back({strprintf("quantize %s %s C=%d", format, bias ? "with bias gradient" : "of gradients", width),
                         "kernels", "", [=](stream_t s) { return check_gradient<F8>(width, bias, s); }});
}

}  // namespace

void add_quantize(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    const int C = use.channels, width = use.attention_heads().width();
    items.push_back({strprintf("quantize e4m3 C=%d", width), "kernels", "",
                     [width](stream_t s) { return check_activation(width, s); }});
    use.e4m3_gradients ? add_gradients<e4m3>(items, use, "e4m3") : add_gradients<e5m2>(items, use, "e5m2");
    items.push_back(
        {strprintf("quantize_weight C=%d", C), "kernels", "", [C](stream_t s) { return check_weight(C, s); }});
    if (use.several_ranks)
        items.push_back({strprintf("quantize_flat, transpose_codes C=%d", C), "kernels", "",
                         [C](stream_t s) { return check_weight_slices(C, s); }});
}

}  // namespace llmc::check
