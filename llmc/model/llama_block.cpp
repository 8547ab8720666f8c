// A block of Llama 3 (arXiv 2407.21783): RMS norms, attention with rotary positions and grouped queries, a gated MLP,
// no biases. Tables describe its relatives. Mistral (arXiv 2310.06825) has a window. Qwen 2.5 (arXiv 2412.15115) has
// biases of queries, keys and values. Qwen3 (arXiv 2505.09388) norms queries and keys, with gains. "nano" is
// nanochat's plain form of October 2025: norms without gains, also of queries, keys and the embedding, a squared ReLU
// instead of the gate, and projections that start at 0.
#include <algorithm>
#include <optional>

#include "llmc/device/transfer.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/rope.h"
#include "llmc/model/decoder_block.h"

namespace llmc {
namespace {

// Text is generated in pieces. The last one may reach past the context by less than a piece.
constexpr int kMostPiece = 128;

template <class Real>
class LlamaBlock : public DecoderBlock<Real> {
public:
    LlamaBlock(ModelContext<Real>& c, int layer)
        : Base(c, layer, /*activation_in_place=*/false),
          has_qk_norm_(c.setup.model.table().qk_norm),
          positions_(std::min(setup_.N(), c.setup.model.context + kMostPiece)),
          weights_(c.weights),
          gradients_(c.gradients),
          query_gain_(c.weights.table().look_up(block_prefix(layer) + "q_norm.weight")),
          key_gain_(c.weights.table().look_up(block_prefix(layer) + "k_norm.weight")) {
        const size_t qkv = qkv_.shape().OC;
        if (has_qk_norm_) c.plan(this->keeps_rows(), "unrotated", &unrotated_, c.N() * qkv);
        const size_t angles = static_cast<size_t>(positions_) * static_cast<size_t>(heads_.HD / 2);
        c.constants.plan_shared("rope cos", &cos_, angles);
        c.constants.plan_shared("rope sin", &sin_, angles);
    }
    static size_t scratch(const ModelConfig& config, int B, int T) {
        const int N = B * T;
        const int widest = std::max({config.channels, config.qkv_channels(), 2 * config.mlp_channels()});
        const size_t bias = config.architecture == &kQwen2 ? bias_gradient_scratch(N, config.qkv_channels()) : 0;
        return std::max({Norm<Real>::scratch(N, config.channels), quantize_scratch(N, widest), bias,
                         qk_norm_backward_scratch(N, config.attention_heads(0))});
    }

    // Computes the rotary angles, which all blocks share.
    void allocated(stream_t stream) override {
        if (layer_ > 0) return;
        const RopeConfig& rope = setup_.model.rope;
        const RopeScaling scaling{static_cast<float>(rope.factor), static_cast<float>(rope.low_freq),
                                  static_cast<float>(rope.high_freq), rope.old_context};
        const RopeValues values = rope_values(static_cast<float>(rope.theta), scaling, heads_.HD, positions_);
        write_through(cos_, values.cos.data(), values.cos.size(), stream);
        write_through(sin_, values.sin.data(), values.sin.size(), stream);
        synchronize(stream);  // `values` ends here
    }

private:
    using Base = DecoderBlock<Real>;
    using Base::dhidden_, Base::heads_, Base::layer_, Base::qkv_, Base::qkv_out_, Base::setup_;
    using Place = std::optional<ParameterTable::Place>;

    void make_qkv(const Operand<Real>& normed, int first, const Pass& pass) override {
        const size_t begin = static_cast<size_t>(first) * heads_.qkv_width();
        Real* const out = qkv_out_ + begin;
        if (!has_qk_norm_) {
            qkv_.forward(out, normed, pass);
            return rope_forward(out, rope(), first, pass.N, pass.T, heads_, pass.stream);
        }
        qkv_.forward(unrotated_ + begin, normed, pass);
        qk_norm_rope_forward<Real>(out, unrotated_ + begin, gains(), rope(), first, pass.N, pass.T, heads_,
                                   static_cast<float>(setup_.model.norm_eps), pass.stream);
    }
    Gradient<Real> attend_backward(const Pass& pass) override {
        this->attention_backward_to_hidden(pass);
        rotate_back(pass);
        return {dhidden_};
    }
    // Turns dhidden_ in place from the gradient of attention's input into the gradient of qkv's output.
    void rotate_back(const Pass& pass) {
        if (!has_qk_norm_) return rope_backward(dhidden_, rope(), 0, pass.N, pass.T, heads_, pass.stream);
        QkGains<float> dgains{nullptr, nullptr};
        if (query_gain_) dgains = {gradients_.gradient(*query_gain_), gradients_.gradient(*key_gain_)};
        qk_norm_rope_backward<Real>(dhidden_, dgains, query_gain_ ? pass.scratch : nullptr, unrotated_, gains(), rope(),
                                    0, pass.N, pass.T, heads_, static_cast<float>(setup_.model.norm_eps),
                                    pass.accumulate, pass.stream);
    }
    QkGains<const Real> gains() const {
        if (!query_gain_) return {nullptr, nullptr};
        return {weights_.weight(*query_gain_), weights_.weight(*key_gain_)};
    }
    RopeTable rope() const { return {cos_, sin_, positions_}; }

    const bool has_qk_norm_;
    const int positions_;
    Weights<Real>& weights_;
    Gradients& gradients_;
    const Place query_gain_, key_gain_;  // (HD)

