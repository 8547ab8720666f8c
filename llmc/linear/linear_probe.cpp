// The probe of --fp8-probe-every: see linear.h.
#include "llmc/device/trace.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/kernels/outliers.h"
#include "llmc/linear/linear.h"

namespace llmc {

template <class Real>
void Linear<Real>::plan_probe() {
    const size_t N = static_cast<size_t>(rows_), C = static_cast<size_t>(inputs_), OC = static_cast<size_t>(outputs_);
    Arena& activations = layers_.activations_;
    auto& probe = layers_.probe_;
    activations.plan_shared("probe x", &probe.x, N * C);
    const size_t results[] = {N * OC * sizeof(bf16), N * C * sizeof(bf16), OC * C * sizeof(float)};
    for (const size_t bytes : results) activations.plan_shared("probe result", &probe.result, bytes);
    for (const size_t n : {N * OC, OC * C})  // those of N * C are planned anyway
        activations.plan_shared("moment parts", &layers_.moment_parts_, moment_parts(n));
    if (layers_.weight_codes_->from_working_copy(tensors_)) return;
    activations.plan_shared("probe weight", &probe.weight, OC * C);
    if (!layers_.weights_.layout().is_sliced()) return;
    activations.plan_shared("probe master", &probe.master, OC * C);
    activations.plan_shared("probe workspace", &probe.workspace,
                            layers_.weights_.layout().comm().template all_reduce_workspace<float>(OC * C));
}

// As it would be in a run in BF16: from the masters, or from the working copy, where the codes are made from that.
template <class Real>
const bf16* Linear<Real>::probed_weight(stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        if (layers_.weight_codes_->from_working_copy(tensors_)) return weight();
        const auto& probe = layers_.probe_;
        const size_t n = static_cast<size_t>(inputs_) * static_cast<size_t>(outputs_);
        const float* master = probe.master;
        if (layers_.weights_.layout().is_sliced())
            layers_.weights_.collect_master(probe.master, weight_.unit, weight_.tensor, probe.workspace, stream);
        else
            master = layers_.weights_.master(weight_.unit, weight_.tensor);
        cast(probe.weight, master, n, stream);
        return probe.weight;
    }
    return nullptr;
}

// From what FP8 has made to what is in the probe's result.
template <class Real>
template <class T>
void Linear<Real>::note_difference(Fp8Probed product, const T* made, size_t n, const Pass& pass) {
    add_differences(layers_.fp8_->probed_sums(tensors_, product), layers_.moment_parts_, made,
                    reinterpret_cast<const T*>(layers_.probe_.result), n, pass.stream);
}

// Products of a probe are not counted: they are no part of the step.
template <class Real>
void Linear<Real>::probe_forward(const Real* out, const Operand<Real>& x, const Real* bias, const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        const ProfileRange range("probe forward", pass.stream);
        const ProductCounts counts = layers_.matmul_.counts();
        const int N = pass.N();
        layers_.matmul_.forward(reinterpret_cast<bf16*>(layers_.probe_.result), x.value, probed_weight(pass.stream),
                                bias, N, inputs_, outputs_, pass.stream);
        layers_.matmul_.reset_counts(counts);
        note_difference(Fp8Probed::forward, out, static_cast<size_t>(N) * static_cast<size_t>(outputs_), pass);
    }
}

// A weight gradient that is added to what was there is not this product's alone: it is not compared. Nor is that of a
// block that does not make its input again (remember_input()).
template <class Real>
void Linear<Real>::probe_backward(const Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x,
                                  const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        if (!dout.value) throw Error(ExitCode::failure, name_ + ": its output's gradient exists in FP8 alone");
        const ProfileRange range("probe backward", pass.stream);
        const ProductCounts counts = layers_.matmul_.counts();
        const int N = pass.N(), C = inputs_, OC = outputs_;
        auto& probe = layers_.probe_;
        layers_.matmul_.dgrad(reinterpret_cast<bf16*>(probe.result), dout.value, probed_weight(pass.stream), N, C, OC,
                              pass.stream);
        note_difference(Fp8Probed::dgrad, dinp, static_cast<size_t>(N) * static_cast<size_t>(C), pass);
        if (!pass.accumulate && (x.value != probe.x || probe.holder == tensors_)) {
            layers_.matmul_.wgrad(reinterpret_cast<float*>(probe.result), dout.value, x.value, N, C, OC, false,
                                  pass.stream);
            note_difference(Fp8Probed::wgrad, static_cast<const float*>(layers_.gradients_.gradient(weight_)),
                            static_cast<size_t>(OC) * static_cast<size_t>(C), pass);
        }
        layers_.matmul_.reset_counts(counts);
    }
}

#define LLMC_INSTANTIATE_PROBE(Real)                                                                        \
    template void Linear<Real>::plan_probe();                                                               \
    template void Linear<Real>::probe_forward(const Real*, const Operand<Real>&, const Real*, const Pass&); \
    template void Linear<Real>::probe_backward(const Real*, const Gradient<Real>&, const Operand<Real>&, const Pass&);
LLMC_INSTANTIATE_PROBE(float)
LLMC_INSTANTIATE_PROBE(bf16)

}  // namespace llmc
