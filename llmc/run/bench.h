// --bench: what a step costs, before there is data or a run directory.
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

// The run of these flags, ended after kBenchSteps (or --stop-after): it validates, samples, resumes and
// writes nothing. Its schedule is its own, so that --bench can stand behind any command.
void only_bench(Options& options);

// Random tokens for the steps of a bench without --train, the same on every rank.
ShardSet bench_tokens(const Options& options);

// Of the steps after kBenchWarmup, where caches, plans and clocks have settled: median time and its range, and what
// follows from the median; `memory`: bytes in use on this rank's device.
std::string format_bench(const std::vector<StepRecord>& steps, const ProgressSetup& setup, size_t memory);

}  // namespace llmc
