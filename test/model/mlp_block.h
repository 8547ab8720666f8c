// A second type of block, which shows that only a block's own file and table know its contents: a norm and an MLP
// twice as wide as the stream, without attention.
#pragma once
#include <algorithm>
#include <string>

#include "llmc/kernels/activation.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/norm.h"
#include "llmc/kernels/quantize.h"
#include "llmc/model/block.h"
#include "llmc/train/trainer.h"

namespace llmc::test {

inline ModelTable mlp_table(const ModelConfig& config) {
    const int C = config.channels;
    ModelTable table = kGpt2.table(config);
    table.attention = table.hf_transposed = false;
    table.block = {{"norm.weight", "norm.weight", C, 0, Init::ones},
                   {"norm.bias", "norm.bias", C, 0, Init::zeros},
                   {"up.weight", "mlp.up.weight", 2 * C, C, Init::normal},
                   {"up.bias", "mlp.up.bias", 2 * C, 0, Init::zeros},
                   {"down.weight", "mlp.down.weight", C, 2 * C, Init::residual}};
    return table;
}

template <class Real>
class MlpBlock : public Block<Real> {
public:
    MlpBlock(ModelContext<Real>& c, int layer)
        : up_(c.linear, block_prefix(layer) + "up", c.setup.N(), {.kind = "up"}),
          down_(c.linear, block_prefix(layer) + "down", c.setup.N(), {.kind = "down", .has_addend = true}),
          norm_(c, block_prefix(layer) + "norm", true) {
        const size_t N = c.N(), C = c.C();
        c.activations.plan(&residual_, N * C);
        c.activations.plan(&hidden_, N * 2 * C);
        for (auto [name, tensor] : {std::pair{"dbranch", &dbranch_}, {"dhidden", &dhidden_}})
            c.activations.plan_shared(name, tensor, N * 2 * C);
    }
    static size_t scratch(const ModelConfig& config, int B, int T) {
        const int N = B * T, C = 2 * config.channels;
        return std::max({norm_backward_scratch(NormKind::layer, N, C), activation_scratch(N, C),
                         bias_gradient_scratch(N, C), quantize_scratch(N, C),
                         norm_backward_fp8_scratch(NormKind::layer, N, C)});
    }
    Real* residual() const override { return residual_; }
    Linear<Real>& last_layer() override { return down_; }

    void forward(Real* out, const Pass& pass) override {
        up_in_ = norm_.forward(up_, residual_, pass);
        up_.forward(hidden_, up_in_, pass);
        down_in_ = activate(pass);
        down_.forward(out, down_in_, pass, residual_);
    }
    void decode(Real* out, int first, const Pass& pass) override {
        const size_t begin = static_cast<size_t>(first) * static_cast<size_t>(up_.shape().C);
        up_in_ = norm_.forward(up_, residual_ + begin, pass);
        up_.forward(hidden_, up_in_, pass);
        down_.forward(out + begin, activate(pass), pass, residual_ + begin);
    }
    bool keeps_rows() const override { return true; }
    void recompute(const Pass&) override {}
    Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) override {
        down_.backward(dhidden_, dstream, down_in_, pass);
        activation_backward<Real>(Activation::gelu, dhidden_, {up_.dbias(), pass.scratch, pass.accumulate}, dhidden_,
                                  hidden_, pass.N, up_.shape().OC, pass.stream);
        up_.backward(dbranch_, {.value = dhidden_, .bias_done = true}, up_in_, pass);
        return norm_.backward(dstream.value, dstream.value, dbranch_, residual_, before, pass);
    }

private:
    Operand<Real> activate(const Pass& pass) {
        const int N = pass.N, F = up_.shape().OC;
        Operand<Real> active = down_.input_target(pass);
        if constexpr (kCanBeFp8<Real>)
            if (active.casts()) {
                do {
                    activation_forward_fp8(Activation::gelu, active.codes, hidden_, N, F, active.cast_pass,
                                           pass.stream);
                } while (!down_.accept(active, pass));
                return active;
            }
        activation_forward(Activation::gelu, active.value, hidden_, N, F, pass.stream);
        return down_.input(active.value, nullptr, pass);
    }

    Linear<Real> up_, down_;
    Norm<Real> norm_;
    Real *residual_, *hidden_, *dbranch_, *dhidden_;
    Operand<Real> up_in_, down_in_;
};

inline constexpr Architecture kMlp = architecture_of<MlpBlock>("mlp", mlp_table, &kGpt2Description);

inline TrainerConfig mlp_config(const Fp8Config* fp8) {
    TrainerConfig config;
    config.model.name = "mlp";
    config.model.layers = 3, config.model.heads = 1, config.model.channels = 64, config.model.vocab = 101;
    config.model.context = 32;
    config.model.architecture = &kMlp;
    config.batch = 2, config.seq = 32;
    config.recompute = Recompute::none;
    if (fp8) config.precision = Precision::fp8, config.fp8 = *fp8;
    config.schedule = {ScheduleKind::constant, 3e-3, 0, 100, 0};
    config.clip = 1.0;
    return config;
}

}  // namespace llmc::test
