// Prepares, locks and writes the run directory.
#include "llmc/log/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/text.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/comm/launch.h"

namespace llmc {

namespace fs = std::filesystem;

const double process_start = monotonic_seconds();

[[noreturn]] static void fail_to_prepare(const std::string& path, int error) {
    throw Error(code_of(error, ExitCode::bad_flags), "cannot write to the run directory {}: {}", path,
                reason_of(error, "choose another with --out"));
}

Json read_run_json(const std::string& directory) {
    constexpr InputKind kind = {"description of the run", "the run.json of a run", ExitCode::checkpoint, 16};
    return read_json_or_null((fs::path(directory) / "run.json").string(), kind);
}

double seconds_since_start() { return monotonic_seconds() - process_start; }

void write_file(const std::string& file, const std::string& text) {
    try {
        write_synced(system_calls(), file, text);
    } catch (const Error& error) {
        if (error.code() == ExitCode::no_resources) throw;
        throw Error(ExitCode::failure, std::string(error.what()));  // not a checkpoint's
    }
}

// ---- an earlier run -------------------------------------------------------------------------------------------------

static bool has_bytes(const std::string& path) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(path, error);
    return name_exists(path) && (error || bytes > 0);
}

// True if a line of the log is about a step.
static bool has_steps(const std::string& path, const char* step) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return false;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        if (line.find(step) != std::string::npos) return true;
    return false;
}

// The sign in DIR/checkpoints that there was a checkpoint; "" if there is none.
static std::string saved_in(const std::string& checkpoints) {
    if (!name_exists(checkpoints)) return "";
    if (!directory_exists(checkpoints))
        return "checkpoints is " + std::string(fs::is_symlink(checkpoints) ? "a link that leads nowhere" : "a file");
    for (const std::string& name : names_in(checkpoints))
        if (!name.starts_with("step_") || !name.ends_with(".tmp")) return "checkpoints/" + name + " is there";
    return "";
}

// True if run.json says that the run was to save checkpoints.
static bool saves_checkpoints(const Json& run) {
    const auto is_on = [&](const char* flag) {
        const Json off = 0;
        const Json value = run.value("config", Json::object()).value(flag, off);
        return value.is_number() && value != off;
    };
    return run.is_object() && run.contains("config") && run["config"].is_object() &&
           (is_on("checkpoint-every") || is_on("checkpoint-minutes"));
}

EarlierRun find_earlier_run(const std::string& directory) {
    EarlierRun found;
    found.saved = saved_in(directory + "/checkpoints");
    if (has_steps(directory + "/main.log", " trl:")) found.steps = "main.log has steps";
    if (has_steps(directory + "/metrics.jsonl", "\"loss\":")) found.steps = "metrics.jsonl has steps";

    const Json run = read_run_json(directory);
    const bool is_run = run.is_object() && run.contains("run_id");
    const auto says = [&](bool true_here, const char* text) {
        if (true_here && found.saved.empty()) found.saved = text;
    };
    if (is_run && run.contains("first_checkpoint")) {
        found.never_saved = run["first_checkpoint"].is_null();
        says(!found.never_saved, "run.json says that a checkpoint was written");
    }
    says(is_run && run.contains("resumed"), "run.json says that the run was resumed");
    // If every save has failed, the final weights of the run do not prevent another attempt, which moves them aside.
    const bool saves_failed = found.never_saved && saves_checkpoints(run);
    says(!saves_failed && is_run_file(directory, "model.safetensors"), "model.safetensors is there");
    return found;
}

void require_checkpoint_directory(const std::string& path) {
    if (!name_exists(path) || directory_exists(path)) return;
    std::error_code ignored;
    if (!fs::is_symlink(path))
        throw Error(ExitCode::checkpoint, path + " is not a directory, so no checkpoint can be written to it");
    throw Error(ExitCode::checkpoint,
                "{} is a link to {}, which is not there: mount its disk or create the directory, or remove the link",
                path, fs::read_symlink(path, ignored).string());
}

// ---- log files ------------------------------------------------------------------------------------------------------

constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
constexpr size_t kMostWaiting = size_t{64} << 20;

static bool ends_line(int fd, int64_t bytes) {
    char last = '\n';
    return bytes == 0 || (::pread(fd, &last, 1, bytes - 1) == 1 && last == '\n');
}

