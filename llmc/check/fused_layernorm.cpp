// Layer norm that quantizes: what it writes beside the codes byte by byte against the plain kernel, or against FP64
// where no equal bits are promised; the codes against the values.
#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/check/reference_rows.h"
#include "llmc/kernels/norm.h"

namespace llmc::check {

namespace {

constexpr int kRows = 144;
constexpr size_t kRowCount = kRows;
constexpr float kForwardScale = 100.0f;  // some saturate

struct ForwardInputs {
    std::vector<bf16> a, b, weight, shift;
    explicit ForwardInputs(size_t C)
        : a(reference::random_normal<bf16>(kRowCount * C, 1.0f, 121, 0.5f)),
          b(reference::random_normal<bf16>(kRowCount * C, 0.7f, 122)),
          weight(reference::random_normal<bf16>(C, 0.3f, 123, 1.0f)),
          shift(reference::random_normal<bf16>(C, 0.3f, 124)) {}

    // Of the residual as it is stored.
    Bounded normed(const std::vector<bf16>& residual) const {
        const auto x = reference::to_doubles(residual);
        const auto statistics = reference::row_statistics(x, kRows, static_cast<int>(weight.size()));
        return Bounded(
            reference::normed_rows(x, statistics, reference::to_doubles(weight), reference::to_doubles(shift)),
            reference::kLayernormError, reference::kNormedFloor);
    }
};

struct ForwardResults {
    bf16* residual;
    float *mean, *rstd;
    ForwardResults(Trial& trial, size_t C)
        : residual(trial.result<bf16>("residual", {{"n", kRowCount}, {"", C}})),
          mean(trial.result<float>("mean", {{"n", kRowCount}})),
          rstd(trial.result<float>("rstd", {{"n", kRowCount}})) {}
};

std::string check_forward(int channels, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    const ForwardInputs inputs(C);
    Trial plain_trial(stream);
    const bf16 *inp1 = plain_trial.input(inputs.a), *inp2 = plain_trial.input(inputs.b);
    const bf16 *weight = plain_trial.input(inputs.weight), *shift = plain_trial.input(inputs.shift);
    const ForwardResults plain(plain_trial, C);
    bf16* normed = plain_trial.scratch<bf16>(kRowCount * C);
    plain_trial.run_twice([&] {
        layernorm_forward<bf16>(normed, plain.mean, plain.rstd, plain.residual, inp1, inp2, weight, shift, kRows,
                                channels, stream);
    });
    if (!plain_trial.problem().empty()) return "plain kernel: " + plain_trial.problem();
    const std::vector<bf16> residual = plain_trial.read(plain.residual);
    const CodeRanges<e4m3> expected(inputs.normed(residual), kForwardScale);
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const ForwardResults fused(trial, C);
        const QuantizedResults<e4m3> to(trial, kRows, channels, kForwardScale);
        const bf16 *own1 = trial.input(inputs.a), *own2 = trial.input(inputs.b);
        trial.run_twice([&] {
            layernorm_forward_fp8(to.both(), fused.mean, fused.rstd, fused.residual, own1, own2, weight, shift, kRows,
                                  channels, pass, stream);
        });
        const bool writes = pass != QuantizePass::measure;
        trial.equal(fused.residual, writes ? residual : std::vector<bf16>(residual.size(), bf16{0xFFFF}));
        trial.equal(fused.mean, plain_trial.read(plain.mean));
        trial.equal(fused.rstd, plain_trial.read(plain.rstd));
        to.compare(expected, pass);
    });
}

struct BackwardInputs {
    std::vector<bf16> inp, dout, dresidual, weight;
    std::vector<float> mean, rstd;
    reference::LayernormGradient expected;