    Real* unrotated_ = nullptr;              // (N, NH + 2 NKV, HD)   before QK-norm and RoPE; only with QK-norm
    float *cos_ = nullptr, *sin_ = nullptr;  // (positions, HD / 2); shared
};

// Initial values of an architecture's tensors.
struct Starts {
    Init embedding, inner, output, head;
};

// `gains`: whether norms have gains. `mlp`: the tensors of Hugging Face's files that make up fc. `mlp_out`: fc_proj's
// name.
ModelTable table_of(const ModelConfig& config, const Starts& starts, bool gains, const std::vector<HfPart>& mlp,
                    const std::string& mlp_out, int swapped_halves) {
    const int C = config.channels, HD = config.head_dim(), F = config.mlp_channels();
    const int queries = config.attention_channels(), keys = config.key_value_heads() * HD;
    int fc = 0;
    for (const HfPart& part : mlp) fc += part.rows;
    ModelTable table;
    table.hf_blocks = "model.layers.";
    table.hf_transposed = false;
    const int padded = config.padded_vocab();
    table.embedding = {{"wte", "model.embed_tokens.weight", config.vocab, C, starts.embedding, padded}};
    const auto add_norm = [&](std::vector<TensorRow>& rows, const char* name, const char* hf_name, int count) {
        if (gains) rows.push_back({name, hf_name, count, 0, Init::ones});
    };
    add_norm(table.block, "ln1.weight", "input_layernorm.weight", C);
    const std::vector<HfPart> qkv = {{"self_attn.q_proj.weight", queries, swapped_halves},
                                     {"self_attn.k_proj.weight", keys, swapped_halves},
                                     {"self_attn.v_proj.weight", keys}};
    table.block.push_back({"qkv.weight", "", queries + 2 * keys, C, starts.inner, 0, qkv});
    table.block.push_back({"attn_proj.weight", "self_attn.o_proj.weight", C, queries, starts.output});
    add_norm(table.block, "ln2.weight", "post_attention_layernorm.weight", C);
    table.block.push_back({"fc.weight", "", fc, C, starts.inner, 0, mlp});
    table.block.push_back({"fc_proj.weight", mlp_out, C, F, starts.output});
    add_norm(table.final, "lnf.weight", "model.norm.weight", C);
    if (!config.tied) table.final.push_back({"lm_head.weight", "lm_head.weight", config.vocab, C, starts.head, padded});
    return table;
}

ModelTable gated_table(const ModelConfig& config, const Starts& starts) {
    const int F = config.mlp_channels();
    ModelTable table = table_of(config, starts, true, {{"mlp.gate_proj.weight", F}, {"mlp.up_proj.weight", F}},
                                "mlp.down_proj.weight", 0);
    table.activation = Activation::swiglu;
    return table;
}

ModelTable llama_table(const ModelConfig& config) {
    return gated_table(config, {Init::normal, Init::normal, Init::residual, Init::normal});
}

// `more`: tensors between qkv.weight and attn_proj.weight.
ModelTable qwen_table(const ModelConfig& config, const std::vector<TensorRow>& more) {
    ModelTable table = gated_table(config, {Init::normal, Init::normal, Init::normal, Init::normal});
    const auto attn_proj = std::find_if(table.block.begin(), table.block.end(),
                                        [](const TensorRow& row) { return row.name == "attn_proj.weight"; });
    table.block.insert(attn_proj, more.begin(), more.end());
    return table;
}

ModelTable qwen2_table(const ModelConfig& config) {
    const int queries = config.attention_channels(), keys = config.key_value_heads() * config.head_dim();
    const std::vector<HfPart> parts = {
        {"self_attn.q_proj.bias", queries}, {"self_attn.k_proj.bias", keys}, {"self_attn.v_proj.bias", keys}};
    return qwen_table(config, {{"qkv.bias", "", queries + 2 * keys, 0, Init::zeros, 0, parts}});
}

ModelTable qwen3_table(const ModelConfig& config) {
    const int HD = config.head_dim();
    ModelTable table = qwen_table(config, {{"q_norm.weight", "self_attn.q_norm.weight", HD, 0, Init::ones},
                                           {"k_norm.weight", "self_attn.k_norm.weight", HD, 0, Init::ones}});
    table.qk_norm = true;
    return table;
}

// nanochat rotates queries and keys in the other direction, which is the same model with the halves of each head
// swapped.
ModelTable nano_table(const ModelConfig& config) {
    ModelTable table = table_of(config, {Init::unit, Init::fan_in, Init::zeros, Init::small}, false,
                                {{"mlp.fc1.weight", config.mlp_channels()}}, "mlp.fc2.weight", config.head_dim());
    table.qk_norm = table.embedding_norm = true;
    table.activation = Activation::relu2;
    return table;
}

}  // namespace

constinit const Architecture kLlama = architecture_of<LlamaBlock>("llama", llama_table, &kLlamaDescription);
constinit const Architecture kMistral = architecture_of<LlamaBlock>("mistral", llama_table, &kMistralDescription);
constinit const Architecture kQwen2 = architecture_of<LlamaBlock>("qwen2", qwen2_table, &kQwen2Description);
constinit const Architecture kQwen3 = architecture_of<LlamaBlock>("qwen3", qwen3_table, &kQwen3Description);
constinit const Architecture kNano = architecture_of<LlamaBlock>("nano", nano_table, &kNanoDescription);

}  // namespace llmc
