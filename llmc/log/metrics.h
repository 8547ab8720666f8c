// Everything that is written to metrics.jsonl, one JSON object per line, and to main.log in llm.c's format. Every rank
// calls the functions record_*() and report_*(), because some of them collect numbers from all ranks; rank 0 writes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/comm/rank_time.h"
#include "llmc/log/validation_watch.h"
#include "llmc/model/setup.h"
#include "llmc/train/divergence.h"

namespace llmc {

class Fp8Registry;
class RunDirectory;
struct Fp8Fallback;
struct MemoryByKind;
struct ProductCounts;
struct StepRecord;

// The mean loss over a validation set.
struct ValLoss {
    std::string name;  // name of the set, may be empty
    float loss = 0;    // nats per token
    // Loss of the tokens that are text, in bits, divided by the bytes of this text. Nothing if the bytes are unknown.
    std::optional<double> bits_per_byte = {};
    uint64_t hash = 0;  // identifies what was scored: the data, its tokens, and how they were cut; 0 if unknown
    std::optional<DivergenceResult> against_bf16 = {};  // eval --against bf16

    double perplexity() const;
};

// Fraction of the multiple-choice examples of a task that the model answers correctly (llmc/run/evaluation.cpp).
struct TaskScores {
    std::string name;
    int64_t examples = 0;
    double accuracy = 0;             // completions scored by the sum of their log-probabilities
    double normalized_accuracy = 0;  // scored by that sum divided by their length, for HellaSwag their tokens
};

// One validation after `step` optimizer steps (0: before the first).
struct ValRecord {
    int64_t step = 0;
    std::vector<ValLoss> losses;
    std::vector<TaskScores> tasks = {};
    Precision precision = Precision::bf16;  // in which the losses were computed

    bool empty() const { return losses.empty() && tasks.empty(); }
};

// Puts a number into a record. JSON has no non-finite numbers: for these the value is null and record["nonfinite"][key]
// is "nan", "inf" or "-inf". Finite numbers keep all digits of a double, so they read back to the same bits.
void put_number(Json& record, const std::string& key, double value);

// Lines of metrics.jsonl.
Json metrics_json(const StepRecord& record);
Json metrics_json(const ValRecord& record);
Json divergence_json(const DivergenceResult& result);
// A standard error in fmt's format `how`, or "-" if it is unknown, as that of a single sequence is.
std::string error_text(double error, const char* how);
// Lines of main.log. As in llm.c, the step that makes update k has number k-1, and a validation after k updates has
// number k, so that files of both programs can be plotted together.
std::string main_log_line(const StepRecord& record);
// Only the first validation set, because the format has no names, and a separate line for the first task, normalized.
std::string main_log_line(const ValRecord& record);

// ---- records --------------------------------------------------------------------------------------------------------

void record_step(const StepRecord& record, RunDirectory& directory);
void record_validation(const ValRecord& record, RunDirectory& directory);  // nothing if the record is empty

// Writes a line into main.log that says why the run ends in this step: "s:19 end:1" and the reason.
void record_end(int64_t step, const std::string& why, RunDirectory& directory);

// Records amax, scale, counts since the last such record, and outliers of every FP8 tensor, over all ranks. Waits for
// the device.
void record_fp8(int64_t step, Fp8Registry& fp8, stream_t stream, RunDirectory& directory);

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

// Prints and records that a rank becomes slow, or that none is slow any more. `ranks`: descriptions of all ranks.
void report_slow_rank(int64_t step, SlowRankWatch::Change change, const SlowestRank& slowest,
                      const std::vector<std::string>& ranks, RunDirectory& directory, const Comm& comm);

// Prints and records that a layer leaves FP8 because of its counts in `step`.
void report_fallback(int64_t step, const Fp8Fallback& fallback, const Fp8Registry& fp8, const Comm& comm,
                     RunDirectory& directory);

// ---- numbers that end a run -----------------------------------------------------------------------------------------

// Throws Error(bad_numbers) if a micro-step made fewer FP8 products than `expected`, or emulated all of them without
// --fp8-emulation: such a run would be a slower BF16 run that calls itself FP8.
void require_fp8_products(const ProductCounts& products, int64_t expected, bool emulation_allowed);

// Names what went wrong first in a skipped step: the forward pass comes before the loss, and the loss before the
// backward pass. "the first FP8 tensor with a value that is not finite was h.3.fc_proj.dout". `fp8` may be nullptr.
std::string why_skipped(const StepRecord& record, const Fp8Registry* fp8);

// Throws Error(bad_numbers) after `max_skips` skipped steps in a row (0: never).
void check_skips(const StepRecord& record, int max_skips, const Fp8Registry* fp8);

}  // namespace llmc