LogFile::~LogFile() {
    if (fd_ < 0) return;
    if (!waiting_.empty()) write_waiting();
    if (!waiting_.empty())
        print_error("train_gpt: {} lacks the last {} of its lines", path_, format_bytes(waiting_.size()));
    ::close(fd_);
}

void LogFile::open(const std::string& path, int64_t bytes) {
    path_ = path;
    fd_ = ::open(path.c_str(), kFlags, 0666);
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0)
        throw Error(code_of(errno, ExitCode::bad_flags), "cannot write {}: {}", path,
                    reason_of(errno, "choose another run directory with --out"));
    cut(status.st_size, bytes);
}

void LogFile::cut(int64_t size, int64_t bytes) {
    if (size < bytes)
        print_error(
            "train_gpt: {} has {}, but had {} when the checkpoint was written: the records of some steps are missing",
            path_, format_bytes(size), format_bytes(bytes));
    if (size > bytes && !ends_line(fd_, bytes))
        print_error("train_gpt: {} is not the file that the checkpoint's run wrote: some steps may appear in it twice",
                    path_);
    else if (size > bytes && ::ftruncate(fd_, bytes) == 0)
        size = bytes;
    if (!ends_line(fd_, size)) waiting_ = "\n";  // goes before the first line
}

// Somebody may have moved or deleted the file: reopens it by its name.
void LogFile::follow_path() {
    struct stat named {
    }, held{};
    if (::fstat(fd_, &held) != 0) return;
    if (::stat(path_.c_str(), &named) == 0 && named.st_ino == held.st_ino && named.st_dev == held.st_dev) return;
    const int fd = ::open(path_.c_str(), kFlags, 0666);
    if (fd < 0) return;  // the run directory is gone; the old file still takes lines
    ::close(fd_);
    fd_ = fd;
    print_error("train_gpt: {} was moved or deleted: the next records go to a new file with that name", path_);
}

void LogFile::append(const std::string& line) {
    if (fd_ < 0) return;
    follow_path();
    if (waiting_.size() + line.size() > kMostWaiting)
        left_out_++;
    else
        waiting_ += line + "\n";
    write_waiting();
}

void LogFile::write_waiting() {
    while (!waiting_.empty()) {
        const ssize_t written = ::write(fd_, waiting_.data(), waiting_.size());
        if (written < 0 && errno == EINTR) continue;
        if (written > 0) {
            waiting_.erase(0, static_cast<size_t>(written));
            continue;
        }
        if (!failing_)
            print_error("train_gpt: cannot write {}: {}; the run continues, and will try to write the records later",
                        path_, std::strerror(errno));
        failing_ = true;
        return;
    }
    if (!failing_) return;
    print_error("train_gpt: {} can be written again{}", path_,
                left_out_ > 0 ? fmt::format("; {} lines are lost", with_commas(left_out_)) : "");
    failing_ = false;
    left_out_ = 0;
}

int64_t LogFile::size() const {
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) return 0;
    return status.st_size + static_cast<int64_t>(waiting_.size());
}

std::function<void()> LogFile::synchronizer() const {
    const auto close = [](const int* fd) {
        if (*fd >= 0) ::close(*fd);
        delete fd;
    };
    const std::shared_ptr<int> fd(new int(::fcntl(fd_, F_DUPFD_CLOEXEC, 0)), close);
    return [fd, path = path_] {
        int result;
        do {
            result = ::fsync(*fd);
        } while (result != 0 && errno == EINTR);
        // EINVAL: /dev/null and pipes cannot be flushed.
        if (result != 0 && errno != EINVAL)
            print_error("train_gpt: cannot flush {} to the disk: {}", path, std::strerror(errno));
    };
}

// ---- the directory of this run --------------------------------------------------------------------------------------

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
    if (path.empty()) return;
    std::error_code error;
    fs::create_directories(path, error);
    if (error) fail_to_prepare(path, error.value());
    if (!fs::is_directory(path, error)) fail_to_prepare(path, ENOTDIR);
    lock();
}

RunDirectory::~RunDirectory() {
    if (lock_ < 0) return;
    if (created_lock_ && !begun_) ::unlink(file("lock").c_str());
    ::close(lock_);
}

