// How much memory a run takes, by what it is for.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"

namespace llmc {

// Bytes on one rank, by arena.
struct MemoryByKind {
    size_t weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;
    size_t total() const { return weights + gradients + optimizer + activations + workspace; }
    size_t operator[](MemoryKind kind) const;
};

}  // namespace llmc
