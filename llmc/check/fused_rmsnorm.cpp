// RMS norm that quantizes: forward byte by byte against the plain kernel followed by quantize(); backward against FP64,
// and its codes byte by byte against quantize() of the gradient that it writes.
#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/check/reference_rms.h"
#include "llmc/check/reference_rows.h"
#include "llmc/kernels/norm.h"

namespace llmc::check {

namespace {

constexpr int kRows = 144;
constexpr size_t kRowCount = kRows;
constexpr float kEps = 0.01f, kForwardScale = 100.0f;  // some saturate

std::vector<Axis> elements(size_t C) { return {{"n", kRowCount}, {"", C}}; }

struct Forward {
    const bf16 *inp1, *inp2, *weight;
    bf16* residual;
    float* rstd;
    Forward(Trial& trial, size_t C, bool gains)
        : inp1(trial.input(reference::random_normal<bf16>(kRowCount * C, 1.0f, 172, 0.5f))),
          inp2(trial.input(reference::random_normal<bf16>(kRowCount * C, 0.7f, 173))),
          weight(trial.input_or_none(example_gains<bf16>(C, gains))),
          residual(trial.result<bf16>("residual", elements(C))),
          rstd(trial.result<float>("rstd", {{"n", kRowCount}})) {}
};

std::string check_forward(int channels, bool gains, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    Trial plain_trial(stream);
    const Forward plain(plain_trial, C, gains);
    bf16* normed = plain_trial.result<bf16>("normed", elements(C));
    plain_trial.run_twice([&] {
        rmsnorm_forward<bf16>(normed, plain.rstd, plain.residual, plain.inp1, plain.inp2, plain.weight, kRows, channels,
                              kEps, stream);
    });
    if (!plain_trial.problem().empty()) return "plain kernel: " + plain_trial.problem();
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const Forward fused(trial, C, gains);
        const QuantizedResults<e4m3> to(trial, kRows, channels, kForwardScale);
        trial.run_twice([&] {
            rmsnorm_forward_fp8(to.both(), fused.rstd, fused.residual, fused.inp1, fused.inp2, fused.weight, kRows,
                                channels, kEps, pass, stream);
        });
        const bool writes = pass != QuantizePass::measure;
        trial.equal(fused.residual,
                    writes ? plain_trial.read(plain.residual) : std::vector<bf16>(kRowCount * C, bf16{0xFFFF}));
        trial.equal(fused.rstd, plain_trial.read(plain.rstd));
        to.compare_with_cast(normed, pass);
    });
}

template <class F8>
std::string check_backward(int channels, bool gains, stream_t stream) {
    const size_t C = static_cast<size_t>(channels), n = kRowCount * C;
    const auto x = reference::random_normal<bf16>(n, 2.0f, 174, 0.5f),
               g = reference::random_normal<bf16>(n, 1.0f, 175, 0.2f),
               r = reference::random_normal<bf16>(n, 1.0f, 176, 0.3f), w = example_gains<bf16>(C, gains);
    const auto xd = reference::to_doubles(x);
    const auto statistics = reference::rms_rstd(xd, kRows, channels, static_cast<double>(kEps));
    auto expected =
        reference::rms_gradient(xd, reference::to_doubles(g), statistics, reference::to_doubles(w), channels);
    for (size_t i = 0; i < n; i++) expected.dinp[i] += static_cast<double>(to_float(r[i]));
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 30000.0f;  // some saturate
    constexpr QuantizePass passes[] = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure};
    return each_pass(passes, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16 *inp = trial.input(x), *dout = trial.input(g), *weight = trial.input_or_none(w);
        const float* rstd = trial.input(std::vector<float>(statistics.begin(), statistics.end()));
        bf16* dinp = trial.result("dinp", elements(C), r);  // over the residual's gradient
        float* dweight = gains ? trial.result<float>("dweight", {{"", C}}) : nullptr;
        float* scratch = gains ? trial.scratch<float>(rmsnorm_backward_fp8_scratch(kRows, channels)) : nullptr;
        const QuantizedResults<F8> to(trial, kRows, channels, scale);
        trial.run_twice([&] {
            rmsnorm_backward_fp8<F8>(to.both(), dinp, dinp, dweight, scratch, dout, inp, weight, rstd, kRows, channels,
                                     false, pass, stream);
        });
        trial.within(dinp, Bounded(expected.dinp, reference::rounding_error<bf16>() + reference::kLayernormError,
                                   reference::kNormedFloor));
        if (gains) trial.within(dweight, Bounded(expected.dweight, reference::kLayernormSumError, 1.0 + kRows));
        to.compare_with_cast(dinp, pass);
    });
}

void add(Items& items, const KernelUse& use, bool gains) {
    const int C = use.channels;
    const char* const suffix = gains ? "" : " without gains";
    items.push_back({strprintf("rmsnorm_forward_fp8 C=%d%s", C, suffix), "kernels", "layernorm_fp8",
                     [=](stream_t s) { return check_forward(C, gains, s); }});
    if (C > kWidestFusedGradient) return;
    items.push_back({strprintf("rmsnorm_backward_fp8 %s C=%d%s", use.e4m3_gradients ? "e4m3" : "e5m2", C, suffix),
                     "kernels", "layernorm_backward_fp8", [=, e4m3_gradients = use.e4m3_gradients](stream_t s) {
                         return e4m3_gradients ? check_backward<e4m3>(C, gains, s) : check_backward<e5m2>(C, gains, s);
                     }});
}

}  // namespace

void add_fused_rmsnorm(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    if (use.rms_norm) add(items, use, true);
    if (use.rms_norm_without_gains) add(items, use, false);
}

}  // namespace llmc::check
