// The checkpoint that --resume asks for, compared with the flags, and the weights of a run, a new run's as well.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/run/start.h"
#include "llmc/train/state.h"

namespace llmc {

// `facts`: Inputs::facts() when the run began.
Json position_json(const RunPosition& position, const Options& options, const Inputs& inputs, const Json& facts);

// The answer of a resumed run to a setting or an input that differs from that of the checkpoint's run.
enum class OnChange {
    free,      // goes on: the change has no effect on what a step computes
    noted,     // goes on with a note
    new_data,  // refuses, unless --new-data accepts other data
    refused,
};
struct ResumeRule {
    OnChange change;
    const char* names;        // of flags, and of Inputs::facts()
    const char* advice = "";  // the end of the refusal
};
extern const std::vector<ResumeRule> kResumeRules;  // each name once
const ResumeRule& resume_rule(const std::string& name);

// The word of Options::kernels_in_use for the "kernels" of an earlier run; "" if it named none. Earlier versions listed
// kernels.
std::string kernels_in_use(const Json& of_run);

struct Resumed {
    std::unique_ptr<CheckpointReader> checkpoint;
    RunPosition position;
    TrainerState state;
    std::vector<std::string> changed;  // names of settings and inputs that differ from those of the checkpoint
    std::vector<std::string> notes;    // for the user
    double seconds = 0;                // time to find and check it
};

// Finds the checkpoint that --resume asks for: rank 0 looks for it, and all ranks check its files. Damaged or
// incomplete checkpoints are skipped with a warning. Returns nothing if a new run begins; with --resume auto that is
// allowed only if nothing says that a run saved a checkpoint here. Otherwise throws Error(checkpoint) on all ranks. A
// collective.
std::optional<Resumed> find_checkpoint(const Options& options, const Inputs& inputs, Ranks& ranks);

// Sets the trainer's weights: from the checkpoint, with the rest of the state, and closes it; or from --init-from; or
// freshly initialised. Returns where the run is. A collective.
template <class Real>
RunPosition set_weights(Trainer<Real>& trainer, const Options& options, const Inputs& inputs, Ranks& ranks,
                        std::optional<Resumed>& resumed);

// Begins a decay that somebody asked for by hand. A share of the run (--fp8-until 94%) is then one of the shorter run.
template <class Real>
void decay(Trainer<Real>& trainer, const Options& options, const Decay& decay);

}  // namespace llmc
