// A training step: the Trainer plans the memory of a run, allocates it, and takes micro-batches and steps in the one
// order in which they are right. It knows no flags, files or terminal. The program, the tests and the benchmarks all
// train through it.
//
//   Trainer<bf16> trainer(config, comm);      // plans; trainer.memory() is known now, also on a machine without a GPU
//   trainer.allocate();
//   trainer.initialize(seed);                 // or set_weight() of every tensor, then weights_are_set()
//   for (...) {
//       trainer.begin_step(kind);
//       for (int m = 0; m < config.micro_steps; m++) trainer.micro_step(tokens, targets);
//       trainer.finish_step();
//       while (auto result = trainer.take_result(1)) ...   // the previous step's, while the device works on this one
//   }
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/device/owned.h"
#include "llmc/linear/matmul.h"
#include "llmc/model/transformer.h"
#include "llmc/optim/optimizer.h"
#include "llmc/shard/arena.h"
#include "llmc/train/config.h"

namespace llmc {

class StepResults;
struct DeviceSlice;
struct StateTensor;
struct StepRecord;
struct TrainerState;
template <class Real>
class Verification;
template <class Real>
class Signals;

// The model that validates an FP8 run in BF16 (--val-precision bf16). A run exports its weights in FP32 or BF16, and an
// FP8 forward pass would add its own rounding to their loss. The model has no memory of its own. Between two steps it
// uses memory whose contents are not needed then:
//
//   its working weights             the gradients' memory; they are cast from the masters once per validation
//   its activations and workspace   those of the trained model
//
// If every rank has memory for all gradients, it also gets all working weights. Otherwise each rank casts its slices,
// and units are gathered before each use, as in --zero 3. The losses are those of a BF16 run, to the bit.
template <class Real>
class ValidationModel {
public:
    // `trained` has these weights and gradients.
    ValidationModel(const TrainerConfig& config, Weights<Real>& weights, Gradients& gradients, Matmul& matmul,
                    Transformer<Real>& trained);

    void allocate(stream_t stream);  // after the trained model
    Transformer<Real>& model() { return model_; }
    const Transformer<Real>& model() const { return model_; }

    // Between two steps, around the evaluations of a validation.
    void begin(stream_t stream);
    void end(stream_t stream) {
        weights_.wait_for_gathers(stream);
        gradients_.clear(stream);
    }

private:
    const ModelSetup setup_;
    const ParameterTable table_;
    const ShardLayout layout_;
    Weights<Real> weights_;
    Gradients& gradients_;
    Transformer<Real>& trained_;
    Transformer<Real> model_;
};

// Properties of a single step.
struct StepKind {
    bool continues = false;     // the previous step was the last work on the stream
    bool count_losses = false;  // FP8 casts count the elements that saturate or underflow
    int micro_steps = 0;        // 0: TrainerConfig::micro_steps
    // Sequences are cut into pieces of this many tokens, at least shortest_piece, each its own sequence; 0: they stay
    // whole.
    int length = 0;
    bool batch_changes = false;  // the previous step had another number of tokens
};

template <class Real>
class Trainer {
public:
    Trainer(const TrainerConfig& config, const Comm& comm);
    ~Trainer();

    // On this device, or on a GPU of this compute capability (90 for sm_90).
    MemoryByKind memory(std::optional<int> compute_capability = {}) const;
    void allocate();

    // ---- weights: those of step 0, or tensor by tensor under the table's names ----

    // Every rank sets and gets the same values; wte may come without its padded rows. Call weights_are_set() after the
    // last set_weight().
    void initialize(uint64_t seed) {
        model_.initialize(seed, stream_);
        weights_are_set();
    }
    void set_weight(const std::string& name, const std::vector<float>& values);
    void weights_are_set();
    std::vector<float> get_weight(const std::string& name) const;

    // ---- a step ----

    void begin_step(const StepKind& kind);
    // `weight` of this micro-batch's losses in the step's loss, relative to 1. Memory that is not pinned
    // (MicroBatch::sorted) is copied before the call returns.
    void micro_step(const MicroBatch& batch, float weight = 1.0f);
    void micro_step(const int* tokens, const int* targets, float weight = 1.0f) {
        micro_step({tokens, targets}, weight);
    }
    // Reduces gradients, updates the weights and FP8 scales, and prepares the working copies of the next step. Returns
    // the layers that left FP8.
    std::vector<Fp8Fallback> finish_step();
    int64_t steps() const { return step_; }  // finished so far

    // ---- results ----

