// SwiGLU at the run's hidden width against FP64.
#include "llmc/kernels/activation.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_swiglu.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kRows = 149;
constexpr size_t kRowCount = kRows;

template <class Real>
std::string check_swiglu(int hidden, stream_t stream) {
    const size_t F = static_cast<size_t>(hidden);
    const auto x = reference::random_normal<Real>(kRowCount * 2 * F, 2.0f, 181),
               g = reference::random_normal<Real>(kRowCount * F, 1.0f, 182, 0.3f);
    Trial trial(stream);
    const Real *inp = trial.input(x), *dout = trial.input(g);
    Real *out = trial.result<Real>("out", {{"n", kRowCount}, {"", F}}),
         *dinp = trial.result<Real>("dinp", {{"n", kRowCount}, {"part", 2}, {"", F}});
    trial.run_twice([&] {
        swiglu_forward<Real>(out, inp, kRows, hidden, stream);
        swiglu_backward<Real>(dinp, dout, inp, kRows, hidden, stream);
    });
    const auto expected = reference::swiglu(reference::to_doubles(x), reference::to_doubles(g), hidden);
    trial.within(out, rounded<Real>(Bounded(expected.out, expected.out_bound)));
    trial.within(dinp, rounded<Real>(Bounded(expected.dinp, expected.dinp_bound)));
    return trial.problem();
}

template <class Real>
void add(Items& items, int F) {
    items.push_back({strprintf("swiglu %s F=%d", type_name<Real>(), F), "kernels", "",
                     [F](stream_t s) { return check_swiglu<Real>(F, s); }});
}

}  // namespace

void add_swiglu(Items& items, const KernelUse& use) {
    if (use.activation == Activation::swiglu) use.bf16 ? add<bf16>(items, use.hidden) : add<float>(items, use.hidden);
}

}  // namespace llmc::check
