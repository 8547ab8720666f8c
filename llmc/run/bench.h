// --bench: measures the time of a step. It needs neither data nor a run directory.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/data/shards.h"
#include "llmc/flags/options.h"
#include "llmc/log/metrics.h"
#include "llmc/log/progress.h"

namespace llmc {

constexpr int64_t kBenchSteps = 25, kBenchWarmup = 5;

// Makes the options those of a bench: it ends after kBenchSteps (or --stop-after), and does not validate, sample,
// resume or write anything. So --bench can be appended to any command.
void only_bench(Options& options);

// Random tokens for a bench without --train, the same on every rank.
ShardSet bench_tokens(const Options& options);

// Summarises the steps after kBenchWarmup: median time with its range, then throughput, MFU and energy of the median
// step. `memory`: bytes in use on this rank's device.
std::string format_bench(const std::vector<StepRecord>& steps, const ProgressSetup& setup, size_t memory);

}  // namespace llmc