    // The record of the step just finished. The caller may fill in more fields.
    StepRecord& submitted();
    // Returns the record of the oldest step not taken yet, if more than `leave` are waiting. Waits for the device.
    std::optional<StepRecord> take_result(int leave);
    // How many of a micro-step's matrix products (StepRecord::products) should be in FP8.
    int64_t expected_fp8_products() const { return model_.linear().fp8_products(config_.N()); }
    // The products of a step, with the kinds of layers, or the optimizer, that need them.
    ProductUses kinds_of_products() const;

    // ---- evaluation ----

    // Between two steps: evaluates in the precision of validation during the lifetime of the object that it returns.
    // Otherwise evaluation is in the run's.
    [[nodiscard]] auto validation() {
        if (validation_model_) validation_model_->begin(stream_);
        if (validation_model_) evaluated_ = &validation_model_->model();
        return AtScopeEnd([this] {
            if (validation_model_) validation_model_->end(stream_);
            evaluated_ = &model_;
        });
    }
    Precision validation_precision() const { return validation_model_ ? Precision::bf16 : config_.precision; }

    // Loss of a batch, without training on it: sums over all ranks; waits for the device.
    struct LossSum {
        double sum = 0, count = 0;
    };
    LossSum evaluate(const int* tokens, const int* targets);
    // This rank's losses (B, T), token by token; 0 where the target is -1. Also a collective.
    std::vector<float> token_losses(const int* tokens, const int* targets);
    std::vector<float> token_losses() const;  // the same for the batch of the last evaluate()

    // ---- the state between two steps, for checkpoints; collectives that wait for the device ----

    // The parts of the state that this rank saves. Those of all ranks together are the whole state, without overlap.
    std::vector<DeviceSlice> state_slices() const;
    std::vector<StateTensor> state_tensors() const;  // the whole state
    TrainerState read_state();
    // Reads elements [start, start + count) of a tensor's part (see StateSlice) from a checkpoint.
    using ReadState = std::function<void(const std::string& tensor, const std::string& part, uint64_t start,
                                         uint64_t count, float* values)>;
    // Call instead of initialize(). The next step then has the same bits as in the saved run, on any number of ranks
    // with the same order of sums. Returns false if FP8 scales have to be found again, because they are made
    // differently in this run.
    bool restore(const TrainerState& state, const ReadState& read);
    // False if the residuals in a checkpoint do not fit this run, which then starts them at zero: with a different
    // number of ranks they would belong to other micro-batches, with a different alignment to other parameters.
    bool continues_residuals(const TrainerState& state) const;

    // NorMuon's second moments of all matrices. `values` is nullptr if another rank owns the matrix.
    std::vector<DeviceSlice> second_moments() const;

    // ---- the parts ----

    const TrainerConfig& config() const { return config_; }
    const Comm& comm() const { return comm_; }
    const ParameterTable& table() const { return table_; }
    const ShardLayout& layout() const { return layout_; }
    stream_t stream() const { return stream_; }
    Weights<Real>& weights() { return weights_; }
    const Weights<Real>& weights() const { return weights_; }
    Gradients& gradients() { return gradients_; }
    Matmul& matmul() { return matmul_; }
    Fp8Registry* fp8() { return model_.fp8(); }  // nullptr without FP8
    Transformer<Real>& model() { return model_; }
    Optimizer<Real>& optimizer() { return optimizer_; }
    const Optimizer<Real>& optimizer() const { return optimizer_; }

private:
    void clip_logits();
    void restore_residuals(const TrainerState& state, const ReadState& read);
    std::vector<Matmul::LinearShape> product_shapes() const;

    const TrainerConfig config_;
    const Comm comm_;
    const ParameterTable table_;
    const ShardLayout layout_;
    Weights<Real> weights_;
    Gradients gradients_;
    Matmul matmul_;
    Transformer<Real> model_;
    Optimizer<Real> optimizer_;
    std::optional<ValidationModel<Real>> validation_model_;  // if TrainerConfig::validates_in_bf16()
    Transformer<Real>* evaluated_ = &model_;                 // by evaluate()
    std::unique_ptr<StepResults> results_;                   // created by allocate(), as the stream
    StepKind kind_;                                          // kind of the current step
    int micro_step_ = 0;
    int64_t step_ = 0;
    std::unique_ptr<Signals<Real>> signals_;            // nullptr without --signals-every
    std::unique_ptr<Verification<Real>> verification_;  // nullptr without --verify-every
    OwnedStream stream_;
};

}  // namespace llmc
