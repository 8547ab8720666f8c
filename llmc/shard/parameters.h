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

    // Host access for initialisation, import and export; synchronises.
    void set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream);
    std::vector<float> get_tensor(size_t unit, size_t tensor, stream_t stream) const;
    std::vector<float> get_gradient(size_t unit, size_t tensor, stream_t stream) const;

private:
    size_t flat_index(size_t unit, size_t tensor) const;
    std::vector<float> download(const float* from, size_t count, stream_t stream) const;

    const ParameterTable& table_;
    Arena weights_{"weights"}, gradients_{"gradients"}, optimizer_{"optimizer state"};
    float *master_ = nullptr, *m_ = nullptr, *v_ = nullptr, *gradient_ = nullptr;
    Real* working_ = nullptr;
};

}  // namespace llmc
