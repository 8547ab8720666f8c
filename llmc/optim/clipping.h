// Gradient clipping other than by the norm of all gradients (--clip-kind). It clips the sums that this rank updates, in
// place, so later work sees clipped gradients.
#pragma once
#include "llmc/optim/config.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/gradients.h"

namespace llmc {

class Clipping {
public:
    // With ClipKind::norm or without a bound it does nothing and needs no memory.
    Clipping(Gradients& gradients, ClipKind kind, double clip);

    size_t bytes() const { return arena_.bytes(); }
    void allocate() {
        if (bytes() > 0) arena_.allocate();
    }
    // Clips gradients that are *loss_scale times the true ones. A tensor's norm covers the whole tensor, over all ranks
    // that hold parts of it: squares are added in double, and the norm is rounded to FP32.
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
    double *partials_ = nullptr, *squares_ = nullptr;  // partials_ is for one tensor; squares_ has one value per tensor
    float* factors_ = nullptr;                         // one per tensor
    char* workspace_ = nullptr;                        // for the sum over the ranks
};

}  // namespace llmc
