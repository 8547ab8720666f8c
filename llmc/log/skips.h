// Steps that were skipped: why, in words, and when there were too many of them.
#pragma once
#include <string>

#include "llmc/fp8/registry.h"
#include "llmc/train/step_results.h"

namespace llmc {

// What went wrong first in a skipped step: forward comes before the loss, and that before backward.
// `fp8`: nullptr where there is none.
// "the first FP8 tensor with a value that is not finite was h.3.fc_proj.dout"
std::string why_skipped(const StepResult& result, const Fp8Registry* fp8);

// Throws Error(bad_numbers) after `max_skips` skipped steps in a row (0: never).
void check_skips(const StepResult& result, int max_skips, const Fp8Registry* fp8);

}  // namespace llmc
