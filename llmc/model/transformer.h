// A decoder-only transformer: embedding, a stack of blocks, a final norm, and a head with the loss. The model's
// architecture provides the blocks. forward and backward are flat lists of calls in the order in which data moves.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/data/micro_batch.h"
#include "llmc/device/owned.h"
#include "llmc/kernels/classifier.h"
#include "llmc/model/block.h"

namespace llmc {

// Number of rows of logits that exist at a time: the largest power of two whose logits fit into `limit` bytes, but at
// least 128. It depends only on the model's shape (and N, if that is smaller), because the rows of a chunk decide the
// order of the sums in the weight's gradient, so the bits do not depend on the card or on flags that only save memory.
int logits_chunk(int N, int padded_vocab, size_t element_bytes, size_t limit);

// documents (B, T) receives the place in its row at which the document of each of `tokens` (B, T) begins. The end token
// is the first token of a document, as data/prepare and llm.c write shards. Tokens before a row's first end token
// belong to a document that began in an earlier row; here it begins with the row.
void mark_documents(int* documents, const int* tokens, int B, int T, int end_token);

struct MicroStep {
    float loss_weight;
    const float* loss_scale = nullptr;  // on the device; nullptr for 1
    bool first = true;                  // overwrites gradients and loss sum; later micro-steps of a step add to them
    bool last = true;                   // turns both into sums over all ranks
    int length = 0;                     // sequences are cut into pieces of this many tokens; 0: they stay whole
    bool measures_logits = false;       // max_logits() becomes that of the step, over all ranks
};

template <class Real>
class Transformer {
public:
    // `setup` must outlive the model. Nothing is allocated before allocate(). With a host, which is a model of the same
    // shape, activations and workspace are in its memory, so passes of the two must not overlap.
    Transformer(const ModelSetup& setup, Weights<Real>& weights, Gradients& gradients, Matmul& matmul,
                Transformer* host = nullptr);

    // Both leave out the memory of linear().
    size_t activation_bytes() const { return activations_.bytes() + constants_.bytes(); }
    size_t workspace_bytes() const { return workspace_.bytes(); }
    const OffloadedResiduals& offloaded() const { return offloaded_; }
    void allocate(stream_t stream);
    // Before allocate(): reserves memory for attention's largest logits.
    void plan_max_logits() {
        workspace_.plan(&max_logits_, max_logit_count());
        workspace_.plan(&max_logits_workspace_,
                        weights_.layout().comm().template all_reduce_workspace<float>(max_logit_count()));
    }

    void initialize(uint64_t seed, stream_t stream);
    // See LinearLayers.
    void prepare_weights(stream_t stream) {
        forget_rows();
        linear_.prepare_weights(stream);
    }

    // Trains on a micro-batch: forward, loss and gradients of sum(losses) * loss_weight * *loss_scale.
    void train_micro_step(const MicroBatch& batch, const MicroStep& step, stream_t stream);
    // Computes only the loss. Targets of -1 do not count.
    void evaluate(const int* tokens, const int* targets, stream_t stream);
    // (rows, padded_vocab): logits of the rows from `row` on in the last evaluate(), before the soft cap. To get the
    // same bits, `row` is a multiple of head_rows(), and rows that number or the rest. Waits for the device. A
    // collective.
    std::vector<Real> evaluated_logits(int row, int rows, stream_t stream);
    // Turns the sums of evaluate() into sums over all ranks.
    void share_evaluation(stream_t stream) { share_losses(1, stream); }

    // On the device: sum of losses and number of targets, of the step so far and of the last evaluate().
    const double* train_loss_sum() const { return loss_sums_; }
    const int* train_loss_count() const { return loss_counts_; }
    const double* eval_loss_sum() const { return loss_sums_ + 1; }
    const int* eval_loss_count() const { return loss_counts_ + 1; }
    // (layers, NH): the largest logit of each head of attention (attention_max_logits()), if plan_max_logits() was
    // called.
    const float* max_logits() const { return max_logits_; }
    size_t max_logit_count() const {
        return static_cast<size_t>(config().layers) * static_cast<size_t>(config().heads);
    }

    // Results of the last forward pass that are still in memory: each unit's output, and the losses.
    std::vector<NamedMemory> activations() const;

    // (B, T) of the last training or evaluation.
    const float* losses() const { return losses_; }
    // Device memory that holds nothing between passes: the logits'.
    void* spare_memory() const { return logits_; }

