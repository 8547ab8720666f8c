// The beginning of a run: its directory, and its weights.
#pragma once
#include <optional>

#include "llmc/flags/options.h"
#include "llmc/log/metrics.h"
#include "llmc/log/profile.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

// Prepares rank 0's directory for a new run. A run that is resumed in it changes nothing yet.
void open_directory(RunDirectory& directory, const Options& options, const std::optional<Resumed>& resumed);

// Loads weights and state from the checkpoint, which it closes, or weights from --init-from, or initialises them.
// Returns where the run is. A collective.
template <class Real>
RunPosition start(Trainer<Real>& trainer, const Options& options, Ranks& ranks, std::optional<Resumed>& resumed);

// Changes the directory, now that nothing can prevent the run any more. Newer checkpoints than the resumed one are set
// aside, metrics.jsonl and main.log are cut to their lengths at that time, and run.json is written, with the results of
// the card check. A collective.
template <class Real>
void enter_directory(RunDirectory& directory, const Trainer<Real>& trainer, const Options& options,
                     const nlohmann::ordered_json& card_check, const Ranks& ranks, const RunPosition& position);

// The profiler's setup for --profile-steps; std::nullopt without the flag.
template <class Real>
std::optional<Profiler::Setup> profiler_setup(const Options& options, Trainer<Real>& trainer);

}  // namespace llmc
