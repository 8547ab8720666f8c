// How much memory a run takes, by what it is for.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"

namespace llmc {

// Bytes on one rank, by arena.
struct MemoryByKind {
    size_t weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;
    size_t staging = 0;  // of the host's memory, not the device's: the copy that a checkpoint is written from
    // On the device.
    size_t total() const { return weights + gradients + optimizer + activations + workspace; }
    size_t operator[](MemoryKind kind) const;
};

}  // namespace llmc
