// The FP8 tensors of a run by name: their scales, histories and counters, and what the ranks tell each other of them.
// It knows layers by their names alone, and nothing of a model.
//
// A layer in FP8 has three tensors, in this order: x (its input), w (its weight) and dout (the gradient of its output).
#pragma once
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/fp8/fallback.h"
#include "llmc/fp8/laboratory.h"
#include "llmc/fp8/scaling.h"
#include "llmc/shard/arena.h"

namespace llmc {

// A layer that has to leave FP8, and the first of its tensors that says so.
struct Fp8Fallback {
    int layer;
    Fp8Role role;
    Fp8Reason reason;
    float fraction;  // of that tensor's elements
};

// What a run remembers of its FP8 tensors, by name; the same on every rank. Counts are those of all ranks together.
struct Fp8SavedTensor {
    std::string name;  // "h.3.fc_proj.dout"
    Fp8State state{};
    std::vector<float> history;  // amaxes, the oldest first; 0: none
    std::string smoothing;       // Fp8Laboratory::factors_text(); "" if it has none
    Fp8Watch watch{};
    Fp8Verdict verdict{};  // of the last step, which take_fallbacks() has not seen yet
};
struct Fp8Saved {
    std::string rule;                          // how scales follow from amaxes, and formats
    bool calibrated = false, watched = false;  // watched: there are verdicts
    std::vector<std::string> left;             // layers that go on in BF16
    std::vector<Fp8SavedTensor> tensors;
    std::vector<Fp8Outliers> outliers{};     // by layer, since the last record
    std::vector<Fp8RankSums::Row> probed{};  // by layer and product, of the last probed step; none without a probe
};

class Fp8Registry {
public:
    Fp8Registry(const Fp8Config& config, const Comm& comm);
    ~Fp8Registry();
    Fp8Registry(const Fp8Registry&) = delete;
    Fp8Registry& operator=(const Fp8Registry&) = delete;

    // All layers first, in the order in which forward comes to them; then the memory. Returns the layer's number.
    int add(const std::string& layer);
    void plan(Arena& arena);
    void allocate(stream_t stream);  // after the arena

    int layers() const { return static_cast<int>(names_.size()); }
    const std::string& layer_name(int layer) const { return names_[static_cast<size_t>(layer)]; }
    int count() const { return layers() * kFp8Roles; }  // of tensors
    static int tensor(int layer, Fp8Role role) { return layer * kFp8Roles + static_cast<int>(role); }
    std::string name(int tensor) const;       // "h.3.fc_proj.dout"
    int find(const std::string& name) const;  // the tensor of that name; throws for an unknown one

    // As configured; scales for blocks fix what does not apply to them.
    const Fp8Config& config() const { return config_; }
    Fp8Scaling scaling() const { return scaling_; }
    bool has_block_scales() const { return scaling_ != Fp8Scaling::tensor; }
    bool falls_back() const { return config_.fallback.steps > 0; }
    // Delayed scaling needs one step of amaxes first; that step uses current scaling and fills the histories.
    bool uses_history() const { return config_.recipe == Fp8Recipe::delayed && calibrated_; }

    // Whether casts of training passes count what they lose, until told otherwise: it costs them time, so only for a
    // record that somebody takes. At first they do not, with a fallback rule always. Values that are not finite are
    // always counted.
    void count_losses(bool on) {
        count_losses_ = on || falls_back();
        laboratory_.record_outliers(on);
    }
    QuantizePass train_pass() const { return count_losses_ ? QuantizePass::train_counted : QuantizePass::train; }
    QuantizePass write_pass() const { return count_losses_ ? QuantizePass::write_counted : QuantizePass::write; }

    // Research instruments. Nothing that training needs depends on them, except the factors of --fp8-smooth.
    Fp8Laboratory& laboratory() { return laboratory_; }
    const Fp8Laboratory& laboratory() const { return laboratory_; }

