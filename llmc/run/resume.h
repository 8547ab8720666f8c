// Resuming from a checkpoint: chooses one, compares it with the flags, and reads where the run was.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/comm/comm.h"
#include "llmc/data/shards.h"
#include "llmc/flags/options.h"
#include "llmc/log/metrics.h"
#include "llmc/log/validation_watch.h"
#include "llmc/run/ranks.h"

namespace llmc {

// How far a run has come. The Trainer has the rest of its state.
struct RunPosition {
    std::string run_id;
    int64_t step = 0;  // finished
    int64_t data_step =
        0;  // the step of the sample order that comes next, from 0; `step` plus what --skip-data skipped
    ValidationWatch watch;
    bool evaluation_due = false;  // a stop came before the validation, samples and records that follow the step
    int64_t saved = -1;           // step of the checkpoint in --out that the run was resumed from; -1: none
    RunFileSizes files;
};
nlohmann::ordered_json position_json(const RunPosition& position, const Options& options, const ShardSet& train);

struct Resumed {
    std::unique_ptr<CheckpointReader> checkpoint;
    RunPosition position;
    bool in_place = false;           // the checkpoint is in --out, so the logs there are continued
    std::vector<std::string> notes;  // flags that differ from those of the checkpoint, for the user
    double seconds = 0;              // time to find and check it
};

// A collective. The first rank looks, and all check the files together. Nothing: a new run is to begin. What cannot be
// resumed is Error(checkpoint) on all ranks; checkpoints that are damaged or incomplete are skipped, with a line on
// stderr. --resume auto begins a new run only where nothing says that a run saved a checkpoint.
std::optional<Resumed> find_checkpoint(const Options& options, const ShardSet& train, Ranks& ranks);

// Throws unless the checkpoint holds exactly these tensors.
void require_tensors(const CheckpointReader& checkpoint, const std::vector<StateTensor>& tensors);

}  // namespace llmc
