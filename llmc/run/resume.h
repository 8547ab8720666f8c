// The position of a run, and --resume, which finds a checkpoint to continue from and compares it with the flags.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/flags/options.h"
#include "llmc/log/run_directory.h"
#include "llmc/log/watches.h"
#include "llmc/run/decay.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"

namespace llmc {

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
nlohmann::ordered_json position_json(const RunPosition& position, const Options& options, const Inputs& inputs);

struct Resumed {
    std::unique_ptr<CheckpointReader> checkpoint;
    RunPosition position;
    std::vector<std::string> notes;  // flags that differ from those of the checkpoint, for the user
    double seconds = 0;              // time to find and check it
};

// Finds the checkpoint that --resume asks for: rank 0 looks for it, and all ranks check its files. Damaged or
// incomplete checkpoints are skipped with a warning. Returns nothing if a new run begins; with --resume auto that is
// allowed only if nothing says that a run saved a checkpoint here. Otherwise throws Error(checkpoint) on all ranks. A
// collective.
std::optional<Resumed> find_checkpoint(const Options& options, const Inputs& inputs, Ranks& ranks);

}  // namespace llmc
