// The run directory: run.json (what was run), metrics.jsonl (what happened, for programs) and main.log (the same in
// llm.c's format, for its plotting scripts). Only rank 0 has one that is active.
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
    std::string name;  // of the set, may be empty
    float loss = 0;    // nats per token
    // loss / ln 2 * tokens / bytes of the whole set, where its sidecars know the bytes.
    std::optional<double> bits_per_byte = {};

    double perplexity() const;
};

// Answers to multiple-choice examples (choice_scores.h): the fraction that is right.
struct ChoiceScores {
    int64_t examples = 0;
    double accuracy = 0;            // by the sum of a completion's log-probabilities
    double accuracy_per_token = 0;  // by their mean over its tokens, as llm.c has it
};

// One validation after `step` optimizer steps (0: before the first).
struct ValRecord {
    int64_t step = 0;
    std::vector<ValLoss> losses;
    std::optional<ChoiceScores> hellaswag = {};

    bool empty() const { return losses.empty() && !hellaswag; }
};

// A float, which JSON cannot hold when it is not finite: then the value is null and record["nonfinite"][key] is "nan",
// "inf" or "-inf". Finite floats are written with all digits that a double needs, so they read back to the same bits.
void put_number(nlohmann::ordered_json& record, const std::string& key, double value);

// The reverse: nothing where `key` is not there or no number.
std::optional<double> get_number(const nlohmann::ordered_json& record, const std::string& key);

// The lines of metrics.jsonl (without the newline) and of main.log.
std::string metrics_line(const StepRecord& record);
std::string metrics_line(const ValRecord& record);
// llm.c numbers the step that makes update k as k-1, and a validation after k updates as k; so do these. A file written
// by llm.c and one written here can be plotted over each other.
std::string main_log_line(const StepRecord& record);
// The first set only, for the format has no names; and a line of its own for HellaSwag, by llm.c's number.
std::string main_log_line(const ValRecord& record);

// How long this process has been running.
double seconds_since_start();

// The run.json in `directory`, or null if there is none or it is not JSON. Throws Error(checkpoint) if it is not a
// regular file.
nlohmann::ordered_json read_run_json(const std::string& directory);

// A whole file, under a temporary name until it is complete. What is in the way is Error(no_resources) or
// Error(failure).
void write_file(const std::string& file, const std::string& text);
// Throws Error for errno `error`: no_resources where the disk is full.
[[noreturn]] void fail_to_write(const std::string& file, int error);

// How far the files of a run had been written, in bytes.
struct RunFileSizes {
    int64_t metrics = 0, main_log = 0;
};

class RunDirectory {
public:
    RunDirectory() = default;  // writes nothing
    // Creates `path` ("" = writes nothing) and locks it against other runs, on other machines too if they share it. A
    // directory that cannot be written, or that another run has locked, is Error(bad_flags).
    explicit RunDirectory(const std::string& path);
    ~RunDirectory();
    RunDirectory(const RunDirectory&) = delete;
    RunDirectory& operator=(const RunDirectory&) = delete;

    // Either begin() or go_on() must be called before anything is written. begin() starts a new run. If a run that got
    // somewhere is there already, or files that are not a run's, it throws Error(bad_flags). `overwrite` replaces that
    // run, with its checkpoints and its exported model. `restart`: a run that wrote no checkpoint may be begun again;
    // its records are moved aside. go_on() continues the run in the directory, whose logs had these sizes.
    void begin(bool overwrite, bool restart = false);
    void go_on(const RunFileSizes& sizes);

    bool active() const { return !path_.empty(); }
    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const;  // path()/name
    std::string checkpoints() const { return file("checkpoints"); }
    RunFileSizes sizes() const;
    // Brings both logs to the disk; for any thread.
    std::function<void()> synchronizer() const;

    // Notes in run.json that there is a checkpoint, so that a restart which cannot see it does not begin from step 1.
    // Also warns if the directory is not locked any more. Neither can fail a run.
    void note_checkpoint(int64_t step);
    void record(const StepRecord& record);
    void record(const ValRecord& record);
    // Any other line of metrics.jsonl. Every line ends with "time" (ISO 8601, UTC) and "elapsed",
    // seconds_since_start().
    void append(const nlohmann::ordered_json& record);
    // Why the run ends in this step, for main.log: in its form, "s:19 end:1" and the text.
    void record_end(int64_t step, const std::string& why);

    // `watcher` is called with every record from now on, without a directory too. One that throws is reported, and not
    // called any more.
    using Watcher = std::function<void(const nlohmann::ordered_json& record)>;
    void watch(Watcher watcher) { watchers_.push_back(std::move(watcher)); }

private:
    void lock();
    void check_lock();

    std::string path_;
    int lock_ = -1;
    bool noted_ = false;  // the first checkpoint, in run.json
    LogFile metrics_, main_log_;
    std::vector<Watcher> watchers_;
};

}  // namespace llmc
