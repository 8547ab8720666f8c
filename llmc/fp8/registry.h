// The FP8 tensors of a run by name: their scales, histories and counters, and how ranks combine them. The registry
// knows the names of layers, but not the model.
//
// A layer in FP8 has three tensors, in this order: x (its input), w (its weight) and dout (the gradient of its output).
#pragma once
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/device/owned.h"
#include "llmc/fp8/recipe.h"
#include "llmc/fp8/scaling.h"
#include "llmc/shard/arena.h"

namespace llmc {

// A pass through the model. Only training changes amaxes, histories and counters.
enum class PassKind { training, recompute, evaluation };

// A layer that must leave FP8, and its first tensor that breaks the rule.
struct Fp8Fallback {
    int layer;
    Fp8Role role;
    Fp8Reason reason;
    float fraction;  // fraction of that tensor's elements
};

// The state of an FP8 tensor in a checkpoint, the same on every rank. Counts are sums over all ranks.
struct Fp8SavedTensor {
    std::string name;  // "h.3.fc_proj.dout"
    Fp8State state{};
    std::vector<float> history;  // amaxes, the oldest first; 0 for an empty entry
    Fp8Watch watch{};
    Fp8Verdict verdict{};  // the last step's; take_fallbacks() has not seen it yet
};
struct Fp8Saved {
    std::string rule;                          // formats, and how scales follow from amaxes
    bool calibrated = false, watched = false;  // watched: there are verdicts
    std::vector<std::string> left;             // layers that have left FP8
    std::vector<Fp8SavedTensor> tensors;
};

class Fp8Registry {
public:
    Fp8Registry(const Fp8Config& config, const Comm& comm);
    Fp8Registry(Fp8Registry&&) = delete;

    // Add all layers first, in the order of forward, then plan the memory. Returns the layer's number.
    int add(const std::string& layer) {
        names_.push_back(layer);
        left_.push_back(false);
        return layers() - 1;
    }
    void plan(Arena& arena);
    void allocate(stream_t stream);  // after the arena

    int layers() const { return static_cast<int>(names_.size()); }
    const std::string& layer_name(int layer) const { return names_[layer]; }
    int count() const { return layers() * kFp8Roles; }  // number of tensors
    static int tensor(int layer, Fp8Role role) { return layer * kFp8Roles + static_cast<int>(role); }
    // "h.3.fc_proj.dout".
    std::string name(int tensor) const { return layer_name(tensor / kFp8Roles) + "." + word_of(role_of(tensor)); }
    // The tensor of that name; throws for an unknown one.
    int find(const std::string& wanted) const {
        for (int i = 0; i < count(); i++)
            if (name(i) == wanted) return i;
        throw Error(ExitCode::failure, "no FP8 tensor is called " + wanted);
    }

    // The configuration. With block scales, fields that do not apply have fixed values.
    const Fp8Config& config() const { return config_; }
    // All layers leave FP8 after this step instead of the configured one.
    void leave_after(int64_t step) { config_.until = step; }
    Fp8Scaling scaling() const { return scaling_; }
    bool has_block_scales() const { return scaling_ != Fp8Scaling::tensor; }
    bool falls_back() const { return config_.fallback.steps > 0; }
    bool layers_may_leave() const { return config_.layers_may_leave(); }
    // True if scales come from earlier steps. Delayed scaling first needs one step with current scaling, which fills
    // the histories.
    bool uses_history() const { return config_.recipe == Fp8Recipe::delayed && calibrated_; }

    // Lets casts of training passes count the elements that they lose, which costs time. Off at first, and always on
    // with a fallback rule. Values that are not finite are always counted.
    void count_losses(bool on) { count_losses_ = on || falls_back(); }
    QuantizePass train_pass() const { return count_losses_ ? QuantizePass::train_counted : QuantizePass::train; }
    QuantizePass write_pass() const { return count_losses_ ? QuantizePass::write_counted : QuantizePass::write; }

    // How a kernel casts a tensor: its first run makes first_run(). After each run call finish_run(), which returns
    // true if the codes are written. After a run that measured, it sets the scale, sets `run` to what comes next, and
    // returns false.
    QuantizePass first_run(PassKind kind) const;
    bool finish_run(QuantizePass& run, int layer, Fp8Role role, PassKind kind, stream_t stream);

