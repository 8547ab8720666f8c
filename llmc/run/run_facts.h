// What run.json says beside the options.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace llmc {

struct RunFacts {
    int world = 1;
    std::string device;                                     // "NVIDIA H200", "host (2 threads)"
    std::string weights_hash;                               // of the weights at the start (fingerprint.h)
    std::string run_id;                                     // the same in every checkpoint of the run
    int64_t resumed_at = -1;                                // step; -1: a new run
    nlohmann::ordered_json card_check = {}, products = {};  // what it came to, and how products are made
};

}  // namespace llmc
