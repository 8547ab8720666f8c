// Clipping by other bounds than that of all gradients' norm (--clip-kind), of the sums that this rank updates, where
// they lie: what comes behind sees clipped gradients.
#pragma once
#include "llmc/optim/config.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/gradients.h"

namespace llmc {

class Clipping {
public:
    // Nothing to do, and no memory, with ClipKind::norm or without a bound.
    Clipping(Gradients& gradients, ClipKind kind, double clip);

    size_t bytes() const { return arena_.bytes(); }
    void allocate() {
        if (bytes() > 0) arena_.allocate();
    }
    // Of gradients that are *loss_scale times the true ones. A tensor's norm is that of the whole tensor, whatever
    // ranks have of it: squares are added in double, and the norm is rounded to FP32.
    void apply(const float* loss_scale, stream_t stream);

private:
    void clip_tensors(const float* loss_scale, stream_t stream);
    template <class Visit>
    void for_each_tensor(Visit&& visit) const;

    Gradients& gradients_;
    const ClipKind kind_;
    const double clip_;
    size_t tensors_ = 0;
    Arena arena_{MemoryKind::workspace};
    double *partials_ = nullptr, *squares_ = nullptr;  // of one tensor; one a tensor
    float* factors_ = nullptr;                         // one a tensor
    char* workspace_ = nullptr;                        // of the sum over the ranks
};

}  // namespace llmc
