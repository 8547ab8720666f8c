// The position of a run, and the preparation of its directory and records.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/base/json.h"
#include "llmc/log/run_directory.h"
#include "llmc/log/validation_watch.h"
#include "llmc/run/stop.h"

namespace llmc {

struct Inputs;
struct Options;
struct Ranks;
struct Resumed;
template <class Real>
class Trainer;

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

// Checks that rank 0's directory can take the run. An earlier run in it loses nothing yet.
void prepare_directory(RunDirectory& directory, const Options& options, const Inputs& inputs,
                       const std::optional<Resumed>& resumed);

// Opens the records, now that nothing can prevent the run any more, and writes run.json with `tuning`. A new run
// replaces the earlier one (--overwrite) or moves its files aside. One that resumes here sets checkpoints aside that
// are newer than its own, and cuts metrics.jsonl and main.log to their lengths at that time. A collective.
template <class Real>
void begin_records(RunDirectory& directory, Trainer<Real>& trainer, const Options& options, const Json& tuning,
                   const Ranks& ranks, const RunPosition& position);

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
