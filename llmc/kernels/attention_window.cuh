// Which keys a query sees: those of its window, up to its own.
#pragma once
#include "llmc/device/keywords.cuh"

namespace llmc::attention {

// Whether a query sees the key that many places before it.
LLMC_HD bool in_window(int distance, int window) {
    return static_cast<unsigned>(distance) < static_cast<unsigned>(window);
}

// The first key that a query sees, rounded down to a multiple of `rows`.
LLMC_HD int first_seen_key(int query, int window, int rows) {
    return query < window ? 0 : (query - window + 1) / rows * rows;
}

}  // namespace llmc::attention
