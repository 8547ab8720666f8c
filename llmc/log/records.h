// Lines of metrics.jsonl about a run that are not about one step or validation. Every rank takes part; the first
// writes.
#pragma once
#include <cstdint>

#include "llmc/comm/comm.h"
#include "llmc/fp8/registry.h"
#include "llmc/log/metrics.h"
#include "llmc/log/validation_watch.h"
#include "llmc/train/memory_by_kind.h"

namespace llmc {

// Throws Error(bad_numbers) when a micro-step made fewer FP8 products than its layers `expected`, or emulated all of
// them though nobody asked for that: such a run would be a slower BF16 run under a wrong name.
void require_fp8_products(const ProductCounts& products, int64_t expected, bool emulation_allowed);

// Amax, scale and counts of every tensor in FP8, counted over all ranks since the last such line, and how outliers
// grow; waits for the device.
void record_fp8(int64_t step, Fp8Registry& fp8, stream_t stream, RunDirectory& directory);

// How far the products of layers in FP8 were from BF16's in a probed step; waits for the device.
void record_fp8_errors(int64_t step, const Fp8Registry& fp8, stream_t stream, RunDirectory& directory);

void record_sample(int64_t step, const std::string& text, RunDirectory& directory);

// Memory by kind: the plan, and the least and the most that a rank has taken of it at any time.
void record_memory(int64_t step, const MemoryByKind& plan, const Comm& comm, RunDirectory& directory);

// Memory that libraries took: of the memory that became used since `free_before` bytes were free, the part that is not
// in arenas. 0 if more is free than that explains, because another process shares the device.
size_t memory_outside(size_t free_before, size_t free_now, size_t arenas);

// After the first steps on a GPU: what is free, and what libraries have taken beside the arenas, against `reserve`. Of
// this rank's GPU, which `opened` describes as it was when it was opened; for the terminal too. Nothing on the host
// device.
void record_memory_outside(int64_t step, const DeviceInfo& opened, size_t reserve, const Comm& comm,
                           RunDirectory& directory);

// The learning rate is lowered (--plateau), or the run ends (--early-stop); for the terminal too.
void report_verdict(int64_t step, ValidationWatch::Verdict verdict, const ValidationWatch& watch,
                    RunDirectory& directory, const Comm& comm);

// A layer that leaves FP8, because of what `step` has shown; for the terminal too.
void report_fallback(int64_t step, const Fp8Fallback& fallback, const Fp8Registry& fp8, const Comm& comm,
                     RunDirectory& directory);

}  // namespace llmc
