// What a transformer is made of: a block reads the residual stream, adds a branch to it, and takes the gradient back.
// One class an architecture (gpt2_block.h); a few virtual calls a block and pass, everything inside is direct.
#pragma once
#include "llmc/model/context.h"

namespace llmc {

// The residual stream between two blocks: residual + branch, where branch is the last projection's output, which the
// next norm adds. Without a branch, residual is all of it.
template <class Real>
struct ResidualStream {
    const Real* residual;  // (N, C)
    const Real* branch;    // (N, C)
};

template <class Real>
class Block {
public:
    virtual ~Block() = default;

    // Where the stream goes that this block starts from: the norm before it adds it up here. (N, C)
    virtual Real* residual() const = 0;
    // The layer whose output is the branch that forward returns.
    virtual Linear<Real>& last_layer() = 0;
    // Once, behind the allocation of what the block has planned.
    virtual void allocated(stream_t) {}

    virtual ResidualStream<Real> forward(const ResidualStream<Real>& in, const Pass& pass) = 0;
    // Forward of the rows from `first` on, pass.N() of them, of one sequence whose earlier rows have come this way and
    // are still here; for inference alone. Both streams begin at the sequence's first row.
    virtual ResidualStream<Real> decode(const ResidualStream<Real>& in, int first, const Pass& pass) = 0;
    // Whether rows are still here after other blocks have run.
    virtual bool keeps_rows() const = 0;
    // What forward has not kept, made again in front of backward.
    virtual void recompute(const Pass& pass) = 0;
    // From the gradient of the stream behind the block to that in front of it, in place; `before`: the layer that was
    // last added there (nullptr: none).
    virtual Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) = 0;
};

}  // namespace llmc
