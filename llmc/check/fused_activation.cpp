// SwiGLU and ReLU squared that quantize, byte by byte against the plain kernels followed by quantize().
#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/kernels/activation.h"

namespace llmc::check {

namespace {

constexpr int kRows = 144;

struct Inputs {
    std::vector<bf16> inp, dout;  // (kRows, columns), (kRows, hidden)
    Inputs(int columns, int hidden)
        : inp(reference::random_normal<bf16>(kRows * static_cast<size_t>(columns), 2.0f, 185)),
          dout(reference::random_normal<bf16>(kRows * static_cast<size_t>(hidden), 1.0f, 186, 0.3f)) {}
};

// plain(values, inp, dout) computes values (kRows, columns), fused(codes, inp, dout, pass) their codes.
template <class F8, class Plain, class Fused>
std::string check_codes(const Inputs& inputs, int columns, float scale, stream_t stream, const Plain& plain,
                        const Fused& fused) {
    Trial plain_trial(stream);
    const bf16 *plain_inp = plain_trial.input(inputs.inp), *plain_dout = plain_trial.input(inputs.dout);
    bf16* values = plain_trial.result<bf16>("values", {{"n", kRows}, {"", static_cast<size_t>(columns)}});
    plain_trial.run_twice([&] { plain(values, plain_inp, plain_dout); });
    if (!plain_trial.problem().empty()) return "plain kernel: " + plain_trial.problem();
    return each_pass(kAllPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16 *inp = trial.input(inputs.inp), *dout = trial.input(inputs.dout);
        const QuantizedResults<F8> to(trial, kRows, columns, scale);
        trial.run_twice([&] { fused(to.both(), inp, dout, pass); });
        to.compare_with_cast(values, pass);
    });
}

constexpr float kForwardScale = 100.0f;  // some saturate
template <class F8>
constexpr float kBackwardScale = std::is_same_v<F8, e4m3> ? 200.0f : 20000.0f;

std::string check_swiglu(int F, stream_t stream) {
    return check_codes<e4m3>(
        Inputs(2 * F, F), F, kForwardScale, stream,
        [&](bf16* out, const bf16* inp, const bf16*) { swiglu_forward<bf16>(out, inp, kRows, F, stream); },
        [&](const auto& to, const bf16* inp, const bf16*, QuantizePass pass) {
            swiglu_forward_fp8(to, inp, kRows, F, pass, stream);
        });
}

template <class F8>
std::string check_swiglu_gradient(int F, stream_t stream) {
    return check_codes<F8>(
        Inputs(2 * F, F), 2 * F, kBackwardScale<F8>, stream,
        [&](bf16* dinp, const bf16* inp, const bf16* dout) {
            swiglu_backward<bf16>(dinp, dout, inp, kRows, F, stream);
        },
        [&](const auto& to, const bf16* inp, const bf16* dout, QuantizePass pass) {
            swiglu_backward_fp8<F8>(to, dout, inp, kRows, F, pass, stream);
        });
}

std::string check_relu2(int F, stream_t stream) {
    const size_t n = kRows * static_cast<size_t>(F);
    return check_codes<e4m3>(
        Inputs(F, F), F, kForwardScale, stream,
        [&](bf16* out, const bf16* inp, const bf16*) { relu2_forward<bf16>(out, inp, n, stream); },
        [&](const auto& to, const bf16* inp, const bf16*, QuantizePass pass) {
            relu2_forward_fp8(to, inp, kRows, F, pass, stream);
        });
}

template <class F8>
std::string check_relu2_gradient(int F, stream_t stream) {
    const size_t n = kRows * static_cast<size_t>(F);
    return check_codes<F8>(
        Inputs(F, F), F, kBackwardScale<F8>, stream,
        [&](bf16* dinp, const bf16* inp, const bf16* dout) { relu2_backward<bf16>(dinp, dout, inp, n, stream); },
        [&](const auto& to, const bf16* inp, const bf16* dout, QuantizePass pass) {
            relu2_backward_fp8<F8>(to, dout, inp, kRows, F, pass, stream);
        });
}

}  // namespace

void add_fused_activation(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor || use.activation == Activation::gelu) return;
    const bool gated = use.activation == Activation::swiglu;
    const char *const name = gated ? "swiglu" : "relu2", *const format = use.e4m3_gradients ? "e4m3" : "e5m2";
    const auto forward = gated ? check_swiglu : check_relu2;
    const auto backward = use.e4m3_gradients ? (gated ? check_swiglu_gradient<e4m3> : check_relu2_gradient<e4m3>)
                                             : (gated ? check_swiglu_gradient<e5m2> : check_relu2_gradient<e5m2>);
    const int F = use.hidden;
    items.push_back(
        {strprintf("%s_forward_fp8 F=%d", name, F), "kernels", "gelu_fp8", [=](stream_t s) { return forward(F, s); }});
    items.push_back({strprintf("%s_backward_fp8 %s F=%d", name, format, F), "kernels", "gelu_backward_fp8",
                     [=](stream_t s) { return backward(F, s); }});
}

}  // namespace llmc::check
