// The parameters in memory: FP32 master weights, FP32 gradients, AdamW's moments, and the working copy that the model's
// kernels read, all laid out by a ParameterTable.
//
// The model asks for weights and hands in gradients unit by unit:
//   gather(unit)   the unit's working weights are complete on this rank once the stream gets here
//   weight(...)    a pointer into them, valid until
//   release(unit)  the model needs them no more
//   reduce(unit)   the unit's gradient of this micro-step is complete on this rank
// On one rank all four cost nothing; sharding lives behind them and never rewrites forward and backward.
#pragma once
#include <functional>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/table.h"

namespace llmc {

template <class Real>  // the working copy's type: bf16, or float, where the master weights themselves are used
class Parameters {
public:
    Parameters(const ParameterTable& table, const Comm& comm);

    // Bytes each kind will need. allocate() takes them.
    size_t weight_bytes() const { return weights_.bytes(); }
    size_t gradient_bytes() const { return gradients_.bytes(); }
    size_t optimizer_bytes() const { return optimizer_.bytes(); }
    void allocate(stream_t stream);  // moments and gradients start at 0

    const ParameterTable& table() const { return table_; }

    void gather(size_t unit, stream_t stream);
    const Real* weight(size_t unit, size_t tensor) const;
    void release(size_t unit, stream_t stream);
    float* gradient(size_t unit, size_t tensor);
    const float* master(size_t unit, size_t tensor) const { return master_ + flat_index(unit, tensor); }
    void reduce(size_t unit, stream_t stream);

    // This rank's slice of a unit, for the optimizer.
    struct Slice {
        float *master, *m, *v, *gradient;
        Real* working;       // nullptr when the master weights are the working copy
        size_t count;        // elements
        size_t decay_count;  // the first so many have weight decay
    };
    Slice slice(size_t unit);
    // The slice in the ranges that the optimizer updates one after the other, from what keep_in_fp8() has said.
    struct Range {
        size_t begin, count, decay_count;  // in the slice
        Fp8State* fp8;                     // the optimizer measures these weights; nobody reads their working copy
    };
    const std::vector<Range>& ranges(size_t unit) const { return ranges_[unit]; }

    // The model reads this tensor in FP8 alone, made from the master weights: from now on the optimizer leaves its
    // working copy as it is, and raises state->amax_now to the new weights' largest magnitude. To be repeated at will.
    void keep_in_fp8(size_t unit, size_t tensor, Fp8State* state);
    // Whether a tensor in FP8 has changed by other hands than the optimizer's, so that it must be measured.
    bool to_be_measured() const { return to_be_measured_; }
    void set_measured() { to_be_measured_ = false; }

    // Host access for initialisation, import and export; synchronises.
    void set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream);
    std::vector<float> get_tensor(size_t unit, size_t tensor, stream_t stream) const;
    std::vector<float> get_gradient(size_t unit, size_t tensor, stream_t stream) const;

private:
    size_t flat_index(size_t unit, size_t tensor) const;
    void cut_into_ranges(size_t unit);
    std::vector<float> download(const float* from, size_t count, stream_t stream) const;

    const ParameterTable& table_;
    Arena weights_{"weights"}, gradients_{"gradients"}, optimizer_{"optimizer state"};
    float *master_ = nullptr, *m_ = nullptr, *v_ = nullptr, *gradient_ = nullptr;
    Real* working_ = nullptr;
    std::vector<std::vector<Fp8State*>> fp8_;  // by unit and tensor; nullptr: not in FP8
    std::vector<std::vector<Range>> ranges_;   // by unit
    bool to_be_measured_ = true;
};

}  // namespace llmc
