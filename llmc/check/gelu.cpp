// GELU at the run's hidden width against FP64.
#include "llmc/kernels/activation.h"

#include "llmc/check/families.h"
#include "llmc/check/gelu_values.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kRows = 149;
constexpr size_t kRowCount = kRows;

template <class Real>
std::string check_forward(int hidden, stream_t stream) {
    const size_t C = static_cast<size_t>(hidden), n = kRowCount * C;
    const auto x = reference::random_normal<Real>(n, 2.0f, 41);
    Trial trial(stream);
    const Real* inp = trial.input(x);
    Real* out = trial.result<Real>("out", {{"n", kRowCount}, {"", C}});
    trial.run_twice([&] { gelu_forward<Real>(out, inp, n, stream); });
    trial.within(out, rounded<Real>(gelu_values(x)));
    return trial.problem();
}

template <class Real>
std::string check_backward(int hidden, stream_t stream) {
    const size_t C = static_cast<size_t>(hidden), n = kRowCount * C;
    const auto x = reference::random_normal<Real>(n, 1.5f, 42), g = reference::random_normal<Real>(n, 1.0f, 43, 0.3f);
    Trial trial(stream);
    const Real *inp = trial.input(x), *dout = trial.input(g);
    Real* dinp = trial.result<Real>("dinp", {{"n", kRowCount}, {"", C}});
    const std::vector<float> before = reference::random_normal<float>(C, 10.0f, 44);
    float* dbias = trial.result<float>("dbias", {{"", C}}, before);
    float* scratch = trial.scratch<float>(gelu_backward_scratch(kRows, hidden));
    trial.run_twice([&] { gelu_backward<Real>(dinp, dbias, scratch, dout, inp, kRows, hidden, true, stream); });
    const Bounded gradient = gelu_gradients(g, x);
    trial.within(dinp, rounded<Real>(gradient));
    trial.within(dbias, gelu_bias_gradient(gradient, kRows, before));
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const int C = use.hidden;
    const std::string suffix = strprintf(" %s C=%d", type_name<Real>(), C);
    items.push_back({"gelu_forward" + suffix, "kernels", "", [C](stream_t s) { return check_forward<Real>(C, s); }});
    items.push_back({"gelu_backward" + suffix, "kernels", "", [C](stream_t s) { return check_backward<Real>(C, s); }});
}

}  // namespace

void add_gelu(Items& items, const KernelUse& use) {
    if (use.activation == Activation::gelu) use.bf16 ? add<bf16>(items, use) : add<float>(items, use);
}

}  // namespace llmc::check