    int most_tokens() const { return std::min(config().context, setup_.N()); }
    // Logits of the token that follows tokens[0 .. length), for length <= most_tokens(). Synchronises. The blocks' qkv
    // of the last call serve as the cache of keys and values: rows of tokens that have not changed are not computed
    // again.
    //
    // Tokens go through the model in pieces of fixed positions and lengths; the last piece is filled with token 0. So a
    // piece's products have the same shapes and its FP8 scales come from the same values, whether or not earlier rows
    // are reused. The logits therefore have the same bits.
    std::vector<float> next_token_logits(const int* tokens, int length, stream_t stream);
    // Makes the next call compute all rows.
    void forget_rows() { decoded_.clear(); }

    const ModelConfig& config() const { return setup_.model; }
    std::optional<int> end_token() const { return setup_.doc_mask ? std::optional(setup_.end_token) : std::nullopt; }
    LinearLayers<Real>& linear() { return linear_; }
    const LinearLayers<Real>& linear() const { return linear_; }
    Fp8Registry* fp8() { return linear_.fp8(); }  // nullptr without FP8
    int head_rows() const { return head_.shape().N; }

private:
    Pass pass(PassKind kind, int B, int T, stream_t stream) const {
        return {{kind, B * T, /*accumulate=*/false, scratch_, tickets_, stream}, B, T, documents_};
    }
    // Keeps the unit's weights gathered until the end of the scope. Profiles show the work as names[unit].
    UnitInUse<Real> use(size_t unit, const std::vector<std::string>& names, const Pass& pass) {
        return {weights_, unit, pass.stream, names[unit].c_str()};
    }
    void upload(const MicroBatch& batch, const Pass& pass);
    void embed(int first, int positions, const Pass& pass);
    void forward(const Pass& pass);
    // End of the piece that begins at row `first`. FP8 products need a multiple of token_multiple() rows.
    int piece_end(int first) const { return std::min(first + std::max(16, linear_.token_multiple()), setup_.N()); }
    void decode(int first, int end, stream_t stream);
    // Returns the memory to which block l writes the residual stream. Block -1 is the embedding.
    Real* output_of_block(int l) const {
        const size_t next = static_cast<size_t>(l + 1);
        return next < blocks_.size() ? blocks_[next]->residual() : residual_final_;
    }
    void loss_and_head_gradients(float loss_weight, const float* loss_scale, const Pass& pass);
    template <class Work>
    void backward_unit(size_t unit, const Pass& pass, Work&& work);
    void backward(const Pass& pass);
    void embed_backward(const Pass& pass);
    void share_losses(int which, stream_t stream);

    const ModelSetup& setup_;
    Weights<Real>& weights_;
    Gradients& gradients_;
    Matmul& matmul_;
    Arena activations_, constants_, workspace_;
    LinearLayers<Real> linear_;
    ModelContext<Real> context_;
    std::vector<std::unique_ptr<Block<Real>>> blocks_;
    OffloadedResiduals offloaded_;
    Linear<Real> head_;
    Norm<Real> final_norm_;
    std::optional<Norm<Real>> embedding_norm_;
    const size_t head_unit_;
    const ParameterTable::Place wte_;                 // (Vp, C)
    const std::optional<ParameterTable::Place> wpe_;  // (context, C)

    Real* embedded_ = nullptr;  // (N, C)   input of the embedding's norm, if there is one
    Real* residual_final_;      // (N, C)
    Real* lnf_;                 // (N, C)
    float* losses_;             // (N)
    Real* dresidual_;           // (N, C)   gradient of the residual stream
    Real* dlnf_;                // (N, C)
    Real* logits_;              // (head_.shape().N, Vp), and their gradient
    float* scratch_;            // partial sums of bias and norm gradients
    unsigned* tickets_;         // one word (LayerPass)
    int* tokens_;               // (N)
    int* targets_;              // (N)
    int* documents_ = nullptr;  // (N), see mark_documents(); nullptr without an end token
    int* sorted_;               // token_sort_size(N)
    double* loss_sums_;         // {training, evaluation}
    int* loss_counts_;
    char* loss_workspace_;
    float* max_logits_ = nullptr;           // (layers, NH)
    char* max_logits_workspace_ = nullptr;  // for their maximum over the ranks

    std::vector<int> decoded_;  // tokens whose keys and values the blocks still have

    std::vector<std::string> forward_names_, backward_names_;  // by unit, for profiles

    // Pinned memory for batches that are not in any. Two slots, so that the next micro-batch is prepared while copies
    // of the last one may still run.
    struct Staging {
        Pinned<int> memory;
        OwnedEvent copied;
    };
    Staging staging_[2];
    int next_staging_ = 0;
};

}  // namespace llmc
