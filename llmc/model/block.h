// A block of a transformer: it reads the residual stream, adds a branch to it, and takes the gradient back. There is
// one class per architecture (gpt2_block.cpp, llama_block.cpp). Calls to a block are virtual, calls inside it are not.
#pragma once
#include "llmc/kernels/variants.h"
#include "llmc/linear/linear.h"
#include "llmc/model/config.h"
#include "llmc/shard/arena.h"

namespace llmc {

// How much forward keeps for backward. Backward computes the rest again from the same inputs with the same kernels, so
// every level gives the same bits.
enum class Recompute {
    none,      // keep everything
    gelu,      // recompute the activation's output
    norm,      // ... and the outputs of the block's norms
    block,     // keep only a block's input and run its forward again
    automatic  // until a plan has chosen the first of them that fits; a model never sees it
};

// Data that the parts of a model share while it is constructed. Each part plans its own memory and adds its own layers.
template <class Real>
struct ModelContext {
    const ModelConfig& config;
    int B, T;  // upper limits of a pass
    Recompute recompute;
    bool offload_residuals;
    KernelSet kernels;
    Weights<Real>& weights;
    Gradients& gradients;
    LinearLayers<Real>& linear;
    Arena& activations;

    size_t N() const { return static_cast<size_t>(B) * T; }
    size_t C() const { return static_cast<size_t>(config.channels); }
    // Memory of this block if it is kept until backward, otherwise the same memory for all blocks.
    template <class T_>
    void plan(bool kept, const char* name, T_** pointer, size_t count) {
        if (kept)
            activations.plan(pointer, count);
        else
            activations.plan_shared(name, pointer, count);
    }
};

// The residual stream between two blocks is residual + branch. `branch` is the output of the last projection, which the
// next norm adds. If it is nullptr, `residual` is the whole stream.
template <class Real>
struct ResidualStream {
    const Real* residual;  // (N, C)
    const Real* branch;    // (N, C)
};

template <class Real>
class Block {
public:
    virtual ~Block() = default;

    // (N, C), where the block's first norm writes the sum of the stream that it reads.
    virtual Real* residual() const = 0;
    // The layer whose output is the branch that forward() returns.
    virtual Linear<Real>& last_layer() = 0;
    // Called once, after the memory that the block has planned is allocated.
    virtual void allocated(stream_t) {}

    virtual ResidualStream<Real> forward(const ResidualStream<Real>& in, const Pass& pass) = 0;
    // For inference: forward of pass.N() rows of one sequence, from row `first` on. The block still has the earlier
    // rows. Both streams begin at the sequence's first row.
    virtual ResidualStream<Real> decode(const ResidualStream<Real>& in, int first, const Pass& pass) = 0;
    // True if the block still has its rows after other blocks have run.
    virtual bool keeps_rows() const = 0;
    // Before backward: computes again what forward did not keep.
    virtual void recompute(const Pass& pass) = 0;
    // In: gradient of the stream after the block. Out, in place: gradient of the stream before it. `before` is the
    // linear layer whose output was added to the stream just before this block, or nullptr. The gradient of the stream
    // is also the gradient of that layer's output, so the block's last kernel may cast it to FP8 for `before`.
    virtual Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) = 0;
};

}  // namespace llmc
