// run.json: what a run is made of, written when it starts and extended each time it resumes.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "llmc/flags/options.h"
#include "llmc/log/metrics.h"

namespace llmc {

// What run.json contains in addition to the options.
struct RunFacts {
    int world = 1;
    std::string device;                                     // "NVIDIA H200", "host (2 threads)"
    std::string weights_hash;                               // of the weights at the start (fingerprint.h)
    std::string run_id;                                     // the same in every checkpoint of the run
    int64_t resumed_at = -1;                                // step at which the run resumed; -1 for a new run
    nlohmann::ordered_json card_check = {}, products = {};  // results of the card check; how each matmul is computed
};

// Writes the options and `facts` into the directory's run.json. A resumed run adds an entry to "resumed" instead.
void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts);

}  // namespace llmc
