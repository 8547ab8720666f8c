// Copies of the blocks' inputs to the host and back. See offloaded_residuals.h.
#include "llmc/model/offloaded_residuals.h"

#include "llmc/device/trace.h"

namespace llmc {

OffloadedResiduals::OffloadedResiduals(size_t blocks, size_t bytes) : bytes_(bytes), kept_(blocks) {
    for (char*& input : kept_) arena_.plan(&input, bytes);
}

void OffloadedResiduals::allocate(const std::vector<void*>& inputs) {
    if (!is_used()) return;
    arena_.allocate();
    inputs_ = inputs;
    copies_ = create_stream();
    for (Buffer& buffer : buffers_)
        for (OwnedEvent* event : {&buffer.used, &buffer.copied}) *event = create_event();
}

void OffloadedResiduals::acquire(size_t block, stream_t stream) {
    if (is_used()) wait(stream, buffer_of(block).copied);
}

void OffloadedResiduals::keep(size_t block, stream_t stream) {
    if (!is_used()) return;
    Buffer& buffer = buffer_of(block);
    record(buffer.used, stream);
    wait(copies_, buffer.used);
    {
        const ProfileRange range("residual to the host", copies_);
        copy_on_device(kept_[block], inputs_[block], bytes_, copies_);
    }
    record(buffer.copied, copies_);
    buffer.block = block;
}

void OffloadedResiduals::fetch(size_t block) {
    Buffer& buffer = buffer_of(block);
    if (buffer.block == block) return;
    wait(copies_, buffer.used);
    {
        const ProfileRange range("residual to the device", copies_);
        copy_on_device(inputs_[block], kept_[block], bytes_, copies_);
    }
    record(buffer.copied, copies_);
    buffer.block = block;
}

void OffloadedResiduals::bring(size_t block, stream_t stream) {
    if (!is_used()) return;
    fetch(block);
    wait(stream, buffer_of(block).copied);
    if (block > 0) fetch(block - 1);
}

void OffloadedResiduals::release(size_t block, stream_t stream) {
    if (is_used()) record(buffer_of(block).used, stream);
}

}  // namespace llmc
