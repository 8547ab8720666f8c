// The inputs of the blocks in host memory (--offload residuals), between a micro-step's forward and its backward pass.
// Blocks take turns in a few device buffers. Forward copies each input to the host behind the next block, and backward
// brings it back while the block above is still at work.
#pragma once
#include <array>
#include <vector>

#include "llmc/device/owned.h"
#include "llmc/shard/arena.h"

namespace llmc {

class OffloadedResiduals {
public:
    static constexpr size_t kBuffers = 2;  // block l uses buffer l % kBuffers

    // `bytes`: of a block's input. Without blocks, all calls do nothing.
    OffloadedResiduals(size_t blocks, size_t bytes);

    bool is_used() const { return !kept_.empty(); }
    size_t host_bytes() const { return arena_.bytes(); }
    // `inputs`: device addresses of the blocks' inputs.
    void allocate(const std::vector<void*>& inputs);

    // In forward: before the block's input is written, and after the block has run.
    void acquire(size_t block, stream_t stream);
    void keep(size_t block, stream_t stream);
    // In backward: before and after the block runs. Work after bring() of all blocks waits for all copies.
    void bring(size_t block, stream_t stream);
    void release(size_t block, stream_t stream);

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
