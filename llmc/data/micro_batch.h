// The tokens and targets of a micro-batch.
#pragma once
#include <cstdint>

namespace llmc {

// One micro-batch of a rank. Tokens and targets are (B, T).
struct MicroBatch {
    const int32_t* tokens;
    const int32_t* targets;
    // The tokens as sort_tokens() groups them (token_sort_size(B * T)), which the embedding's backward reads. nullptr:
    // not sorted yet. If it is set, all three are in pinned memory that stays valid while two more batches are used.
    const int32_t* sorted = nullptr;
};

}  // namespace llmc
