// A decoder: embedding, a stack of blocks, a last norm, and a head with the loss. What a block is, the model's
// architecture says; here is what all have in common. forward and backward are flat lists of calls in the order in
// which data moves.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/kernels/classifier.h"
#include "llmc/model/block.h"
#include "llmc/model/norm.h"

namespace llmc {

// Rows of logits that exist at once: as many as fit into so many bytes, in multiples of 128 so that the products stay
// efficient.
constexpr size_t kLogitsBytes = size_t{512} << 20;
int logits_chunk(int N, int padded_vocab, size_t element_bytes, size_t limit = kLogitsBytes);

// What a model is, beside its weights.
struct ModelSetup {
    ModelConfig config;
    int B = 1, T = 0;  // sequences and tokens of a micro-batch
    int shortest = 0;  // of the pieces that training may cut them into, in tokens; 0: none
    Recompute recompute = Recompute::gelu;
    const Fp8Config* fp8 = nullptr;  // recipe of the weights with FP8 codes, in bf16 models only; or nullptr
    size_t logits_bytes = kLogitsBytes;
    KernelSet kernels = KernelSet::common();
    TrainedLoss loss;
    // Attention does not cross the documents that it begins (documents.h); nothing: it does.
    std::optional<int> end_token;
    bool document_positions = false;  // learned positions begin anew with every document
};

template <class Real>
class Transformer {
public:
    // Nothing is allocated before allocate().
    Transformer(const ModelSetup& setup, Weights<Real>& weights, Gradients& gradients, Matmul& matmul);
    ~Transformer();
    Transformer(const Transformer&) = delete;
    Transformer& operator=(const Transformer&) = delete;

    // Without the FP8 codes of linear().
    size_t activation_bytes() const { return activations_.bytes(); }
    size_t workspace_bytes() const { return workspace_.bytes(); }
    void allocate(stream_t stream);

    void initialize(uint64_t seed, stream_t stream);
    // See LinearLayers.
    void prepare_weights(stream_t stream) {
        forget_rows();
        linear_.prepare_weights(stream);
    }
    std::vector<Fp8Fallback> fall_back(stream_t stream) { return linear_.fall_back(stream); }

    // A micro-batch of training: forward, loss and gradients. `first` overwrites the gradients and the loss sum, later
    // micro-steps add to them; with the `last` one of a step both become sums over all ranks. The gradient is that of
    // sum(losses) * loss_weight * *loss_scale (on the device; nullptr: 1). `length`: sequences are cut into pieces of
    // so many tokens, each a sequence by itself; 0: they stay whole.
    void train_micro_step(const MicroBatch& batch, float loss_weight, const float* loss_scale, bool first,
                          stream_t stream, bool last = true, int length = 0);
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

    // What the last micro-step of training has left of its forward pass: the stream behind each unit, and the losses.
    std::vector<NamedMemory> activations() const;

    // (B, T) of the last training or evaluation.
    const float* losses() const { return losses_; }

    int most_tokens() const { return std::min(config_.context, B_ * T_); }
    // Logits of the token that follows tokens[0 .. length), length <= most_tokens(); synchronises. Rows that the
    // last call has left for the same first tokens are not computed again, where the blocks keep them.
    //
    // Rows go through the model in pieces of fixed places and lengths, the last one filled up with token 0. So a
    // piece's products have the same shapes, and its FP8 scales come from the same values, whether the rows before it
    // are computed now or were before: the logits have the same bits.
    std::vector<float> next_token_logits(const int* tokens, int length, stream_t stream);
    // Everything is computed again in the next call.
    void forget_rows() { decoded_.clear(); }

    const ModelConfig& config() const { return config_; }
    std::optional<int> end_token() const { return end_token_; }  // see ModelSetup
    LinearLayers<Real>& linear() { return linear_; }
    const LinearLayers<Real>& linear() const { return linear_; }
    Fp8Registry* fp8() { return linear_.fp8(); }  // nullptr: none
    int head_chunks() const { return div_up(B_ * T_, head_.rows()); }
    // FP8 products of a micro-step of training, as the layers that are in FP8 now should make them.
    int64_t fp8_products() const;

private:
    Pass pass(PassKind kind, int B, int T, bool accumulate, stream_t stream) const {
        return {kind, B, T, accumulate, scratch_, stream, documents_};
    }
    // The unit's weights until the end of the scope, whose work is profiled under names[unit].
    UnitInUse<Real> use(size_t unit, const std::vector<std::string>& names, const Pass& pass) {
        return {weights_, unit, pass.stream, names[unit].c_str()};
    }
    void upload(const MicroBatch& batch, const Pass& pass);
    void embed(int first, int positions, const int* documents, const Pass& pass);
    void forward(const Pass& pass);
    int piece_end(int first) const;
    ResidualStream<Real> decode(int first, int end, stream_t stream);
    void loss_and_head_gradients(float loss_weight, const float* loss_scale, const Pass& pass);
    void backward(const Pass& pass);
    void embed_backward(const Pass& pass);
    void share_losses(int which, stream_t stream);

    const ModelConfig config_;
    const TrainedLoss loss_;
    const int B_, T_;
    const Recompute recompute_;
    const std::optional<int> end_token_;
    const bool document_positions_;
    Weights<Real>& weights_;
    Gradients& gradients_;
    Matmul& matmul_;
    Arena activations_{MemoryKind::activations}, workspace_{MemoryKind::workspace};
    LinearLayers<Real> linear_;
    ModelContext<Real> context_;
    std::vector<std::unique_ptr<Block<Real>>> blocks_;
    Linear<Real> head_;
    Norm<Real> final_norm_;
    std::optional<Norm<Real>> embedding_norm_;
    const size_t head_unit_;
    const ParameterTable::Place wte_;                 // (Vp, C)
    const std::optional<ParameterTable::Place> wpe_;  // (context, C)

    Real* embedded_ = nullptr;         // (N, C)   what the embedding's norm reads, where there is one
    Real* residual_final_;             // (N, C)
    Real* lnf_;                        // (N, C)
    float* losses_;                    // (N)
    Real* dresidual_;                  // (N, C)   gradient of the residual stream
    Real* dlnf_;                       // (N, C)
    Real* logits_;                     // (head_.rows(), Vp), and their gradient
    float* scratch_;                   // partial sums of bias and norm gradients
    int* tokens_;                      // (N)
    int* targets_;                     // (N)
    int* documents_ = nullptr;         // (N), see mark_documents(); nullptr without end_token_
    int* sorted_;                      // token_sort_size(N)
    int* sorted_positions_ = nullptr;  // token_sort_size(N), of document_positions_
    double* loss_sums_;                // {training, evaluation}
    int* loss_counts_;
    char* loss_workspace_;

    std::vector<int> decoded_;  // the tokens whose rows the blocks still have

    std::vector<std::string> forward_names_, backward_names_;  // for profiles, by unit

    // Staging of tokens: two slots, so that the next micro-batch is prepared while the last one's copy may still run.
    struct Staging {
        int* memory = nullptr;  // tokens, targets, documents, sorted; positions in documents, sorted
        event_t copied = nullptr;
    };
    Staging staging_[2];
    int next_staging_ = 0;
};

}  // namespace llmc
