// Skipped steps: the reason in words, and the error if there are too many in a row.
#pragma once
#include <string>

#include "llmc/fp8/registry.h"
#include "llmc/train/step_record.h"

namespace llmc {

// Names what went wrong first in a skipped step: the forward pass comes before the loss, and the loss before the
// backward pass. "the first FP8 tensor with a value that is not finite was h.3.fc_proj.dout". `fp8` may be nullptr.
std::string why_skipped(const StepRecord& record, const Fp8Registry* fp8);

// Throws Error(bad_numbers) after `max_skips` skipped steps in a row (0: never).
void check_skips(const StepRecord& record, int max_skips, const Fp8Registry* fp8);

}  // namespace llmc