    // On the device, (count()).
    const Fp8State* states() const { return states_; }
    // Evaluation with scales of its own values has states of its own, so that training does not notice it.
    Fp8State* state(int layer, Fp8Role role, PassKind kind = PassKind::training) const {
        const bool own = kind == PassKind::evaluation && !uses_history();
        return (own ? evaluation_ : states_) + tensor(layer, role);
    }

    // Scales of weights vary with *updates, the number of the optimizer's updates, on the device (scaling.h).
    void dither_weights(const int64_t* updates) { updates_ = updates; }
    // Computes the scales of all weights. Call after measuring and before writing their codes.
    void set_weight_scales(stream_t stream);
    // With sliced weights, each rank has measured its slices. This takes the maximum over the ranks.
    void share_weight_amaxes(stream_t stream) { share(true, stream); }

    // Call after the last micro-step, before the optimizer. Takes the maximum of amaxes over the ranks, and sets
    // *bad_flag() to 1 + the first tensor in which a cast met Inf or NaN, or to 0.
    void check(stream_t stream);
    const int* bad_flag() const { return bad_flag_; }
    // Call after the optimizer: rolls the histories and computes the next step's scales. Gradients' scales follow the
    // loss scale, which changes by *change.
    void finish_step(const float* change, stream_t stream);
    // The layers that must leave FP8, as decided one step before the last finish_step(), so that the host does not wait
    // for the device. All ranks get the same layers, and each layer once: has_left() is true from then on.
    std::vector<Fp8Fallback> take_fallbacks();
    bool has_left(int layer) const { return left_[layer]; }
    void mark_all_left() { left_.assign(left_.size(), true); }
    void clear_counts(stream_t stream) {
        if (count() > 0) fp8_clear_counts(states_, watches_, count(), stream);
    }
    // Copies the states to `copy` (count()) and back, for a micro-step that is repeated.
    void put_aside(Fp8State* copy, stream_t stream) const {
        if (count() > 0) copy_on_device(copy, states_, static_cast<size_t>(count()) * sizeof(Fp8State), stream);
    }
    void put_back(const Fp8State* copy, stream_t stream) {
        if (count() > 0) copy_on_device(states_, copy, static_cast<size_t>(count()) * sizeof(Fp8State), stream);
    }

    // For checkpoints. All wait for the device, and read_state() is a collective. A resumed run first calls
    // mark_left(), then sets the weights, then calls restore(), which keeps the scales of their codes. That returns
    // false if the saved run had other tensors or another rule; the next step then calibrates.
    Fp8Saved read_state(stream_t stream) const;
    std::string rule() const;
    void mark_left(const std::vector<std::string>& layers);
    bool restore(const Fp8Saved& saved, stream_t stream);

private:
    void watch(stream_t stream);
    void share(bool now, stream_t stream);
    bool is_of(const Fp8Saved& saved) const;
    void add_counts(std::vector<Fp8State>& states, std::vector<Fp8Watch>& watches) const;

    const Comm comm_;
    Fp8Config config_;
    const Fp8Scaling scaling_;
    std::vector<std::string> names_;
    std::vector<bool> left_;
    bool calibrated_ = false;
    bool count_losses_ = falls_back();
    const int64_t* updates_ = nullptr;  // on the device; nullptr where nothing trains

    Fp8State* states_ = nullptr;      // (layers, 3)
    Fp8State* evaluation_ = nullptr;  // (layers, 3)
    float* history_ = nullptr;        // (layers, 3, history)
    int* bad_flag_ = nullptr;
    float* packed_ = nullptr;    // (2, layers * 3), for the maximum over the ranks
    char* workspace_ = nullptr;  // for that all-reduce

    // For a fallback rule. Verdicts of two steps may be on their way to the host.
    struct VerdictSlot {
        Pinned<Fp8Verdict> values;
        OwnedEvent copied;
    };
    Fp8Watch* watches_ = nullptr;     // (layers, 3)
    Fp8Verdict* verdicts_ = nullptr;  // (layers, 3)
    float* packed_counts_ = nullptr;  // (3, layers * 3)
    char* counts_workspace_ = nullptr;
    VerdictSlot verdict_slots_[2];
    int64_t watched_ = 0, taken_ = 0;
};

}  // namespace llmc
