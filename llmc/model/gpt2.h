// GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, biases, GELU in its tanh form, tied head. forward
// and backward are flat lists of kernel calls in the order in which data moves.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/linear/matmul.h"
#include "llmc/model/activations.h"
#include "llmc/model/config.h"
#include "llmc/model/fp8_tensors.h"
#include "llmc/model/gpt2_parameters.h"
#include "llmc/shard/parameters.h"

namespace llmc {

// The linear layers of a model on N tokens whose head runs `head_rows` rows at a time.
std::vector<Matmul::LinearShape> linear_shapes(const ModelConfig& config, int N, int head_rows);

template <class Real>
class Gpt2 {
public:
    // B sequences of T tokens a micro-batch. Nothing is allocated before allocate(). `fp8` (bf16 models only) holds the
    // layers that run in FP8; nullptr: none.
    Gpt2(const ModelConfig& config, int B, int T, Recompute recompute, Parameters<Real>& parameters, Matmul& matmul,
         Fp8Tensors* fp8 = nullptr);
    ~Gpt2();
    Gpt2(const Gpt2&) = delete;
    Gpt2& operator=(const Gpt2&) = delete;

    size_t activation_bytes() const { return activations_.arena.bytes(); }
    size_t workspace_bytes() const { return activations_.workspace.bytes(); }
    std::vector<Matmul::LinearShape> linear_shapes() const;
    void allocate();

    void initialize(uint64_t seed, stream_t stream);

    // To be called whenever the weights have changed: makes the FP8 copies of those that have one. Their amaxes come
    // from the optimizer's update; for weights that were set in another way they are measured here.
    void prepare_weights(stream_t stream);

    // Once a step, after the optimizer and before prepare_weights(): layers that have to leave FP8 do (see
    // Fp8Tensors::take_losses). What was decided on, for the log.
    std::vector<Fp8Loss> fall_back(stream_t stream);

    // A micro-batch of training: forward, loss and gradients. `first` overwrites the gradients and the loss sum, later
    // micro-steps add to them; with the `last` one of a step both become sums over all ranks. The gradient is that of
    // sum(losses) * loss_weight * *loss_scale (on the device; nullptr: 1).
    void train_micro_step(const int* tokens, const int* targets, float loss_weight, const float* loss_scale, bool first,
                          stream_t stream, bool last = true);
    // The loss alone; targets of -1 count as nothing.
    void evaluate(const int* tokens, const int* targets, bool first, stream_t stream);
    // After the last evaluate(): its sums become those over all ranks.
    void share_evaluation(stream_t stream) { share_losses(1, stream); }

    // On the device: sum of losses and number of targets since the last `first`. Training and evaluation each have
    // their own.
    const double* train_loss_sum() const { return loss_sums_; }
    const int* train_loss_count() const { return loss_counts_; }
    const double* eval_loss_sum() const { return loss_sums_ + 1; }
    const int* eval_loss_count() const { return loss_counts_ + 1; }

    // Logits of the token that follows tokens[0 .. length), length <= min(context, B * T); synchronises.
    std::vector<float> next_token_logits(const int* tokens, int length, stream_t stream);

    const ModelConfig& config() const { return config_; }
    int head_chunks() const { return (B_ * T_ + activations_.chunk_rows - 1) / activations_.chunk_rows; }
    int B() const { return B_; }
    int T() const { return T_; }

private:
    using Block = BlockActivations<Real>;

    void upload(const int* tokens, const int* targets, int n, bool sort, stream_t stream);
    void forward(int B, int T, PassKind kind, stream_t stream);
    void block_forward(int layer, const Real* branch, int B, int T, PassKind kind, stream_t stream);
    void head_forward(int N, bool gradients, float loss_weight, const float* loss_scale, bool first, stream_t stream);
    void head_products_forward(const Real* lnf, const Real* wte, int rows, PassKind kind, stream_t stream);
    void head_products_backward(Real* dlnf, float* dwte, const Real* lnf, const Real* wte, int rows, bool accumulate,
                                stream_t stream);
    template <class F8>
    void head_products_backward_fp8(Real* dlnf, float* dwte, int rows, bool accumulate, stream_t stream);
    void backward(bool first, stream_t stream);
    void block_backward(int layer, bool accumulate, stream_t stream);
    void recompute_block(int layer, stream_t stream);

