// Computes products again in BF16. See observer.h.
#include "llmc/linear/observer.h"

#include "llmc/device/trace.h"
#include "llmc/kernels/differences.h"
#include "llmc/kernels/elementwise.h"

namespace llmc {
namespace {

using Layer = LinearObserver::Layer;

size_t input_count(const Layer& layer, int rows) { return static_cast<size_t>(rows) * layer.inputs(); }
size_t output_count(const Layer& layer, int rows) { return static_cast<size_t>(rows) * layer.outputs(); }
size_t weight_count(const Layer& layer) { return input_count(layer, layer.outputs()); }

}  // namespace

void LinearObserver::plan(const Layer& layer, Arena& activations) {
    if (!fp8_.config().probe) return;
    const size_t inputs = input_count(layer, layer.rows()), outputs = output_count(layer, layer.rows());
    const size_t weights = weight_count(layer);
    activations.plan_shared("probe x", &x_, inputs);
    for (const size_t bytes : {outputs * sizeof(bf16), inputs * sizeof(bf16), weights * sizeof(float)})
        activations.plan_shared("probe result", &result_, bytes);
    for (const size_t n : {inputs, outputs, weights})
        activations.plan_shared("difference parts", &parts_, difference_parts(n));
    if (layers_.codes().from_working_copy(layer.fp8_number())) return;
    activations.plan_shared("probe weight", &weight_, weights);
    const ShardLayout& layout = layers_.weights().layout();
    if (!layout.is_sliced()) return;
    activations.plan_shared("probe master", &master_, weights);
    activations.plan_shared("probe workspace", &workspace_,
                            layout.comm().template all_reduce_workspace<float>(weights));
}

bf16* LinearObserver::input_values(const Layer& layer) {
    x_of_ = layer.fp8_number();
    return x_;
}

template <class T>
void LinearObserver::note_difference(const Layer& layer, Fp8Probed product, const T* made, size_t n, const Pass& pass) {
    add_differences(laboratory().probed_sums(layer.fp8_number(), product), parts_, made,
                    reinterpret_cast<const T*>(result_), n, pass.stream);
}

// The weight as a run in BF16 would have it: cast from the masters, or the working copy if the codes are made from
// that.
const bf16* LinearObserver::probed_weight(const Layer& layer, stream_t stream) {
    if (layers_.codes().from_working_copy(layer.fp8_number())) return layer.weight();
    Weights<bf16>& weights = layers_.weights();
    const ParameterTable::Place place = layer.weight_place();
    const StateArray master = weights.layout().is_sliced() ? master_ : weights.master(place.unit, place.tensor);
    if (weights.layout().is_sliced()) weights.collect_master(master_, place.unit, place.tensor, workspace_, stream);
    if (master.format == StateFormat::bf16) return master.as<bf16>();
    cast(weight_, master.as<float>(), weight_count(layer), stream);
    return weight_;
}

// A probe's products are not part of the step, so they are not counted.
void LinearObserver::after_forward(const Layer& layer, const bf16* out, const Operand<bf16>& x, const bf16* bias,
                                   const Pass& pass) {
    if (!wants_values(pass)) return;
    const ProfileRange range("probe forward", pass.stream);
    Matmul& matmul = layers_.matmul();
    const ProductCounts counts = matmul.counts();
    matmul.forward(reinterpret_cast<bf16*>(result_), x.value, probed_weight(layer, pass.stream), bias, pass.N(),
                   layer.inputs(), layer.outputs(), pass.stream);
    matmul.reset_counts(counts);
    note_difference(layer, Fp8Probed::forward, out, output_count(layer, pass.N()), pass);
}

// The weight gradient is not compared if it was added to earlier ones, or if the block did not write its input's values
// again (Linear::write_observed()).
void LinearObserver::after_backward(const Layer& layer, const bf16* dinp, const float* dweight,
                                    const Gradient<bf16>& dout, const Operand<bf16>& x, const Pass& pass) {
    if (!wants_values(pass)) return;
    if (!dout.value) throw Error(ExitCode::failure, layer.name() + ": its output's gradient exists in FP8 alone");
    const ProfileRange range("probe backward", pass.stream);
    Matmul& matmul = layers_.matmul();
    const ProductCounts counts = matmul.counts();
    const int N = pass.N(), C = layer.inputs(), OC = layer.outputs();
    matmul.dgrad(reinterpret_cast<bf16*>(result_), dout.value, probed_weight(layer, pass.stream), N, C, OC,
                 pass.stream);
    note_difference(layer, Fp8Probed::dgrad, dinp, input_count(layer, N), pass);
    if (!pass.accumulate && (x.value != x_ || x_of_ == layer.fp8_number())) {
        matmul.wgrad(reinterpret_cast<float*>(result_), dout.value, x.value, N, C, OC, false, pass.stream);
        note_difference(layer, Fp8Probed::wgrad, dweight, weight_count(layer), pass);
    }
    matmul.reset_counts(counts);
}

}  // namespace llmc
