// The beginning of a run: its directory, and its weights.
#pragma once
#include <optional>

#include "llmc/run/metrics.h"
#include "llmc/run/options.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

// Rank 0's directory, for a new run or for one that goes on.
void open_directory(RunDirectory& directory, const Options& options, const std::optional<Resumed>& resumed);

// Weights and state: from the checkpoint, from --init-from, or those of step 0; then run.json. Returns where the run
// is. A collective.
template <class Real>
RunPosition start(Trainer<Real>& trainer, const Options& options, const Ranks& ranks, RunDirectory& directory,
                  const std::optional<Resumed>& resumed);

}  // namespace llmc
