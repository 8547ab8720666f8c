// --fp8-fallback: finds FP8 tensors that keep losing values, from the counters in their states. After every optimizer
// step, that step's counts are taken from the running ones, summed over the ranks and compared with the rule. A long
// enough streak of steps above the rule is a verdict.
#pragma once
#include <cstdint>

#include "llmc/device/runtime.h"
#include "llmc/fp8/recipe.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// One tensor's counts after the last step, and for how many steps in a row they were above the rule.
struct Fp8Watch {
    uint64_t elements, saturated, underflowed;
    int saturating, underflowing;
};

enum class Fp8Reason { none, saturated, underflowed };
struct Fp8Verdict {
    int reason;      // an Fp8Reason
    float fraction;  // fraction of elements that were lost in this step
};

// packed (3, count) = elements, saturated and underflowed of every tensor since the last call.
void fp8_pack_counts(float* packed, Fp8Watch* watches, const Fp8State* states, int count, stream_t stream);
// Judges the counts of all ranks. A step with a value that is not finite (*bad_flag) was skipped and changes no streak.
void fp8_judge(Fp8Verdict* verdicts, Fp8Watch* watches, const float* packed, const int* bad_flag, int count,
               const Fp8FallbackRule& rule, stream_t stream);
// Call before fp8_clear_counts(), which would otherwise lose the counts since the last fp8_pack_counts().
void fp8_keep_watched_counts(Fp8Watch* watches, const Fp8State* states, int count, stream_t stream);

}  // namespace llmc
