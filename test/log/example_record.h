// A step's record with a value in every field that the tests of records and of the run directory look at.
#pragma once
#include <nlohmann/json.hpp>

#include "llmc/log/metrics.h"

#include "llmc/train/step_results.h"

namespace llmc::test {

inline StepRecord example() {
    StepRecord r;
    r.step = 7;
    r.loss = 10.9876543f;
    r.lr = 3e-4f;
    r.norm = 1.2345678f;
    r.tokens = 28672;
    r.ms = 82.125;
    r.tokens_per_s = 49875.9;
    r.products = {0, 150, 3};
    r.skipped = 2;
    r.loss_scale = 65536;
    return r;
}

// A line of metrics.jsonl, without its newline.
template <class Record>
std::string metrics_line(const Record& record) {
    return metrics_json(record).dump();
}

}  // namespace llmc::test
