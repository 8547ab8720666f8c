// A block of GPT-2 (Radford et al. 2019): pre-norm, causal attention and an MLP with GELU in its tanh form, biases
// everywhere.
#include <algorithm>

#include "llmc/kernels/activation.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/quantize.h"
#include "llmc/model/architecture.h"
#include "llmc/model/decoder_block.h"

namespace llmc {
namespace {

template <class Real>
class Gpt2Block : public DecoderBlock<Real> {
public:
    Gpt2Block(ModelContext<Real>& context, int layer) : Base(context, layer, /*activation_in_place=*/true) {}
    static size_t scratch(const ModelConfig& config, int B, int T) {
        const int N = B * T, C = config.channels;
        return std::max({Norm<Real>::scratch(N, C), activation_scratch(N, 4 * C), bias_gradient_scratch(N, 3 * C),
                         quantize_scratch(N, 4 * C), attention_backward_fp8_scratch(B, T, config.attention_heads(0))});
    }

private:
    using Base = DecoderBlock<Real>;
    using Base::dbranch_, Base::dhidden_, Base::heads_, Base::qkv_, Base::qkv_out_;

    void make_qkv(const Operand<Real>& normed, int first, const Pass& pass) override {
        qkv_.forward(qkv_out_ + static_cast<size_t>(first) * heads_.qkv_width(), normed, pass);
    }
    Gradient<Real> attend_backward(const Pass& pass) override {
        if constexpr (kCanBeFp8<Real>) {
            Gradient<Real> dqkv = qkv_.gradient_target(pass);
            if (dqkv.casts_at_once() && Base::attention_casts(pass)) {
                attention_backward_fp8(*dqkv.e5m2_codes(), qkv_.dbias(), pass.scratch, this->delta_, dbranch_, qkv_out_,
                                       this->attention_, this->attention_low_, this->lse_, pass.B, pass.T, heads_,
                                       pass.accumulate, dqkv.cast_pass, pass.tickets, pass.stream, pass.documents);
                dqkv.bias_done = true;
                qkv_.accept(dqkv, pass);
                return dqkv;
            }
        }
        this->attention_backward_to_hidden(pass);
        return {dhidden_};
    }
};

ModelTable gpt2_table(const ModelConfig& config) {
    const int C = config.channels;
    ModelTable table;
    table.embedding = {
        {"wte", "transformer.wte.weight", config.vocab, C, Init::normal, config.padded_vocab()},
        {"wpe", "transformer.wpe.weight", config.context, C, Init::normal},
    };
    table.block = {
        {"ln1.weight", "ln_1.weight", C, 0, Init::ones},
        {"ln1.bias", "ln_1.bias", C, 0, Init::zeros},
        {.name = "qkv.weight",
         .hf_name = "attn.c_attn.weight",
         .rows = 3 * C,
         .columns = C,
         .init = Init::normal,
         .matrix_rows = {C, C, C}},
        {"qkv.bias", "attn.c_attn.bias", 3 * C, 0, Init::zeros},
        {"attn_proj.weight", "attn.c_proj.weight", C, C, Init::residual},
        {"attn_proj.bias", "attn.c_proj.bias", C, 0, Init::zeros},
        {"ln2.weight", "ln_2.weight", C, 0, Init::ones},
        {"ln2.bias", "ln_2.bias", C, 0, Init::zeros},
        {"fc.weight", "mlp.c_fc.weight", 4 * C, C, Init::normal},
        {"fc.bias", "mlp.c_fc.bias", 4 * C, 0, Init::zeros},
        {"fc_proj.weight", "mlp.c_proj.weight", C, 4 * C, Init::residual},
        {"fc_proj.bias", "mlp.c_proj.bias", C, 0, Init::zeros},
    };
    table.final = {
        {"lnf.weight", "transformer.ln_f.weight", C, 0, Init::ones},
        {"lnf.bias", "transformer.ln_f.bias", C, 0, Init::zeros},
    };
    return table;
}

}  // namespace

constinit const Architecture kGpt2 = architecture_of<Gpt2Block>("gpt2", gpt2_table, &kGpt2Description);

}  // namespace llmc