    // The parts of a block, in BF16 or FP32 or, where the layer says so, in FP8 (gpt2_layers.cpp).
    bool is_fp8(int layer, BlockLinear linear) const { return fp8_ && fp8_->is_fp8(layer, linear); }
    bool head_is_fp8() const { return fp8_ && fp8_->has_head(); }
    void norm1(int layer, const Real* branch, int N, PassKind kind, stream_t stream);
    void norm2(int layer, const Real* branch, int N, PassKind kind, stream_t stream);
    void norm(int layer, BlockLinear linear, Real* normed, float* mean, float* rstd, Real* residual, const Real* inp1,
              const Real* inp2, size_t weight, size_t bias, int N, PassKind kind, stream_t stream);
    void prepare_fp8_scales(stream_t stream);
    void quantize_weights(QuantizePass pass, stream_t stream);
    void quantize_head_weight(stream_t stream);
    void gelu(int layer, int N, PassKind kind, stream_t stream);
    void attention(int layer, int B, int T, PassKind kind, stream_t stream);
    void attention_and_linear_backward(int layer, Real* dinp, const Real* dattention, Real* dqkv, bool accumulate,
                                       stream_t stream);
    void linear_forward(int layer, BlockLinear linear, Real* out, const Real* inp, int N, PassKind kind,
                        stream_t stream);
    void linear_backward(int layer, BlockLinear linear, Real* dinp, const Real* dout, const Real* inp, bool accumulate,
                         stream_t stream);
    void gelu_and_linear_backward(int layer, Real* dinp, Real* dgelu, bool accumulate, stream_t stream);
    void quantize_x_blocks(int layer, BlockLinear linear, const bf16* source, int N, int C, PassKind kind,
                           stream_t stream);
    struct NormGradient {
        float *dweight, *dshift;
        const Real *inp, *weight;
        const float *mean, *rstd;
    };
    void norm_backward(const NormGradient& norm, const Real* dresidual, const Real* dout, int reader_layer,
                       BlockLinear reader, bool accumulate, stream_t stream);
    // Whether norm_backward() quantizes the residual gradient for this layer, whose dout it is.
    bool takes_dout_from_norm(int layer, BlockLinear linear) const;
    bool attention_casts(int T) const;
    template <class F8>
    void linear_backward_fp8(int layer, BlockLinear linear, Real* dinp, const Real* dout, bool accumulate,
                             stream_t stream);
    template <class F8>
    void attention_and_linear_backward_fp8(int layer, Real* dinp, const Real* dattention, bool accumulate,
                                           stream_t stream);
    template <class F8>
    void norm_backward_fp8(const NormGradient& norm, const Real* dresidual, const Real* dout, int reader_layer,
                           BlockLinear reader, bool accumulate, stream_t stream);
    template <class F8>
    void gelu_and_linear_backward_fp8(int layer, Real* dinp, Real* dgelu, bool accumulate, stream_t stream);
    template <class F8>
    void products_backward_fp8(int layer, BlockLinear linear, Real* dinp, bool accumulate, stream_t stream);
    const Real* weight(int layer, size_t tensor) const { return parameters_.weight(block_unit(layer), tensor); }
    float* gradient(int layer, size_t tensor) { return parameters_.gradient(block_unit(layer), tensor); }

    const ModelConfig config_;
    const int B_, T_;
    Parameters<Real>& parameters_;
    Matmul& matmul_;
    Fp8Tensors* const fp8_;
    Activations<Real> activations_;
    void share_losses(int which, stream_t stream);
    // The operand of a product: gathered from all ranks, where they keep slices.
    Quantized<e4m3> fp8_weight(int layer, BlockLinear linear) const;
    bool fp8_travels() const { return fp8_ && parameters_.is_sliced() && !fp8_->has_block_scales(); }
    void transpose_weights(int layer, stream_t stream);

    std::vector<std::string> forward_names_, backward_names_;  // for profiles, by unit

    double* loss_sums_ = nullptr;  // {training, evaluation}
    int* loss_counts_ = nullptr;
    char* loss_workspace_ = nullptr;

    // Staging of tokens: two slots, so that the next micro-batch is prepared while the last one's copy may still run.
    struct Staging {
        int* memory = nullptr;  // tokens, targets, sorted
        event_t copied = nullptr;
    };
    Staging staging_[2];
    int next_staging_ = 0;
};

}  // namespace llmc
