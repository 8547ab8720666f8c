// The FP8 side of a model: quantized operands of its linear layers, their scales, and how each recipe fills them.
//
// A layer in FP8 has three tensors: x (its input), w (its weight) and dout (the gradient of its output), each stored
// row-major and transposed, because products on Hopper take both operands along their inner dimension. Row copies of x
// and dout live until the next product; transposed copies of x are kept for the weight gradient, as far as the
// recompute level says.
#pragma once
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/fp8/fallback.h"
#include "llmc/fp8/scaling.h"
#include "llmc/kernels/block_scales.h"
#include "llmc/model/activations.h"
#include "llmc/model/config.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/table.h"

namespace llmc {

// What a forward or backward pass is for: only training leaves traces in amaxes, histories and counters.
enum class PassKind { training, recompute, evaluation };

// By unit and tensor of `table` (gpt2_units): which weights the model reads in FP8 alone, for Sharding::fp8.
std::vector<std::vector<bool>> fp8_tensors_of(const ParameterTable& table, const ModelConfig& config,
                                              const Fp8Layers& layers);

// A tensor that has lost too many values for too long.
struct Fp8Loss {
    Fp8TensorId tensor;
    Fp8Reason reason;
    float fraction;
};

class Fp8Tensors {
public:
    // `stage`: of the weights' sharding over `comm`. With slices, their FP8 rows are Parameters'.
    Fp8Tensors(const ModelConfig& config, const Fp8Config& fp8, const Fp8Layers& layers, int N, Recompute recompute,
               const Comm& comm = Comm::self(), int stage = 0);
    ~Fp8Tensors();
    Fp8Tensors(const Fp8Tensors&) = delete;
    Fp8Tensors& operator=(const Fp8Tensors&) = delete;
    void allocate(stream_t stream);
    size_t activation_bytes() const { return activations_.bytes(); }
    size_t weight_bytes() const { return weights_.bytes(); }

    bool is_fp8(int block, BlockLinear linear) const { return layers_.is_fp8(block, linear); }
    int layer_count() const { return layers_.count(); }  // of the blocks
    // The head is in the table as layer kHeadLinear of one more block. Its products take a chunk of rows at a time.
    bool has_head() const { return layers_.head(); }
    int head_block() const { return blocks_; }

    Fp8Scaling scaling() const { return scaling_; }
    bool has_block_scales() const { return scaling_ != Fp8Scaling::tensor; }
    // Tokens come in multiples of this.
    int token_multiple() const { return scaling_ == Fp8Scaling::block ? 128 : scaling_ == Fp8Scaling::mx ? 32 : 16; }
    // (N, 4C): with block scales, producers write their output here in BF16, and both layouts are quantized from it.
    bf16* source() { return source_; }
    // How a pass quantizes with block scales, which need neither history nor measuring.
    QuantizePass block_pass(PassKind kind) const {
        return kind == PassKind::training ? train_pass() : QuantizePass::replay;
    }
    // Whether casts of training passes count what they lose, until told otherwise: it costs them time, so only for a
    // record that somebody takes. At first they do not, with a fallback rule always. Values that are not finite are
    // always counted.
    void count_losses(bool on) { count_losses_ = on || falls_back(); }
    QuantizePass train_pass() const { return count_losses_ ? QuantizePass::train_counted : QuantizePass::train; }
    QuantizePass write_pass() const { return count_losses_ ? QuantizePass::write_counted : QuantizePass::write; }

    // Operands; their state is the one that this kind of pass reads.
    Quantized<e4m3> x(int block, BlockLinear linear, PassKind kind);
    Quantized<e4m3> w(int block, BlockLinear linear) const;
    template <class F8>  // e5m2, or e4m3 if the configuration says so
    Quantized<F8> dout(int block, BlockLinear linear) {
        const bool head = block == blocks_;
        return {reinterpret_cast<F8*>(head ? dlogits_row_ : dout_row_),
                reinterpret_cast<F8*>(head ? dlogits_transposed_ : dout_transposed_),
                states_ + Fp8TensorId{block, linear, Fp8Role::dout}.index(), dout_scales_, dout_transposed_scales_};
    }
    bool e4m3_gradients() const { return config_.e4m3_gradients; }

    // These layers' inputs have no BF16 buffers of their own; nullptr: all have, because any layer may leave FP8.
    const Fp8Layers* without_bf16() const { return falls_back() ? nullptr : &layers_; }
    // Whether such a pass knows its scales beforehand, so that one run of a producer is enough.
    bool casts_at_once(PassKind kind) const {
        return !has_block_scales() && (kind == PassKind::recompute || uses_history());
    }
    // Column sums of the residual gradient, from the norm that makes it to the linear layer whose bias gradient they
    // are.
    float* bias_parts() const { return bias_parts_; }

