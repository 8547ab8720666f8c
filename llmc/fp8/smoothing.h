// The factors of --fp8-smooth: one for each channel of the inputs of some FP8 layers, from what these channels held in
// the step before. See llmc/kernels/smooth.h.
#pragma once
#include <string>

#include "llmc/comm/comm.h"
#include "llmc/shard/arena.h"

namespace llmc {

class Fp8Smoothing {
public:
    // Returns the layer's place. All have as many channels.
    int add(int channels);
    int layers() const { return layers_; }
    void plan(Arena& arena, const Comm& comm);
    void allocate(stream_t stream);  // all factors 1

    float* factors(int place) const { return factors_ + static_cast<size_t>(place) * static_cast<size_t>(channels_); }
    // Raised by training passes.
    float* amax(int place) const { return amax_ + static_cast<size_t>(place) * static_cast<size_t>(channels_); }
    // Once an optimizer step: from the amaxes of all micro-steps and ranks follow the next step's factors. A
    // collective.
    void finish_step(const Comm& comm, stream_t stream);

    // A letter for each channel, 'a' for 1, 'b' for 1/2 and so on; they wait for the device. False, and nothing is set:
    // not of so many channels.
    std::string text(int place, stream_t stream) const;
    bool set(int place, const std::string& text, stream_t stream);

private:
    size_t count() const { return static_cast<size_t>(layers_) * static_cast<size_t>(channels_); }

    int layers_ = 0, channels_ = 0;
    float *factors_ = nullptr, *amax_ = nullptr;  // (layers, channels)
    char* workspace_ = nullptr;                   // of the amaxes' reduction
};

}  // namespace llmc
