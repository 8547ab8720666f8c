// One way through a model, forward or backward: what it is for, over how many tokens, and on which stream.
#pragma once
#include "llmc/device/runtime.h"

namespace llmc {

// Only training leaves traces in amaxes, histories and counters.
enum class PassKind { training, recompute, evaluation };

struct Pass {
    PassKind kind;
    int B, T;         // sequences, and tokens of each
    bool accumulate;  // gradients are added to what is there
    float* scratch;   // for partial sums of gradients; of the model
    stream_t stream;
    const int* documents = nullptr;  // (B, T) for attention; nullptr: a row is one document

    int N() const { return B * T; }
    Pass as(PassKind other) const {
        Pass pass = *this;
        pass.kind = other;
        return pass;
    }
    // Over so many tokens of it.
    Pass over(int tokens) const {
        Pass pass = *this;
        pass.B = 1, pass.T = tokens;
        return pass;
    }
};

}  // namespace llmc
