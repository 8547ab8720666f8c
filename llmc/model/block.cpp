// Chooses the kernels of a norm: plain, or with a cast to FP8. Copies the blocks' inputs to the host and back.
#include "llmc/model/block.h"

namespace llmc {

template <class Real>
Norm<Real>::Norm(ModelContext<Real>& context, const std::string& name, bool kept)
    : weights_(context.weights),
      gradients_(context.gradients),
      channels_(context.setup.model.channels),
      eps_(static_cast<float>(context.setup.model.norm_eps)),
      weight_(context.weights.table().look_up(name + ".weight")),
      bias_(context.weights.table().look_up(name + ".bias")),
      casts_gradient_(context.linear.gradients_are_cast() && channels_ <= kWidestFusedGradient) {
    const std::string kind = name.substr(name.rfind('.') + 1);
    if (bias_) context.plan(kept, (kind + " mean").c_str(), &mean_, context.N());
    context.plan(kept, (kind + " rstd").c_str(), &rstd_, context.N());
    if (casts_gradient_)
        context.plan(false, "bias parts", &bias_parts_, norm_backward_fp8_bias_parts(context.setup.N(), channels_));
}

template <class Real>
NormParameters<Real> Norm<Real>::parameters() const {
    NormParameters<Real> norm{value(weight_), value(bias_)};
    if (!bias_) norm.eps = eps_;
    return norm;
}

template <class Real>
Operand<Real> Norm<Real>::forward(Linear<Real>& reader, const Real* inp, const Pass& pass) {
    Operand<Real> out = reader.input_target(pass);
    if constexpr (kCanBeFp8<Real>)
        if (out.casts()) {
            do {
                norm_forward_fp8(parameters(), out.codes, mean_, rstd_, inp, pass.N, channels_, out.cast_pass,
                                 pass.stream);
            } while (!reader.accept(out, pass));
            return out;
        }
    forward(out.value, inp, pass);
    return reader.input(out.value, nullptr, pass);
}

template <class Real>
Gradient<Real> Norm<Real>::backward(Real* dinp, const Real* dresidual, const Real* dout, const Real* inp,
                                    Linear<Real>* added, const Pass& pass) {
    const NormParameters<Real> norm = parameters();
    const NormGradients gradients{gradient(weight_), gradient(bias_), norm.weight ? pass.scratch : nullptr,
                                  pass.accumulate};
    if constexpr (kCanBeFp8<Real>)
        if (added && added->is_fp8() && casts_gradient_) {
            Gradient<Real> out = added->gradient_target(pass);
            out.value = dinp;
            out.bias_parts = bias_parts_;
            norm_backward_fp8(norm, gradients, *out.e5m2_codes(), bias_parts_, dinp, dresidual, dout, inp, mean_, rstd_,
                              pass.N, channels_, out.cast_pass, pass.stream);
            added->accept(out, pass);
            return out;
        }
    norm_backward(norm, gradients, dinp, dresidual, dout, inp, mean_, rstd_, pass.N, channels_, pass.stream);
    return {dinp};
}

template class Norm<float>;
template class Norm<bf16>;

OffloadedResiduals::OffloadedResiduals(size_t blocks, size_t bytes) : bytes_(bytes), kept_(blocks) {
    for (char*& input : kept_) arena_.plan(&input, bytes);
}

void OffloadedResiduals::allocate(const std::vector<void*>& inputs) {
    if (!is_used()) return;
    arena_.allocate();
    inputs_ = inputs;
    copies_ = create_stream();
    for (Buffer& buffer : buffers_)
        for (OwnedEvent* event : {&buffer.used, &buffer.copied}) *event = create_event();
}

void OffloadedResiduals::keep(size_t block, stream_t stream) {
    if (!is_used()) return;
    Buffer& buffer = buffer_of(block);
    record(buffer.used, stream);
    wait(copies_, buffer.used);
    {
        const ProfileRange range("residual to the host", copies_);
        copy_on_device(kept_[block], inputs_[block], bytes_, copies_);
    }
    record(buffer.copied, copies_);
    buffer.block = block;
}

void OffloadedResiduals::fetch(size_t block) {
    Buffer& buffer = buffer_of(block);
    if (buffer.block == block) return;
    wait(copies_, buffer.used);
    {
        const ProfileRange range("residual to the device", copies_);
        copy_on_device(inputs_[block], kept_[block], bytes_, copies_);
    }
    record(buffer.copied, copies_);
    buffer.block = block;
}

void OffloadedResiduals::bring(size_t block, stream_t stream) {
    if (!is_used()) return;
    fetch(block);
    wait(stream, buffer_of(block).copied);
    if (block > 0) fetch(block - 1);
}

}  // namespace llmc
