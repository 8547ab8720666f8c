// What the parts of a model share while it is put together: each part plans its own memory and enters its own layers.
#pragma once
#include <string>

#include "llmc/kernels/variants.h"
#include "llmc/linear/linear.h"
#include "llmc/model/config.h"
#include "llmc/shard/arena.h"

namespace llmc {

// How much forward leaves for backward; what is not kept is computed again in backward, from the same inputs by the
// same kernels, so every level gives the same bits.
enum class Recompute {
    none,   // keep everything
    gelu,   // recompute the GELU's output
    norm,   // ... and the blocks' norms' outputs
    block,  // keep a block's input alone and run its forward again
};

template <class Real>
struct ModelContext {
    const ModelConfig& config;
    int B, T;  // at most, of a pass
    Recompute recompute;
    KernelSet kernels;
    Weights<Real>& weights;
    Gradients& gradients;
    LinearLayers<Real>& linear;
    Arena& activations;

    size_t N() const { return static_cast<size_t>(B) * static_cast<size_t>(T); }
    size_t C() const { return static_cast<size_t>(config.channels); }
    // Memory of this block, or, where it is not kept until backward, the same for all blocks.
    template <class T_>
    void plan(bool kept, const char* name, T_** pointer, size_t count) {
        if (kept)
            activations.plan(pointer, count);
        else
            activations.plan_shared(name, pointer, count);
    }
};

}  // namespace llmc