    // On the device, `count()` of them.
    const Fp8State* states() const { return states_; }
    Fp8State* state(int layer, Fp8Role role) const { return states_ + tensor(layer, role); }
    // What an evaluation with current scaling uses, which training never sees.
    Fp8State* evaluation_state(int layer, Fp8Role role) const { return evaluation_ + tensor(layer, role); }

    // scale from what has been measured of this tensor.
    void set_scale(int layer, Fp8Role role, stream_t stream);
    void set_evaluation_scale(int layer, Fp8Role role, stream_t stream);
    // Weights' scales are functions of the weights alone: measure all, then this, then write all.
    void set_weight_scales(stream_t stream);
    // Ranks with slices of the weights have measured those: now all have measured all.
    void share_weight_amaxes(stream_t stream) { share(true, stream); }

    // After the last micro-step of a step, before the optimizer: amaxes become those of all ranks, and *bad_flag() says
    // whether a cast saw Inf or NaN: 1 + the tensor, or 0.
    void check(stream_t stream);
    const int* bad_flag() const { return bad_flag_; }
    // After the optimizer has decided: histories roll, scales for the next step follow, and gradients' move with the
    // loss scale, which changes by *change.
    void finish_step(const float* change, stream_t stream);
    // The layers that have to leave FP8, as all ranks saw it at the end of the step before the one that finish_step()
    // was last called for, so that nothing waits for work just begun. Each is named once: from here on it has left.
    std::vector<Fp8Fallback> take_fallbacks();
    bool has_left(int layer) const { return left_[static_cast<size_t>(layer)]; }
    void clear_counts(stream_t stream);
    // What casts change (count() states), aside and back: for a micro-step that is made twice.
    void put_aside(Fp8State* copy, stream_t stream) const;
    void put_back(const Fp8State* copy, stream_t stream);

    // For checkpoints; they wait for the device. read_state() is a collective. A restored run first marks the layers
    // that have left, and has the factors again, then sets the weights, then restores the rest, with their counts.
    // False where the tensors are not those of the run that was saved, or its amaxes are not what this one wants: then
    // the next step calibrates.
    Fp8Saved read_state(stream_t stream) const;
    std::string rule() const;
    void mark_left(const std::vector<std::string>& layers);
    void restore_factors(const Fp8Saved& saved, stream_t stream);
    bool restore(const Fp8Saved& saved, stream_t stream);

private:
    void watch(stream_t stream);
    void share(bool now, stream_t stream);
    bool is_of(const Fp8Saved& saved) const;
    void add_counts(std::vector<Fp8State>& states, std::vector<Fp8Watch>& watches) const;

    const Comm comm_;
    const Fp8Config config_;
    const Fp8Scaling scaling_;
    std::vector<std::string> names_;
    std::vector<bool> left_;
    bool calibrated_ = false;
    bool count_losses_ = falls_back();
    Fp8Laboratory laboratory_;

    Fp8State* states_ = nullptr;      // (layers, 3)
    Fp8State* evaluation_ = nullptr;  // (layers, 3)
    float* history_ = nullptr;        // (layers, 3, history)
    int* bad_flag_ = nullptr;
    float* packed_ = nullptr;    // (2, layers * 3): what ranks tell each other
    char* workspace_ = nullptr;  // of its reduction

    // With a fallback rule. The verdicts of two steps are on their way to the host at once.
    struct VerdictSlot {
        Fp8Verdict* values = nullptr;  // pinned
        event_t copied = nullptr;
    };
    Fp8Watch* watches_ = nullptr;     // (layers, 3)
    Fp8Verdict* verdicts_ = nullptr;  // (layers, 3)
    float* packed_counts_ = nullptr;  // (3, layers * 3)
    char* counts_workspace_ = nullptr;
    VerdictSlot verdict_slots_[2];
    int64_t watched_ = 0, taken_ = 0;
};

}  // namespace llmc