// Locks the open file. Such a lock ends with the process, and network file systems support it.
void RunDirectory::lock() {
    const std::string name = file("lock");
    constexpr int kLockFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    lock_ = ::open(name.c_str(), kLockFlags | O_EXCL, 0666);
    created_lock_ = lock_ >= 0;
    if (!created_lock_ && errno == EEXIST) lock_ = ::open(name.c_str(), kLockFlags, 0666);
    if (lock_ < 0 && errno == ELOOP)
        refuse(name +
               " is a symbolic link, and the file that it leads to would be "
               "overwritten; delete the link, or choose another directory with --out");
    if (lock_ < 0) fail_to_prepare(path_, errno);
    if (!created_lock_ && !is_run_file(path_, "lock")) {
        ::close(std::exchange(lock_, -1));
        refuse(
            "{} is not the lock of a run, and would be overwritten; move it away, or choose another directory "
            "with --out",
            name);
    }
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    char owner[320] = "";
    if (::fcntl(lock_, F_OFD_SETLK, &whole) != 0) {
        if (errno != EACCES && errno != EAGAIN) return;  // a file system without locks
        const ssize_t length = ::pread(lock_, owner, sizeof owner - 1, 0);
        while (length > 0 && std::strchr("\n", owner[std::strlen(owner) - 1])) owner[std::strlen(owner) - 1] = '\0';
        ::close(std::exchange(lock_, -1));
        refuse(
            "the run directory {} is in use by another run ({}); choose another with --out, or wait for that run's end",
            path_, owner);
    }
    if (lock_is_lost()) {  // a start that was refused has deleted its lock since we opened it
        ::close(lock_);
        return lock();
    }
    const std::string text = fmt::format("process {} on {}\n", ::getpid(), host_name());
    if (::ftruncate(lock_, 0) != 0 || ::pwrite(lock_, text.data(), text.size(), 0) < 0) fail_to_prepare(path_, errno);
}

bool RunDirectory::lock_is_lost() const {
    struct stat named {
    }, held{};
    if (lock_ < 0 || ::fstat(lock_, &held) != 0) return false;
    return ::stat(file("lock").c_str(), &named) != 0 || named.st_ino != held.st_ino;
}

// If somebody deletes the lock file, a second run could use this directory.
void RunDirectory::check_lock() {
    if (!lock_is_lost()) return;
    print_error("train_gpt: {} was deleted or replaced: another run could now write to this directory", file("lock"));
    ::close(std::exchange(lock_, -1));
}

// Throws if a file that matters was not written by a run.
void RunDirectory::require(const std::function<bool(const RunFile&)>& matters) {
    for (const RunFile& found : find_run_files(path_)) {
        if (found.is_ours && found.is_recorded) wrote_[found.name] = file_fingerprint(file(found.name));
        if (!found.is_ours && matters(found))
            refuse(
                "the run directory {} holds files that no run has written and that this one would replace "
                "({}); choose another with --out, or move them away",
                path_, found.name);
    }
}

void RunDirectory::require_own_files() {
    if (!active()) return;
    // Damaged records do not prevent a resume, which adds to them.
    const std::vector<std::string> records = {"run.json", "metrics.jsonl", "main.log"};
    require([&](const RunFile& file) { return file.fate == RunFileFate::moves && !contains(records, file.name); });
}

// Moves the files of a run into a new directory DIR/before-N. Returns its path, or "" if there are no records.
static std::string move_aside(const std::string& directory) {
    if (!has_bytes(directory + "/metrics.jsonl") && !has_bytes(directory + "/main.log")) return "";
    int number = 1;
    while (name_exists(directory + fmt::format("/before-{}", number))) number++;
    const std::string target = directory + fmt::format("/before-{}", number);
    move_run_files(directory, {RunFileFate::moves}, target);
    return target;
}

void RunDirectory::require_room(bool overwrite, bool restart, const IsInput& is_input) {
    if (!active()) return;
    require([&](const RunFile& found) { return (found.is_replaced || !overwrite) && !is_input(file(found.name)); });
    std::erase_if(wrote_, [](const auto& recorded) { return !recorded.first.starts_with("tokenizer."); });
    if (overwrite) return;
    const EarlierRun earlier = find_earlier_run(path_);
    std::string sign = earlier.why_not_restart();
    if (!restart && sign.empty()) sign = earlier.steps;
    if (!sign.empty())
        refuse(
            "the run directory {} already holds a run ({}); choose another with --out, continue that run with "
            "--resume latest, or replace it with --overwrite",
            path_, sign);
}

