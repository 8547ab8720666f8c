// Steps that were skipped: why, in words, and when there were too many of them.
#pragma once
#include <string>

#include "llmc/optim/step.h"

namespace llmc {

// What went wrong first in a skipped step: forward comes before the loss, and that before backward.
// `blocks`: of the model, to name tensors.
// "the first FP8 tensor with a value that is not finite was h.3.fc_proj.dout"
std::string why_skipped(const StepResult& result, int blocks);

// Throws Error(bad_numbers) after `max_skips` skipped steps in a row (0: never).
void check_skips(const StepResult& result, int max_skips, int blocks);

}  // namespace llmc
