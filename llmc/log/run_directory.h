// The run directory: run.json (how the run was configured), metrics.jsonl (its numbers, for programs), main.log (the
// same in llm.c's format, for its plotting scripts), and checkpoints. It is active on rank 0 only.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/log/run_files.h"

namespace llmc {

// How long this process has been running.
double seconds_since_start();

// The run.json in `directory`, or null if there is none or it is not JSON. Throws Error(checkpoint) if it is not a
// regular file.
Json read_run_json(const std::string& directory);

// Writes a whole file (write_synced() of files.h). Throws Error(no_resources) if the disk is full, else Error(failure).
void write_file(const std::string& file, const std::string& text);

// ---- what a directory holds before the run begins -------------------------------------------------------------------

// Signs of an earlier run in the directory that --out names.
struct EarlierRun {
    std::string saved;         // sign that checkpoints or final weights were written; "" if there is none
    std::string steps;         // names the log that has steps; "" if none has
    bool never_saved = false;  // run.json says that no checkpoint was ever completed

    // The reason why --resume auto must not begin a new run if it finds no checkpoint; "" if it may.
    std::string why_not_restart() const { return !saved.empty() || never_saved ? saved : steps; }
};
EarlierRun find_earlier_run(const std::string& directory);

// Throws unless DIR/checkpoints can be written to: a link must lead to a directory.
void require_checkpoint_directory(const std::string& path);

// ---- the directory of this run --------------------------------------------------------------------------------------

// A file of lines that a run appends to: metrics.jsonl, main.log. Every line is written immediately. A file that cannot
// be written does not end the run: the problem is reported once, and lines wait in memory. If somebody moves the file
// away, the next lines go to a new file of the same name.
class LogFile {
public:
    LogFile() = default;  // ignores all lines until open()
    ~LogFile();
    LogFile(LogFile&&) = delete;

    // Truncates the file to `bytes`: the lines after that are of steps that will be repeated. Warns and only appends if
    // this is not the file that once had `bytes` bytes. Throws Error if the file cannot be written.
    void open(const std::string& path, int64_t bytes);
    void append(const std::string& line);
    int64_t size() const;  // bytes up to the end of the last line, including lines that wait
    // Returns a function that flushes the written lines to the disk, for any thread at any time. It warns on failure.
    std::function<void()> synchronizer() const;

private:
    void follow_path();
    void write_waiting();
    void cut(int64_t size, int64_t bytes);

    std::string path_;
    int fd_ = -1;
    std::string waiting_;  // lines, or the rest of a line, that are not written yet
    bool failing_ = false;
    int64_t left_out_ = 0;  // number of lines dropped because too many were waiting
};

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
    // Deletes the lock file that this object created, if the run did not begin: it may be in somebody's folder.
    ~RunDirectory();
    RunDirectory(RunDirectory&&) = delete;

    // Before anything is written come require_room() and begin(), or require_own_files() and go_on(). The first of each
    // two changes no file of an earlier run. Call the second once nothing else can prevent the run.
    //
    // require_room() throws Error(bad_flags) if a new run must not begin here, because the directory holds a run that
    // made steps, or files that no run has written. `overwrite` allows to replace that run. `restart` allows to restart
    // one that wrote no checkpoint. `is_input` is true for files that the new run reads and leaves alone.
    using IsInput = std::function<bool(const std::string& path)>;
    void require_room(
        bool overwrite, bool restart = false, const IsInput& is_input = [](const std::string&) { return false; });
    // Starts the new run. `overwrite` deletes the earlier run with its checkpoints and its exported model; else its
    // files are moved aside.
    void begin(bool overwrite);
    // Throws Error(bad_flags) if a run that resumes here would replace files that no run has written.
    void require_own_files();
    // Continues the run in the directory, whose logs had these sizes.
    void go_on(const RunFileSizes& sizes);

    bool active() const { return !path_.empty(); }
    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const;  // path()/name
    std::string checkpoints() const { return file("checkpoints"); }
    RunFileSizes sizes() const;
    // The last step with a record after the first `bytes` of metrics.jsonl; -1 if there is none.
    int64_t last_step_after(int64_t bytes) const;
    // Returns a function that flushes both logs to the disk, for any thread.
    std::function<void()> synchronizer() const;

    // For files that other programs write, too, run.json records the fingerprint of the run's own. Call
    // note_files(names, false) before writing them and note_files(names, true) afterwards. Never throws.
    void note_files(const std::vector<std::string>& names, bool written);
    Json wrote() const;  // the fingerprints by name, for a new run.json
    // Deletes model.safetensors, unless no run has written it. Returns true if it did.
    bool remove_weights() const;
    // Writes the copies of a tokenizer's files, name and content, and deletes earlier runs' copies. A file that no run
    // has written stays; if it has one of these names and another content, says so and writes nothing there.
    void keep_tokenizer(std::map<std::string, std::string> copies);

    // Notes in run.json that there is a checkpoint, so that a restart that cannot see it does not begin at step 1. Also
    // warns if the lock is gone. Never throws.
    void note_checkpoint(int64_t step);
    // Appends a record to metrics.jsonl, with "time" (ISO 8601, UTC) and "elapsed" (seconds_since_start()).
    void append(const Json& record);
    // Appends a line to main.log.
    void append_main_log(const std::string& line) { main_log_.append(line); }

private:
    void lock();
    void require(const std::function<bool(const RunFile&)>& matters);
    void update_run_json(const char* what, const std::function<void(Json&)>& change) const;
    bool lock_is_lost() const;
    void check_lock();

    std::string path_;
    int lock_ = -1;
    bool created_lock_ = false;
    bool begun_ = false;                        // by begin() or go_on()
    bool noted_ = false;                        // the first checkpoint, in run.json
    std::map<std::string, std::string> wrote_;  // fingerprints of the run's files that run.json records
    LogFile metrics_, main_log_;
};

}  // namespace llmc