void RunDirectory::begin(bool overwrite) {
    if (!active()) return;
    if (overwrite) {
        remove_all_checkpoints(system_calls(), checkpoints());
        delete_run_files(path_, {RunFileFate::moves, RunFileFate::ends});
    } else if (const std::string aside = move_aside(path_); !aside.empty()) {
        print_line("note: the files of an earlier run, which wrote no checkpoint, are now in {}", aside);
    }
    go_on({});
}

void RunDirectory::go_on(const RunFileSizes& sizes) {
    if (!active()) return;
    begun_ = true;
    metrics_.open(file("metrics.jsonl"), sizes.metrics);
    main_log_.open(file("main.log"), sizes.main_log);
}

RunFileSizes RunDirectory::sizes() const { return {metrics_.size(), main_log_.size()}; }

int64_t RunDirectory::last_step_after(int64_t bytes) const {
    const std::string beginning = "{\"step\":";  // every record begins so
    int64_t last = -1;
    std::error_code ignored;
    if (!fs::is_regular_file(file("metrics.jsonl"), ignored)) return last;
    std::ifstream records(file("metrics.jsonl"));
    records.seekg(bytes);
    for (std::string line; std::getline(records, line);)
        if (line.starts_with(beginning))
            last = std::max<int64_t>(last, std::strtoll(line.c_str() + beginning.size(), nullptr, 10));
    return last;
}

std::function<void()> RunDirectory::synchronizer() const {
    if (!active()) return {};
    return [metrics = metrics_.synchronizer(), main_log = main_log_.synchronizer()] {
        metrics();
        main_log();
    };
}

std::string RunDirectory::file(const std::string& name) const { return (fs::path(path_) / name).string(); }

void RunDirectory::update_run_json(const char* what, const std::function<void(Json&)>& change) const {
    try {
        auto run = read_run_json(path_);
        if (!run.is_object()) return;
        change(run);
        write_file(file("run.json"), json_text(run, 2) + "\n");
    } catch (const Error& error) {
        print_error("train_gpt: cannot record {} in run.json: {}", what, error.what());
    }
}

void RunDirectory::note_checkpoint(int64_t step) {
    if (!active()) return;
    check_lock();
    if (std::exchange(noted_, true)) return;
    update_run_json("the checkpoint", [step](Json& run) {
        if (run["first_checkpoint"].is_null()) run["first_checkpoint"] = step;
    });
}

void RunDirectory::note_files(const std::vector<std::string>& names, bool written) {
    if (!active()) return;
    for (const std::string& name : names) wrote_[name] = written ? file_fingerprint(file(name)) : "";
    update_run_json("its files", [this](Json& run) { run["wrote"] = wrote(); });
}

Json RunDirectory::wrote() const { return wrote_; }

bool RunDirectory::remove_weights() const {
    return is_run_file(path_, "model.safetensors") && ::unlink(file("model.safetensors").c_str()) == 0;
}

void RunDirectory::keep_tokenizer(std::map<std::string, std::string> copies) {
    if (!active()) return;
    for (const RunFile& found : find_run_files(path_)) {
        if (found.fate != RunFileFate::follows) continue;
        const std::string path = file(found.name);
        const auto copy = copies.find(found.name);
        const bool is_same = copy != copies.end() && file_fingerprint(path) == text_fingerprint(copy->second);
        const bool is_old = found.is_ours && !is_same;
        if (is_old) ::unlink(path.c_str());
        if (is_old || copy == copies.end()) continue;
        if (!is_same) print_line("note: {} stays, because no run has written it; the run keeps no copy", path);
        copies.erase(copy);
    }
    if (copies.empty()) return;
    for (const auto& [name, content] : copies) wrote_[name] = text_fingerprint(content);
    note_files({}, true);
    for (const auto& [name, content] : copies) write_file(file(name), content);
}

void RunDirectory::append(const Json& record) {
    if (!active()) return;
    Json line = record;
    line["time"] = utc_now();
    line["elapsed"] = std::round(1e3 * seconds_since_start()) / 1e3;
    metrics_.append(json_text(line));
}

}  // namespace llmc