    explicit BackwardInputs(size_t C)
        : inp(reference::random_normal<bf16>(kRowCount * C, 2.0f, 125, 0.5f)),
          dout(reference::random_normal<bf16>(kRowCount * C, 1.0f, 126, 0.2f)),
          dresidual(reference::random_normal<bf16>(kRowCount * C, 1.0f, 127, 0.3f)),
          weight(reference::random_normal<bf16>(C, 0.3f, 128, 1.0f)) {
        const auto x = reference::to_doubles(inp);
        const auto statistics = reference::row_statistics(x, kRows, static_cast<int>(C));
        mean.assign(statistics.mean.begin(), statistics.mean.end());
        rstd.assign(statistics.rstd.begin(), statistics.rstd.end());
        expected =
            reference::layernorm_gradient(x, reference::to_doubles(dout), reference::to_doubles(weight), statistics);
        for (size_t i = 0; i < x.size(); i++) expected.dinp[i] += static_cast<double>(to_float(dresidual[i]));
    }
};

template <class F8>
std::string check_backward(int channels, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    const BackwardInputs inputs(C);
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 30000.0f;  // some saturate
    constexpr QuantizePass passes[] = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure};
    return each_pass(passes, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16 *inp = trial.input(inputs.inp), *dout = trial.input(inputs.dout),
                   *dresidual = trial.input(inputs.dresidual), *weight = trial.input(inputs.weight);
        const float *mean = trial.input(inputs.mean), *rstd = trial.input(inputs.rstd);
        bf16* dinp = trial.result<bf16>("dinp", {{"n", kRowCount}, {"", C}});
        float *dweight = trial.result<float>("dweight", {{"", C}}), *dshift = trial.result<float>("dshift", {{"", C}}),
              *dbias = trial.result<float>("dbias", {{"", C}});
        float *scratch = trial.scratch<float>(layernorm_backward_fp8_scratch(kRows, channels)),
              *parts = trial.scratch<float>(layernorm_backward_fp8_bias_parts(kRows, channels));
        const QuantizedResults<F8> to(trial, kRows, channels, scale);
        trial.run_twice([&] {
            layernorm_backward_fp8<F8>(to.both(), parts, dinp, dresidual, dweight, dshift, scratch, dout, inp, weight,
                                       mean, rstd, kRows, channels, false, pass, stream);
            if (pass != QuantizePass::measure) finish_bias_gradient(dbias, parts, kRows, channels, false, stream);
        });
        const auto& expected = inputs.expected;
        trial.within(dinp, Bounded(expected.dinp, reference::rounding_error<bf16>() + reference::kLayernormError,
                                   reference::kNormedFloor));
        trial.within(dweight, Bounded(expected.dweight, reference::kLayernormSumError, 1.0 + kRows));
        trial.within(dshift, Bounded(expected.dshift, reference::kLayernormSumError, 1.0 + kRows));
        to.compare_with_cast(dinp, pass);  // of the rounded gradient, as is the bias gradient
        if (pass == QuantizePass::measure) return;
        const auto sums = reference::column_sums(reference::to_floats(trial.read(dinp)), channels);
        trial.within(dbias, Bounded(sums, reference::kColumnSumError, 1.0 + 0.3 * kRows));
    });
}

}  // namespace

void add_fused_layernorm(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor || !use.layer_norm) return;
    const int C = use.channels;
    items.push_back({strprintf("layernorm_forward_fp8 C=%d", C), "kernels", "layernorm_fp8",
                     [C](stream_t s) { return check_forward(C, s); }});
    if (C > kWidestFusedGradient) return;
    if (use.e4m3_gradients)
        items.push_back({strprintf("layernorm_backward_fp8 e4m3 C=%d", C), "kernels", "layernorm_backward_fp8",
                         [C](stream_t s) { return check_backward<e4m3>(C, s); }});
    else
        items.push_back({strprintf("layernorm_backward_fp8 e5m2 C=%d", C), "kernels", "layernorm_backward_fp8",
                         [C](stream_t s) { return check_backward<e5m2>(C, s); }});
}

}  // namespace llmc::check
