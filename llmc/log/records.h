// Lines of metrics.jsonl other than steps and validations: FP8 tensors, samples, memory, changes of the learning rate.
// Every rank calls these functions; rank 0 writes.
#pragma once
#include <cstdint>

#include "llmc/comm/comm.h"
#include "llmc/fp8/registry.h"
#include "llmc/log/metrics.h"
#include "llmc/log/validation_watch.h"
#include "llmc/shard/arena.h"

namespace llmc {

// Throws Error(bad_numbers) if a micro-step made fewer FP8 products than `expected`, or emulated all of them without
// --fp8-emulation: such a run would be a slower BF16 run that calls itself FP8.
void require_fp8_products(const ProductCounts& products, int64_t expected, bool emulation_allowed);

// Records amax, scale, counts since the last such record, and outliers of every FP8 tensor, over all ranks. Waits for
// the device.
void record_fp8(int64_t step, Fp8Registry& fp8, stream_t stream, RunDirectory& directory);

// Records how far the FP8 products of each layer were from BF16 products in a probed step. Waits for the device.
void record_fp8_errors(int64_t step, const Fp8Registry& fp8, stream_t stream, RunDirectory& directory);

void record_sample(int64_t step, const std::string& text, RunDirectory& directory);

// Records memory by kind: the plan, and the smallest and largest peak of all ranks.
void record_memory(int64_t step, const MemoryByKind& plan, const Comm& comm, RunDirectory& directory);

// Memory that libraries took: what is used since `free_before` bytes were free, minus the arenas. 0 if the result would
// be negative, which happens if another process shares the device.
size_t memory_outside(size_t free_before, size_t free_now, size_t arenas);

// Prints and records free memory and the memory that libraries took, to compare with `reserve`, after the first step on
// a GPU. `opened` describes this rank's GPU before anything was allocated. Does nothing on the host device.
void record_memory_outside(int64_t step, const DeviceInfo& opened, size_t reserve, const Comm& comm,
                           RunDirectory& directory);

// Prints and records that the learning rate is lowered (--plateau) or that the run ends (--early-stop).
void report_verdict(int64_t step, ValidationWatch::Verdict verdict, const ValidationWatch& watch,
                    RunDirectory& directory, const Comm& comm);

// Prints and records that a layer leaves FP8 because of its counts in `step`.
void report_fallback(int64_t step, const Fp8Fallback& fallback, const Fp8Registry& fp8, const Comm& comm,
                     RunDirectory& directory);

}  // namespace llmc
