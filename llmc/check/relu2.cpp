// ReLU squared at the run's hidden width: one rounding of FP32 and one to what is stored, so to the bit.
#include "llmc/kernels/activation.h"

#include "llmc/check/families.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr size_t kRows = 149;

template <class Real>
std::string check_relu2(int hidden, stream_t stream) {
    const size_t F = static_cast<size_t>(hidden), n = kRows * F;
    const auto x = reference::random_normal<Real>(n, 2.0f, 183), g = reference::random_normal<Real>(n, 1.0f, 184, 0.3f);
    Trial trial(stream);
    const Real *inp = trial.input(x), *dout = trial.input(g);
    Real *out = trial.result<Real>("out", {{"n", kRows}, {"", F}}),
         *dinp = trial.result<Real>("dinp", {{"n", kRows}, {"", F}});
    trial.run_twice([&] {
        relu2_forward<Real>(out, inp, n, stream);
        relu2_backward<Real>(dinp, dout, inp, n, stream);
    });
    std::vector<Real> values, gradients;
    for (size_t i = 0; i < n; i++) {
        const float positive = std::max(to_float(x[i]), 0.0f);
        values.push_back(to<Real>(positive * positive));
        gradients.push_back(to<Real>(to_float(g[i]) * (2.0f * positive)));
    }
    trial.equal(out, values);
    trial.equal(dinp, gradients);
    return trial.problem();
}

template <class Real>
void add(Items& items, int F) {
    items.push_back({strprintf("relu2 %s F=%d", type_name<Real>(), F), "kernels", "",
                     [F](stream_t s) { return check_relu2<Real>(F, s); }});
}

}  // namespace

void add_relu2(Items& items, const KernelUse& use) {
    if (use.activation == Activation::relu2) use.bf16 ? add<bf16>(items, use.hidden) : add<float>(items, use.hidden);
}

}  // namespace llmc::check
