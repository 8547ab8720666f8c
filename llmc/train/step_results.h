// The numbers of one optimizer step on the host: what the device found (StepState), with what the host knows. One
// record travels from StepResults, which reads the device without stopping it, through the training loop to the
// terminal and to metrics.jsonl.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/comm/rank_time.h"
#include "llmc/device/owned.h"
#include "llmc/kernels/step_state.h"
#include "llmc/linear/matmul.h"

namespace llmc {

// Limits that the loss or the norm of a step exceeded (llmc/optim/prepare_step.h).
struct ExceededLimits {
    std::optional<float> loss, norm;
    explicit operator bool() const { return loss || norm; }
};

// Result of a step that --verify-every checked (llmc/train/verification.h).
struct VerifiedStep {
    double ms = 0;           // time that the verification took
    std::string difference;  // "rank 1 on node7 (...): output of h.3 had checksum ..."; "" if all bits agree
};

// Expected loss of freshly initialised weights: ln(V), and ln(V) plus what random logits add. `margin` is how far the
// loss of a step may be from it by chance.
struct FreshLoss {
    double ln_vocab, expected, margin = 0.5;
};

// The largest logit of a layer's attention in a step, and its head.
struct MaxLogit {
    float logit;
    int head;
};

// Norms of a tensor around an optimizer step, over all ranks (llmc/train/signals.h).
struct TensorSignal {
    std::string tensor;
    double gradient = 0, weight = 0, update = 0;  // unscaled and not clipped; after the step; what the step added
    std::optional<MaxLogit> max_logit = {};       // only for the weights of queries and keys
};

// The gradient noise scale of a step (McCandlish et al., arXiv 1812.06162, appendix A.1): the batch size, in tokens, at
// which noise and gradient are of one size. Both estimates are unbiased but noisy, and either may be negative. So take
// means of both over many steps, and divide those.
struct GradientNoise {
    double square = 0;  // of the norm of the gradient that an infinite batch would have
    double noise = 0;   // trace of the covariance of a single token's gradient
    double scale() const { return noise / square; }
};
// From the mean square of a micro-batch's gradient norm, and that of a step of `parts` micro-batches, 2 or more.
inline GradientNoise gradient_noise(double micro_square, double step_square, double micro_tokens, double parts) {
    return {(parts * step_square - micro_square) / (parts - 1),
            (micro_square - step_square) * micro_tokens * parts / (parts - 1)};
}

struct StepRecord {
    // From the device.
    int64_t step = 0;                      // counts from 1
    float loss = 0;                        // mean over the step's targets, in nats
    float lr = 0;                          // learning rate
    float norm = 0;                        // norm of the unscaled gradients, before clipping
    int64_t skipped = 0;                   // steps skipped since the start of the run
    int consecutive_skips = 0;             // up to and including this step
    int bad_tensor = 0;                    // 1 + index of the first FP8 tensor with a non-finite value, or 0
    ExceededLimits spike;                  // empty unless the step was a spike
    double loss_scale = 1;                 // for the next step
    double ms = 0;                         // device time, from the end of the previous step if nothing ran in between
    double peers_ms = 0;                   // of these, the time that this rank waited for other ranks
    std::optional<VerifiedStep> verified;  // only for steps that --verify-every checks
    std::vector<TensorSignal> signals;     // only for steps that --signals-every asks for
    std::optional<GradientNoise> noise;    // of the same steps, if they have several micro-batches
    bool is_skipped() const { return consecutive_skips > 0; }

    // From the trainer.
    ProductCounts products;  // matrix products of one micro-step

    // From the run, which knows the batches and the cards.
    int64_t tokens = 0;                                          // trained on so far, over all ranks
    std::vector<std::pair<std::string, int64_t>> source_tokens;  // of `tokens`, by source; empty for one source
    int64_t seq = 0;                                             // tokens per sequence with --seq-schedule, else 0
    double tokens_per_s = 0;                                     // over all ranks
    std::optional<double> mfu;                                   // model FLOPs utilization, if the cards' peak is known
    std::optional<double> watts, joules_per_token;      // all ranks' cards together, if their driver measures energy
    std::optional<double> sm_clock_mhz, temperature_c;  // of the slowest and of the hottest card, if the driver tells
    std::string batch_hash;                             // fingerprint of the step's samples; "" if unknown
    std::optional<FreshLoss> fresh;                     // only for step 1 of freshly initialised weights
    double data_ms = 0;                                 // time that this rank waited for its batches
    std::optional<SlowestRank> slowest;                 // if the ranks have exchanged their times of this step
};

// Copies each step's loss and state to the host as soon as the device has them. The training loop submits step k + 1
// before it takes the record of step k, so the device never waits for the host.
class StepResults {
public:
    explicit StepResults(PeerWaits& waits);

    // Call before a step's first work. `continues`: nothing but the previous step ran before it.
    void begin(bool continues, stream_t stream);
    // Call after a step's last work. At most two records may be waiting.
    void submit(int64_t step, const StepState* state, const int* loss_count, const float* loss_scale, stream_t stream);
    // The record of the last submitted step. The host fills in its fields before the record is taken.
    StepRecord& submitted() { return slots_[(submitted_ + 2) % 3].record; }
    // Returns the oldest record not taken yet, if more than `leave` are waiting. Waits for the device.
    std::optional<StepRecord> take(int leave);

private:
    struct Slot {
        struct Values {
            StepState state;
            float loss_scale;
            int loss_count;
        };
        Pinned<Values> values;
        OwnedEvent begin, end;
        bool continues = false;
        PeerWaits::Step waits;
        StepRecord record;  // fields known on the host
    };
    PeerWaits& waits_;
    Slot slots_[3];
    int64_t submitted_ = 0, taken_ = 0;
};

}  // namespace llmc
