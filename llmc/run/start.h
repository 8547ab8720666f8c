// How a run begins: its weights, and the records in its directory.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

// Prepares rank 0's directory for a new run. For a run that resumes in its own directory, nothing changes yet.
void prepare_directory(RunDirectory& directory, const Options& options, const std::optional<Resumed>& resumed);

// Sets the trainer's weights: from the checkpoint, with the rest of the state, and closes it; or from --init-from; or
// freshly initialised. Returns where the run is. A collective.
template <class Real>
RunPosition set_weights(Trainer<Real>& trainer, const Options& options, Ranks& ranks, std::optional<Resumed>& resumed);

// Opens the records, now that nothing can prevent the run any more: sets checkpoints aside that are newer than the
// resumed one, cuts metrics.jsonl and main.log to their lengths at that time, and writes run.json with `card_check`. A
// collective.
template <class Real>
void begin_records(RunDirectory& directory, Trainer<Real>& trainer, const Options& options,
                   const nlohmann::ordered_json& card_check, const Ranks& ranks, const RunPosition& position);

// The contents of run.json besides the options.
struct RunFacts {
    int world = 1;
    std::string device;                                     // "NVIDIA H200", "host (2 threads)"
    std::string weights_hash;                               // hash of the weights at the start
    std::string run_id;                                     // the same in every checkpoint of the run
    int64_t resumed_at = -1;                                // step at which the run resumed; -1 for a new run
    nlohmann::ordered_json card_check = {}, products = {};  // results of the card check; how each matmul is computed
};

// Writes the options and `facts` into the directory's run.json. A resumed run adds an entry to "resumed" instead.
void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts);

}  // namespace llmc
