// One home for a training step: a Trainer plans what a run needs, allocates it, and takes micro-batches and steps in
// the one order in which they are right. It knows no flags, files or terminal; the program, the tests and the
// benchmarks all train through it.
//
//   Trainer<bf16> trainer(config, comm);      // plans; trainer.memory() is known now, on a machine without a GPU too
//   trainer.allocate();
//   trainer.initialize(seed);                 // or set_weight() of every tensor; then weights_are_set()
//   for (...) {
//       trainer.begin_step(kind);
//       for (int m = 0; m < config.micro_steps; m++) trainer.micro_step(tokens, targets);
//       trainer.finish_step();
//       while (auto result = trainer.take_result(1)) ...   // of the step before: the device goes on meanwhile
//   }
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/linear/matmul.h"
#include "llmc/model/transformer.h"
#include "llmc/optim/optimizer.h"
#include "llmc/train/memory_by_kind.h"
#include "llmc/train/state.h"
#include "llmc/train/step_results.h"
#include "llmc/train/verification.h"

namespace llmc {

// Everything that decides what a run computes, but for its data and the type of its activations.
struct TrainerConfig {
    ModelConfig model;
    int batch = 1, seq = 0;  // B sequences of T tokens a micro-batch of one rank
    int shortest_piece = 0;  // in tokens, of the sequences that begin_step() may cut; 0: it cuts none
    int micro_steps = 1;     // a step
    Recompute recompute = Recompute::gelu;
    bool tf32 = false;
    FastAccumulation fast_accumulation = FastAccumulation::forward;
    std::optional<Fp8Config> fp8;    // with bf16 activations alone
    std::string fp8_layers = "all";  // see Fp8Layers
    size_t logits_bytes = kLogitsBytes;
    std::optional<int> end_token;             // attention does not cross documents: see ModelSetup
    bool document_positions = false;          // nor do positions
    KernelSet kernels = KernelSet::common();  // the counterparts do the work of the others
    Sharding sharding;                        // but for its `fp8`, which follows from the above
    TrainedLoss loss;
    ScheduleConfig schedule;
    AdamWConfig adamw;
    OptimizerConfig optimizer;  // which, and what it takes beside that
    double clip = 0;            // 0: off
    LossScaleConfig loss_scale;
    bool skip_spikes = false;
    ProductChoices products;    // as a card check has chosen
    bool forward_only = false;  // no memory for gradients and moments: to evaluate and to sample
    int64_t verify_every = 0;   // every so many steps bits are compared (verification.h); 0: never

    Fp8Scaling fp8_scaling() const { return fp8 ? scaling_of(fp8->recipe) : Fp8Scaling::tensor; }
};

// One step, beside its data.
struct StepKind {
    bool continues = false;     // nothing has run since the step before
    bool count_losses = false;  // casts to FP8 count what they lose
    bool probes = false;        // the products of its first micro-step are made in BF16 as well (linear.h)
    int micro_steps = 0;        // 0: as many as TrainerConfig says
    // Its sequences are cut into pieces of so many tokens, which are sequences by themselves, none below
    // shortest_piece; 0: they are whole.
    int length = 0;
};

template <class Real>
class Trainer {
public:
    Trainer(const TrainerConfig& config, const Comm& comm);
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    MemoryByKind memory() const;
    void allocate();

    // Weights: those of step 0, or tensor by tensor under the table's names (every rank gives, and gets, the same; wte
    // may come without its padded rows). After the last set_weight(), weights_are_set().
    void initialize(uint64_t seed);
    void set_weight(const std::string& name, const std::vector<float>& values);
    void weights_are_set();
    std::vector<float> get_weight(const std::string& name) const;

    void begin_step(const StepKind& kind);
    // See Optimizer.
    void scale_rate(double factor) { optimizer_.scale_rate(factor); }
    // tokens, targets (B, T), on the host. `weight`: of this micro-batch in the step's loss, beside the others.
    void micro_step(const int* tokens, const int* targets, float weight = 1.0f);
    // Optimizer, FP8 scales, layers that leave FP8 (returned), and the working copies for the next step.
    std::vector<Fp8Fallback> finish_step();
    // The oldest step that has not been asked for, if more than `leave` are at work: waits for the device.
    std::optional<StepResult> take_result(int leave);
    int64_t steps() const { return step_; }  // finished, in this run
    // Matrix products of a micro-step of the last step, and those in FP8 that there should be.
    const ProductCounts& products() const { return products_; }
    int64_t expected_fp8_products() const { return model_.fp8_products(); }

    // ---- the state between two steps, for checkpoints; all wait for the device, and are collectives

    // Of all masters and moments, what this rank saves: together the ranks' slices are everything, once.
    std::vector<DeviceSlice> state_slices();
    std::vector<StateTensor> state_tensors() const;  // what everything is
    TrainerState read_state();
    // Values of a part of a tensor (see StateSlice), from wherever they are kept.
    using ReadState = std::function<void(const std::string& tensor, const std::string& part, uint64_t start,
                                         uint64_t count, float* values)>;
    // In place of initialize(). The step after it has the bits that it had, or would have had, where the state was
    // read, on any number of ranks that sums in that order. False: FP8 scales are found anew, because this run makes
    // them in another way.
    bool restore(const TrainerState& state, const ReadState& read);

    // The loss of batches that are not trained on: sums over all ranks; waits for the device.
    struct LossSum {
        double sum = 0, count = 0;
    };
    LossSum evaluate(const int* tokens, const int* targets);
    // This rank's losses, (B, T), token by token; 0 where the target is -1. A collective all the same.
    std::vector<float> token_losses(const int* tokens, const int* targets);

    const TrainerConfig& config() const { return config_; }
    const Comm& comm() const { return comm_; }
    const ParameterTable& table() const { return table_; }
    const ShardLayout& layout() const { return layout_; }
    stream_t stream() const { return stream_; }
    Weights<Real>& weights() { return weights_; }
    const Weights<Real>& weights() const { return weights_; }
    Gradients& gradients() { return gradients_; }
    Matmul& matmul() { return matmul_; }
    Fp8Registry* fp8() { return model_.fp8(); }  // nullptr: none
    Transformer<Real>& model() { return model_; }
    Optimizer<Real>& optimizer() { return optimizer_; }

private:
    std::vector<DeviceSlice> slices_within(size_t unit, size_t begin, size_t count);
    std::vector<DeviceSlice> second_moments() const;
    void restore_residuals(const TrainerState& state, const ReadState& read);
    std::vector<Matmul::LinearShape> product_shapes() const;

    // Of a step that is verified.
    bool verifies(int64_t step) const { return verification_ && step % config_.verify_every == 0; }
    void begin_verification();
    void end_verification();
    template <class MicroStep>
    void make_twice(MicroStep&& micro_step);
    void see_state(bool again);
    void see_weights(bool again);
    void see_results(bool again);
    void see_gradients(Verified kind, bool again);
    void see_tensors(Verified kind, bool again, const std::string& what, size_t unit, const float* slice);

    const TrainerConfig config_;
    const Comm comm_;
    const ParameterTable table_;
    const ShardLayout layout_;
    stream_t stream_{};
    Weights<Real> weights_;
    Gradients gradients_;
    Matmul matmul_;
    Transformer<Real> model_;
    Optimizer<Real> optimizer_;
    std::optional<StepResults> results_;  // and the stream: once allocated
    StepKind kind_;                       // of this step
    int micro_step_ = 0;
    int64_t step_ = 0;
    ProductCounts products_;
    std::optional<Verification> verification_;
};

}  // namespace llmc