    // Runs produce(pass), a call of the quantizing kernel for this tensor, as often as the recipe wants it.
    template <class F>
    void fill(int block, BlockLinear linear, Fp8Role role, PassKind kind, stream_t stream, F&& produce) {
        const int tensor = Fp8TensorId{block, linear, role}.index();
        if (kind == PassKind::recompute || (kind == PassKind::evaluation && uses_history())) {
            produce(QuantizePass::replay);
        } else if (uses_history()) {
            produce(train_pass());
        } else {
            produce(QuantizePass::measure);
            fp8_set_current(kind == PassKind::evaluation ? evaluation_ : states_, tensor, 1, config_, stream);
            produce(kind == PassKind::evaluation ? QuantizePass::replay : write_pass());
        }
    }
    // For a producer in a training pass that can run but once: produce(train_pass()), or produce(measure) and the
    // scale; then the caller casts what the producer has left, with write_pass().
    template <class F>
    void fill_once(int block, BlockLinear linear, Fp8Role role, stream_t stream, F&& produce) {
        produce(uses_history() ? train_pass() : QuantizePass::measure);
        if (!uses_history()) fp8_set_current(states_, Fp8TensorId{block, linear, role}.index(), 1, config_, stream);
    }
    // Weights' scales are functions of the weights alone: measure all, then set_weight_scales, then write all. The head's
    // come by themselves, of the working copy that every rank has.
    void set_weight_scales(stream_t stream);
    void set_head_weight_scale(stream_t stream);
    // Ranks with slices of the weights have measured those: now all have measured all.
    void share_weight_amaxes(stream_t stream) { share(true, stream); }

    // After the last micro-step of a step, before the optimizer: amaxes become those of all ranks, and *bad_flag() says
    // whether a cast saw Inf or NaN.
    void check(stream_t stream);
    const int* bad_flag() const { return bad_flag_; }
    // After the optimizer has decided: histories roll, scales for the next step follow, and gradients' move with the
    // loss scale, which changes by *change.
    void finish_step(const float* change, stream_t stream);

    // The layers that have to leave FP8, each with the first of its tensors that says so: as all ranks saw it at the
    // end of the step before the one that finish_step() was last called for, so that nothing waits for work just begun.
    std::vector<Fp8Loss> take_losses();
    // From here on in BF16: all three products of the layer.
    void leave_fp8(int block, BlockLinear linear) { layers_.take_away(block, linear); }

    // All states, for the log; `count()` of them, which fp8_tensor(index, head_block()) names.
    const Fp8State* states() const { return states_; }
    int count() const { return count_; }
    void clear_counts(stream_t stream);

private:
    // Delayed scaling needs one step of amaxes first; that step uses current scaling and fills the histories.
    bool uses_history() const { return config_.recipe == Fp8Recipe::delayed && calibrated_; }
    size_t slot(int block, BlockLinear linear) const {
        return static_cast<size_t>(block) * kBlockLinears + static_cast<size_t>(linear);
    }

    bool falls_back() const { return config_.fallback.steps > 0; }
    void watch(stream_t stream);
    void share(bool now, stream_t stream);
    void plan_scales(const ModelConfig& config, size_t N, Recompute recompute);
    void plan_head(const ModelConfig& config, int tokens);

    const Comm comm_;
    const Fp8Config config_;
    const Fp8Scaling scaling_;
    Fp8Layers layers_;
    const int blocks_, count_;
    bool calibrated_ = false;
    bool count_losses_ = falls_back();

    Arena activations_{MemoryKind::activations}, weights_{MemoryKind::weights};
    Fp8State* states_ = nullptr;      // (blocks, 4, 3)
    Fp8State* evaluation_ = nullptr;  // the same for evaluations with current scaling: training never sees them
    float* history_ = nullptr;        // (blocks, 4, 3, history)
    int* bad_flag_ = nullptr;
    float* packed_ = nullptr;    // (2, blocks * 4 * 3): what ranks tell each other
    char* workspace_ = nullptr;  // of its reduction
    float* bias_parts_ = nullptr;

    // With a fallback rule. The verdicts of two steps are on their way to the host at once.
    struct VerdictSlot {
        Fp8Verdict* values = nullptr;  // pinned
        event_t copied = nullptr;
    };
    Fp8Watch* watches_ = nullptr;     // (blocks, 4, 3)
    Fp8Verdict* verdicts_ = nullptr;  // (blocks, 4, 3)
    float* packed_counts_ = nullptr;  // (3, blocks * 4 * 3)
    char* counts_workspace_ = nullptr;
    VerdictSlot verdict_slots_[2];
    int64_t watched_ = 0, taken_ = 0;

    e4m3* x_row_ = nullptr;                          // (N, 4C) of whichever layer is at work
    uint8_t* dout_row_ = nullptr;                    // (N, 4C), in the format of gradients
    uint8_t* dout_transposed_ = nullptr;             // (4C, N)
    uint8_t *dlogits_row_ = nullptr, *dlogits_transposed_ = nullptr;  // (chunk, Vp) of the head
    std::vector<e4m3*> x_transposed_;                // by slot: (C, N), (4C, N) or, of the head, (C, chunk)
    e4m3* shared_x_transposed_[kBlockLinears] = {};  // for what is recomputed
    e4m3* shared_w_transposed_[kBlockLinears] = {};  // for weights that are gathered before each use
    std::vector<e4m3*> w_row_, w_transposed_;        // by slot

    // Block scales of the operands above, nullptr without.
    bf16* source_ = nullptr;
    char *x_scales_ = nullptr, *dout_scales_ = nullptr, *dout_transposed_scales_ = nullptr;
    std::vector<char*> x_transposed_scales_;
    char* shared_x_transposed_scales_[kBlockLinears] = {};
    std::vector<char*> w_scales_, w_transposed_scales_;
};

}  // namespace llmc
