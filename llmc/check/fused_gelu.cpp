// GELU that quantizes, at the run's hidden width: codes against FP64 values and what FP32 arithmetic may cost.
#include "llmc/check/families.h"
#include "llmc/check/gelu_values.h"
#include "llmc/check/quantized_results.h"
#include "llmc/kernels/activation.h"

namespace llmc::check {

namespace {

constexpr int kRows = 144;

std::string check_forward(int C, stream_t stream) {
    const auto x = reference::random_normal<bf16>(kRows * static_cast<size_t>(C), 2.0f, 131);
    const float scale = 100.0f;  // some saturate
    const CodeRanges<e4m3> expected(gelu_values(x), scale);
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16* inp = trial.input(x);
        const QuantizedResults<e4m3> to(trial, kRows, C, scale);
        trial.run_twice([&] { gelu_forward_fp8(to.both(), inp, kRows, C, pass, stream); });
        to.compare(expected, pass);
    });
}

template <class F8>
std::string check_backward(int hidden, stream_t stream) {
    const size_t C = static_cast<size_t>(hidden), n = kRows * C;
    const auto x = reference::random_normal<bf16>(n, 1.5f, 132), g = reference::random_normal<bf16>(n, 1.0f, 133, 0.3f);
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 40000.0f;  // some saturate
    const Bounded gradient = gelu_gradients(g, x);
    const CodeRanges<F8> expected(gradient, scale);
    const auto before = reference::random_normal<float>(C, 10.0f, 134);
    const Bounded sums = gelu_bias_gradient(gradient, kRows, before);
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16 *inp = trial.input(x), *dout = trial.input(g);
        float* dbias = trial.result("dbias", {{"", C}}, before);
        float* scratch = trial.scratch<float>(quantize_scratch(kRows, hidden));
        const QuantizedResults<F8> to(trial, kRows, hidden, scale);
        trial.run_twice(
            [&] { gelu_backward_fp8<F8>(to.both(), dbias, scratch, dout, inp, kRows, hidden, true, pass, stream); });
        to.compare(expected, pass);
        if (pass == QuantizePass::measure)
            trial.equal(dbias, before);
        else
            trial.within(dbias, sums);
    });
}

}  // namespace

void add_fused_gelu(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor || use.activation != Activation::gelu) return;
    const int C = use.hidden;
    items.push_back({strprintf("gelu_forward_fp8 C=%d", C), "kernels", "gelu_fp8",
                     [C](stream_t s) { return check_forward(C, s); }});
    if (use.e4m3_gradients)
        items.push_back({strprintf("gelu_backward_fp8 e4m3 C=%d", C), "kernels", "gelu_backward_fp8",
                         [C](stream_t s) { return check_backward<e4m3>(C, s); }});
    else
        items.push_back({strprintf("gelu_backward_fp8 e5m2 C=%d", C), "kernels", "gelu_backward_fp8",
                         [C](stream_t s) { return check_backward<e5m2>(C, s); }});
}

}  // namespace llmc::check
