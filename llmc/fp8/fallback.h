// Which FP8 tensors keep losing values: what --fp8-fallback decides on, from the counters in their states. After every
// optimizer step the counts of that step are taken out of the running ones, added up over the ranks, and compared with
// the rule; a streak of steps above it is a verdict.
#pragma once
#include <cstdint>

#include "llmc/device/runtime.h"
#include "llmc/fp8/recipe.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// Of one tensor: its counts at the last look, and how many steps in a row were above the rule.
struct Fp8Watch {
    uint64_t elements, saturated, underflowed;
    int saturating, underflowing;
};

enum class Fp8Reason { none, saturated, underflowed };
struct Fp8Verdict {
    int reason;      // an Fp8Reason: the streak is as long as the rule asks
    float fraction;  // of the elements, in this step
};

// packed (3, count) = elements, saturated and underflowed of every tensor since the last look.
void fp8_pack_counts(float* packed, Fp8Watch* watches, const Fp8State* states, int count, stream_t stream);
// From the counts of all ranks. A step with a value that is not finite (*bad_flag) was skipped, and changes no streak.
void fp8_judge(Fp8Verdict* verdicts, Fp8Watch* watches, const float* packed, const int* bad_flag, int count,
               const Fp8FallbackRule& rule, stream_t stream);
// Before fp8_clear_counts(): what has been counted since the last look is not lost with it.
void fp8_keep_watched_counts(Fp8Watch* watches, const Fp8State* states, int count, stream_t stream);

}  // namespace llmc
