// The run directory: run.json (how the run was configured), metrics.jsonl (its numbers, for programs) and main.log (the
// same in llm.c's format, for its plotting scripts). It is active on rank 0 only.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/log/log_file.h"
#include "llmc/train/step_record.h"

namespace llmc {

// The mean loss over a validation set.
struct ValLoss {
    std::string name;  // name of the set, may be empty
    float loss = 0;    // nats per token
    // loss / ln 2 * tokens / bytes of the whole set, if its sidecars say the bytes.
    std::optional<double> bits_per_byte = {};

    double perplexity() const;
};

// Fraction of multiple-choice examples that the model answers correctly (llmc/run/choice_scores.h).
struct ChoiceScores {
    int64_t examples = 0;
    double accuracy = 0;            // completions scored by the sum of their log-probabilities
    double accuracy_per_token = 0;  // scored by the mean over their tokens, as in llm.c
};

// One validation after `step` optimizer steps (0: before the first).
struct ValRecord {
    int64_t step = 0;
    std::vector<ValLoss> losses;
    std::optional<ChoiceScores> hellaswag = {};

    bool empty() const { return losses.empty() && !hellaswag; }
};

// Puts a number into a record. JSON has no non-finite numbers: for these the value is null and record["nonfinite"][key]
// is "nan", "inf" or "-inf". Finite numbers keep all digits of a double, so they read back to the same bits.
void put_number(nlohmann::ordered_json& record, const std::string& key, double value);

// Lines of metrics.jsonl, without the newline.
std::string metrics_line(const StepRecord& record);
std::string metrics_line(const ValRecord& record);
// Lines of main.log. As in llm.c, the step that makes update k has number k-1, and a validation after k updates has
// number k, so that files of both programs can be plotted together.
std::string main_log_line(const StepRecord& record);
// Only the first validation set, because the format has no names, and a separate line for HellaSwag per token.
std::string main_log_line(const ValRecord& record);

// How long this process has been running.
double seconds_since_start();

// The run.json in `directory`, or null if there is none or it is not JSON. Throws Error(checkpoint) if it is not a
// regular file.
nlohmann::ordered_json read_run_json(const std::string& directory);

// Writes a whole file, under a temporary name until it is complete. Throws Error(no_resources) if the disk is full,
// else Error(failure).
void write_file(const std::string& file, const std::string& text);
// Throws the Error for errno `error`: no_resources if the disk is full, else failure.
[[noreturn]] void fail_to_write(const std::string& file, int error);

// Sizes of the logs in bytes.
struct RunFileSizes {
    int64_t metrics = 0, main_log = 0;
};

class RunDirectory {
public:
    RunDirectory() = default;  // writes nothing
    // Creates `path` ("" = writes nothing) and locks it against other runs, also on other machines that share it.
    // Throws Error(bad_flags) if it cannot be written or another run has locked it.
    explicit RunDirectory(const std::string& path);
    ~RunDirectory();
    RunDirectory(const RunDirectory&) = delete;
    RunDirectory& operator=(const RunDirectory&) = delete;

    // Call begin() or go_on() before anything is written. begin() starts a new run. It throws Error(bad_flags) if the
    // directory holds a run that made steps, or files that no run has written. `overwrite` replaces that run with its
    // checkpoints and its exported model. `restart` allows to restart a run that wrote no checkpoint, and moves its
    // records aside. go_on() continues the run in the directory, whose logs had these sizes.
    void begin(bool overwrite, bool restart = false);
    void go_on(const RunFileSizes& sizes);

    bool active() const { return !path_.empty(); }
    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const;  // path()/name
    std::string checkpoints() const { return file("checkpoints"); }
    RunFileSizes sizes() const;
    // Returns a function that flushes both logs to the disk, for any thread.
    std::function<void()> synchronizer() const;

    // Notes in run.json that there is a checkpoint, so that a restart that cannot see it does not begin at step 1. Also
    // warns if the lock is gone. Never throws.
    void note_checkpoint(int64_t step);
    void record(const StepRecord& record);
    void record(const ValRecord& record);
    // Appends any other line to metrics.jsonl. Every line ends with "time" (ISO 8601, UTC) and "elapsed"
    // (seconds_since_start()).
    void append(const nlohmann::ordered_json& record);
    // Says in main.log why the run ends in this step: "s:19 end:1" and the text.
    void record_end(int64_t step, const std::string& why);

private:
    void lock();
    void check_lock();

    std::string path_;
    int lock_ = -1;
    bool noted_ = false;  // the first checkpoint, in run.json
    LogFile metrics_, main_log_;
};

}  // namespace llmc
