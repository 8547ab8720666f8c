// How a run begins. resume.cpp finds the checkpoint that --resume asks for, compares it with the flags, and sets the
// weights, a new run's as well. start.cpp prepares the run directory and opens the records in it.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/log/run_directory.h"
#include "llmc/log/validation_watch.h"
#include "llmc/run/stop.h"
#include "llmc/train/state.h"

namespace llmc {

class CheckpointReader;
struct Inputs;
struct Options;
struct Ranks;

// ---- the checkpoint and the weights (resume.cpp) --------------------------------------------------------------------

// How far a run has come. The Trainer has the rest of its state.
struct RunPosition {
    std::string run_id;
    int64_t step = 0;       // finished
    int64_t data_step = 0;  // next step of the sample order, from 0: `step` plus the steps that --skip-data skipped
    ValidationWatch watch;
    Decay decay;
    bool evaluation_due = false;  // a stop came before the validation, samples and records that follow the step
    int64_t saved = -1;           // step of the checkpoint in --out that the run resumed from, else -1
    RunFileSizes files;           // sizes of the logs
};
// `facts`: Inputs::facts() when the run began.
nlohmann::ordered_json position_json(const RunPosition& position, const Options& options, const Inputs& inputs,
                                     const nlohmann::ordered_json& facts);

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
std::string kernels_in_use(const nlohmann::ordered_json& of_run);

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
RunPosition set_weights(Trainer<Real>& trainer, const Options& options, Ranks& ranks, std::optional<Resumed>& resumed);

// Begins a decay that somebody asked for by hand. A share of the run (--fp8-until 94%) is then one of the shorter run.
template <class Real>
void decay(Trainer<Real>& trainer, const Options& options, const Decay& decay);

// ---- the run directory and its records (start.cpp) ------------------------------------------------------------------

// Prepares rank 0's directory for a new run. For a run that resumes in its own directory, nothing else changes yet.
void prepare_directory(RunDirectory& directory, const Options& options, const Inputs& inputs,
                       const std::optional<Resumed>& resumed);

// Opens the records, now that nothing can prevent the run any more: sets checkpoints aside that are newer than the
// resumed one, cuts metrics.jsonl and main.log to their lengths at that time, and writes run.json with `tuning`. A
// collective.
template <class Real>
void begin_records(RunDirectory& directory, Trainer<Real>& trainer, const Options& options,
                   const nlohmann::ordered_json& tuning, const Ranks& ranks, const RunPosition& position);

// The contents of run.json besides the options.
struct RunFacts {
    int world = 1;
    std::string device;                    // "NVIDIA H200", "host (2 threads)"
    std::string weights_hash;              // hash of the weights at the start
    std::string run_id;                    // the same in every checkpoint of the run
    int64_t resumed_at = -1;               // step at which the run resumed; -1 for a new run
    JsonValue tuning = {}, products = {};  // what was measured before the first step; the algorithm of each matmul
};

// Writes the options and `facts` into the directory's run.json. A resumed run adds an entry to "resumed" instead.
void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts);

}  // namespace llmc
