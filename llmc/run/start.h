// The beginning of a run: its directory, and its weights.
#pragma once
#include <optional>

#include "llmc/run/metrics.h"
#include "llmc/run/options.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

// Rank 0's directory, for a new run; for one that goes on in it, nothing yet.
void open_directory(RunDirectory& directory, const Options& options, const std::optional<Resumed>& resumed);

// Weights and state: from the checkpoint, which is closed then, from --init-from, or those of step 0. Returns where the
// run is. A collective.
template <class Real>
RunPosition start(Trainer<Real>& trainer, const Options& options, Ranks& ranks, std::optional<Resumed>& resumed);

// The run can begin, or go on: now its directory is changed. What is newer than the checkpoint is set aside,
// metrics.jsonl and main.log are cut to where they were, and run.json is written, with what the card check has to say.
// A collective.
template <class Real>
void enter_directory(RunDirectory& directory, const Trainer<Real>& trainer, const Options& options,
                     const nlohmann::ordered_json& card_check, const Ranks& ranks, const RunPosition& position);

}  // namespace llmc
