// A block of a transformer, and the parts that blocks and the model around them share. A block reads the residual
// stream, adds its branches to it, and takes the gradient back. There is one class per architecture (gpt2_block.cpp,
// llama_block.cpp). Calls to a block are virtual, calls inside it are not.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "llmc/device/owned.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/norm.h"
#include "llmc/linear/linear.h"
#include "llmc/model/setup.h"
#include "llmc/shard/arena.h"

namespace llmc {

// One way through a model, forward or backward.
struct Pass : LayerPass {         // N = B * T
    int B, T;                     // sequences, and tokens of each
    const int* documents;         // (B, T), see mark_documents(); nullptr: attention takes a row as one document
    float* max_logits = nullptr;  // (layers, NH), which training raises to attention's largest logits; or nullptr
};

// Data that the parts of a model share. While it is constructed, each part plans its memory and adds its layers here.
template <class Real>
struct ModelContext {
    const ModelSetup& setup;
    Weights<Real>& weights;
    Gradients& gradients;
    LinearLayers<Real>& linear;
    Arena& activations;  // hold nothing between passes
    Arena& constants;    // keep their values between passes

    size_t N() const { return static_cast<size_t>(setup.N()); }
    size_t C() const { return static_cast<size_t>(setup.model.channels); }
    // Memory of this block if it is kept until backward, otherwise the same memory for all blocks.
    template <class T>
    void plan(bool kept, const char* name, T** pointer, size_t count) {
        if (kept)
            activations.plan(pointer, count);
        else
            activations.plan_shared(name, pointer, count);
    }
};

template <class Real>
class Block {
public:
    virtual ~Block() = default;

    // (N, C), the block's input: the residual stream before it.
    virtual Real* residual() const = 0;
    // The layer whose output forward() adds to the stream last.
    virtual Linear<Real>& last_layer() = 0;
    // Called once, after the memory that the block has planned is allocated.
    virtual void allocated(stream_t) {}

    // Reads residual(), and writes the stream after the block to out (N, C).
    virtual void forward(Real* out, const Pass& pass) = 0;
    // For inference: forward of pass.N rows of one sequence, from row `first` on. The block still has the earlier
    // rows. `out` begins at the sequence's first row.
    virtual void decode(Real* out, int first, const Pass& pass) = 0;
    // True if the block still has its rows after other blocks have run.
    virtual bool keeps_rows() const = 0;
    // Call before backward: recomputes the activations that forward did not keep.
    virtual void recompute(const Pass& pass) = 0;
    // In: gradient of the stream after the block. Out, in place: gradient of the stream before it. `before` is the
    // linear layer whose output was added to the stream just before this block, or nullptr. The gradient of the stream
    // is also the gradient of that layer's output, so the block's last kernel may cast it to FP8 for `before`.
    virtual Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) = 0;
};

// ---- parts of blocks and of the model around them -------------------------------------------------------------------

// A layer norm or an RMS norm of the residual stream. Its output is the input of a linear layer, and is cast to FP8 if
// that layer is in FP8. Its backward computes the gradient of the residual stream. That is also
// the gradient of the linear layer whose output was added to the stream, and is cast for it.
template <class Real>
class Norm {
public:
    // A layer norm if the tensors name.weight and name.bias exist. Otherwise an RMS norm, with gains if name.weight
    // exists. `kept`: mean and rstd are kept until backward.
    Norm(ModelContext<Real>& context, const std::string& name, bool kept);
    // Floats that backward needs for partial sums.
    static size_t scratch(int N, int C) {
        return std::max(norm_backward_scratch(NormKind::layer, N, C), norm_backward_fp8_scratch(NormKind::layer, N, C));
    }

    // The norm of inp (N, C), as the input of `reader`.
    Operand<Real> forward(Linear<Real>& reader, const Real* inp, const Pass& pass);
    // The same if no linear layer reads the norm.
    void forward(Real* normed, const Real* inp, const Pass& pass) {
        norm_forward(parameters(), normed, mean_, rstd_, inp, pass.N, channels_, pass.stream);
    }
    // dinp = dresidual + the gradient through the norm of `inp`, (N, C) each. dresidual may be nullptr, for 0, or dinp
    // itself. `added` is the linear layer whose output was added to give inp, or nullptr. The result is also the
    // gradient of its output.
    Gradient<Real> backward(Real* dinp, const Real* dresidual, const Real* dout, const Real* inp, Linear<Real>* added,
                            const Pass& pass);

private:
    Weights<Real>& weights_;
    Gradients& gradients_;
    using Place = std::optional<ParameterTable::Place>;
    const Real* value(const Place& place) const { return place ? weights_.weight(*place) : nullptr; }
    float* gradient(const Place& place) { return place ? gradients_.gradient(*place) : nullptr; }

    NormParameters<Real> parameters() const;

    const int channels_;
    const float eps_;  // used by RMS norm only
    const Place weight_, bias_;
    const bool casts_gradient_;                // the gradient of `added`
    float *mean_ = nullptr, *rstd_ = nullptr;  // (N)
    float* bias_parts_ = nullptr;              // column sums for the bias gradient of `added`; shared
};

// The inputs of the blocks in host memory (--offload residuals), between a micro-step's forward and its backward pass.
// Blocks take turns in a few device buffers. Forward copies each input to the host during the next block, and backward
// brings it back while the block above is still at work.
class OffloadedResiduals {
public:
    // Block l uses buffer l % kBuffers. While it runs, it writes the next block's input, and the previous block's is
    // copied.
    static constexpr size_t kBuffers = 3;

    // `bytes`: of a block's input. Without blocks, all calls do nothing.
    OffloadedResiduals(size_t blocks, size_t bytes);

    bool is_used() const { return !kept_.empty(); }
    size_t host_bytes() const { return arena_.bytes(); }
    // `inputs`: device addresses of the blocks' inputs.
    void allocate(const std::vector<void*>& inputs);

    // In forward: before the block's input is written, and after the block has run.
    void acquire(size_t block, stream_t stream) {
        if (is_used()) wait(stream, buffer_of(block).copied);
    }
    void keep(size_t block, stream_t stream);
    // In backward: before and after the block runs. Work after bring() of all blocks waits for all copies.
    void bring(size_t block, stream_t stream);
    void release(size_t block, stream_t stream) {
        if (is_used()) record(buffer_of(block).used, stream);
    }

    const void* kept(size_t block) const { return kept_[block]; }  // in host memory, after keep() and bring()
    stream_t copies() const { return copies_; }                    // for profiles; nullptr if unused

private:
    struct Buffer {
        size_t block = ~size_t{0};  // whose input it has
        OwnedEvent used, copied;
    };
    Buffer& buffer_of(size_t block) { return buffers_[block % kBuffers]; }
    void fetch(size_t block);

    const size_t bytes_;
    Arena arena_{MemoryKind::offloaded};
    std::vector<char*> kept_;    // by block, in host memory
    std::vector<void*> inputs_;  // by block, on the device
    std::array<Buffer, kBuffers> buffers_;
    OwnedStream copies_;
};

}  // namespace llmc
