// Prepares, locks and writes the run directory.
#include "llmc/log/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/checkpoint/checkpoint_directory.h"

namespace llmc {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

const double process_start = monotonic_seconds();

[[noreturn]] void fail_to_prepare(const std::string& path, int error) {
    throw Error(disk_is_full(error) ? ExitCode::no_resources : ExitCode::bad_flags,
                "cannot write to the run directory {}: {}; choose another with --out", path, std::strerror(error));
}

}  // namespace

ordered_json read_run_json(const std::string& directory) {
    constexpr InputKind kind = {"description of the run", "the run.json of a run", ExitCode::checkpoint, 16};
    return read_json_or_null<ordered_json>((fs::path(directory) / "run.json").string(), kind);
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

namespace {

bool exists(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}
bool is_directory(const std::string& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}
bool has_bytes(const std::string& path) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(path, error);
    return exists(path) && (error || bytes > 0);
}

// Facts about a run that the lines of its log show.
struct Log {
    bool is_ours = false;  // its first line looks like a run's
    bool has_steps = false;
};
Log look_at_log(const std::string& path, const std::string& first, const std::string& step) {
    Log log;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return log;
    std::ifstream file(path);
    std::string line;
    for (bool is_first = true; std::getline(file, line); is_first = false) {
        if (is_first) log.is_ours = line.starts_with(first);
        log.has_steps = line.find(step) != std::string::npos;
        if (log.has_steps || !log.is_ours) break;
    }
    return log;
}

// The sign in DIR/checkpoints that there was a checkpoint; "" if there is none.
std::string saved_in(const std::string& checkpoints) {
    if (!exists(checkpoints)) return "";
    if (!is_directory(checkpoints))
        return "checkpoints is " + std::string(fs::is_symlink(checkpoints) ? "a link that leads nowhere" : "a file");
    for (const std::string& name : names_in(checkpoints))
        if (!name.starts_with("step_") || !name.ends_with(".tmp")) return "checkpoints/" + name + " is there";
    return "";
}

std::vector<std::string> names_starting_with(const std::string& directory, const std::string& start) {
    std::vector<std::string> names;
    for (const std::string& name : names_in(directory))
        if (name.starts_with(start)) names.push_back(name);
    return names;
}

}  // namespace

EarlierRun find_earlier_run(const std::string& directory) {
    const std::string dir = directory + "/";
    EarlierRun found;
    found.saved = saved_in(directory + "/checkpoints");
    const Log metrics = look_at_log(dir + "metrics.jsonl", "{\"step\":", "\"loss\":");
    const Log main_log = look_at_log(dir + "main.log", "s:", " trl:");
    found.steps = metrics.has_steps ? "metrics.jsonl has steps" : main_log.has_steps ? "main.log has steps" : "";

    const ordered_json run = read_run_json(directory);
    const bool is_run = run.is_object() && run.contains("run_id");
    const bool is_ours = is_run || metrics.is_ours || main_log.is_ours;
    const auto says = [&](bool true_here, const char* text) {
        if (true_here && found.saved.empty()) found.saved = text;
    };
    if (is_run && run.contains("first_checkpoint")) {
        found.never_saved = run["first_checkpoint"].is_null();
        says(!found.never_saved, "run.json says that a checkpoint was written");
    }
    says(is_run && run.contains("resumed"), "run.json says that the run was resumed");
    says(is_ours && exists(dir + "model.safetensors"), "model.safetensors is there");
    if (is_ours) return found;
    std::vector<std::string> names = {"run.json", "metrics.jsonl", "main.log", "config.json"};
    for (const std::string& name : names_starting_with(directory, "model"))
        if (name.find(".safetensors") != std::string::npos) names.push_back(name);
    for (const std::string& name : names)
        if (has_bytes(dir + name)) found.foreign_file = name;
    return found;
}

std::string move_records_aside(const std::string& directory) {
    const std::string dir = directory + "/";
    if (!has_bytes(dir + "metrics.jsonl") && !has_bytes(dir + "main.log")) return "";
    int number = 1;
    while (exists(dir + fmt::format("before-{}", number))) number++;
    const std::string target = dir + fmt::format("before-{}", number);
    std::error_code error;
    fs::create_directory(target, error);
    std::vector<std::string> names = {"run.json", "metrics.jsonl", "main.log", "check.json", "tensorboard"};
    for (const std::string& name : names_starting_with(directory, "trace-rank")) names.push_back(name);
    for (const std::string& name : names)
        if (!error && exists(dir + name)) fs::rename(dir + name, target + "/" + name, error);
    if (error)
        throw Error(disk_is_full(error.value()) ? ExitCode::no_resources : ExitCode::failure, "cannot write {}: {}",
                    target, std::strerror(error.value()));
    return target;
}

void remove_earlier_run(const std::string& directory) {
    const std::string dir = directory + "/";
    remove_all_checkpoints(system_calls(), directory + "/checkpoints");
    std::error_code error;
    fs::remove_all(dir + "tensorboard", error);
    std::vector<std::string> names = {"run.json",          "metrics.jsonl", "main.log",
                                      "model.safetensors", "check.json",    "decay"};
    for (const std::string& name : names_starting_with(directory, "trace-rank")) names.push_back(name);
    for (const std::string& name : names) {
        fs::remove(dir + name, error);
        if (error)
            throw Error(ExitCode::bad_flags, "cannot delete {}: {}; choose another directory with --out", (dir + name),
                        error.message());
    }
}

void require_checkpoint_directory(const std::string& path) {
    if (!exists(path) || is_directory(path)) return;
    std::error_code ignored;
    if (!fs::is_symlink(path))
        throw Error(ExitCode::checkpoint, path + " is not a directory, so no checkpoint can be written to it");
    throw Error(ExitCode::checkpoint,
                "{} is a link to {}, which is not there: mount its disk or create the directory, or remove the link",
                path, fs::read_symlink(path, ignored).string());
}

// ---- log files ------------------------------------------------------------------------------------------------------

namespace {

constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC;
constexpr size_t kMostWaiting = size_t{64} << 20;

void warn(const std::string& text) { print_error("train_gpt: {}", text); }

bool ends_line(int fd, int64_t bytes) {
    char last = '\n';
    return bytes == 0 || (::pread(fd, &last, 1, bytes - 1) == 1 && last == '\n');
}

}  // namespace

LogFile::~LogFile() {
    if (fd_ < 0) return;
    if (!waiting_.empty()) write_waiting();
    if (!waiting_.empty()) warn(path_ + " lacks the last " + format_bytes(waiting_.size()) + " of its lines");
    ::close(fd_);
}

void LogFile::open(const std::string& path, int64_t bytes) {
    path_ = path;
    fd_ = ::open(path.c_str(), kFlags, 0666);
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0)
        throw Error(disk_is_full(errno) ? ExitCode::no_resources : ExitCode::bad_flags,
                    "cannot write {}: {}; choose another run directory with --out", path, std::strerror(errno));
    cut(status.st_size, bytes);
}

void LogFile::cut(int64_t size, int64_t bytes) {
    if (size < bytes)
        warn(fmt::format("{} has {}, but had {} when the checkpoint was written: the records of some steps are missing",
                         path_, format_bytes(size), format_bytes(bytes)));
    if (size > bytes && !ends_line(fd_, bytes))
        warn(path_ + " is not the file that the checkpoint's run wrote: some steps may appear in it twice");
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
    warn(path_ + " was moved or deleted: the next records go to a new file with that name");
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
            warn(fmt::format("cannot write {}: {}; the run continues, and will try to write the records later", path_,
                             std::strerror(errno)));
        failing_ = true;
        return;
    }
    if (!failing_) return;
    warn(path_ + " can be written again" +
         (left_out_ > 0 ? fmt::format("; {} lines are lost", with_commas(left_out_)) : ""));
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
            warn(fmt::format("cannot flush {} to the disk: {}", path, std::strerror(errno)));
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
        throw Error(ExitCode::bad_flags, name +
                                             " is a symbolic link, and the file that it leads to would be "
                                             "overwritten; delete the link, or choose another directory with --out");
    if (lock_ < 0) fail_to_prepare(path_, errno);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    char host[256] = "", owner[320] = "";
    if (::fcntl(lock_, F_OFD_SETLK, &whole) != 0) {
        if (errno != EACCES && errno != EAGAIN) return;  // a file system without locks
        const ssize_t length = ::pread(lock_, owner, sizeof owner - 1, 0);
        while (length > 0 && std::strchr("\n", owner[std::strlen(owner) - 1])) owner[std::strlen(owner) - 1] = '\0';
        ::close(std::exchange(lock_, -1));
        throw Error(
            ExitCode::bad_flags,
            "the run directory {} is in use by another run ({}); choose another with --out, or wait for that run's end",
            path_, owner);
    }
    if (lock_is_lost()) {  // a start that was refused has deleted its lock since we opened it
        ::close(lock_);
        return lock();
    }
    ::gethostname(host, sizeof host - 1);
    const std::string text = fmt::format("process {} on {}\n", ::getpid(), host);
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

void RunDirectory::begin(bool overwrite, bool restart) {
    if (!active()) return;
    if (overwrite) {
        remove_earlier_run(path_);
        return go_on({});
    }
    const EarlierRun earlier = find_earlier_run(path_);
    if (!earlier.foreign_file.empty())
        throw Error(ExitCode::bad_flags,
                    "the run directory {} holds files that no run has written and that this one would replace ({}); "
                    "choose another with --out, or replace them with --overwrite",
                    path_, earlier.foreign_file);
    std::string sign = earlier.why_not_restart();
    if (!restart && sign.empty()) sign = earlier.steps;
    if (!sign.empty())
        throw Error(ExitCode::bad_flags,
                    "the run directory {} already holds a run ({}); choose another with --out, continue that run with "
                    "--resume latest, or replace it with --overwrite",
                    path_, sign);
    if (const std::string aside = move_records_aside(path_); !aside.empty())
        print_line("note: the records of an earlier run, which wrote no checkpoint, are now in {}", aside);
    go_on({});
}

void RunDirectory::go_on(const RunFileSizes& sizes) {
    if (!active()) return;
    begun_ = true;
    metrics_.open(file("metrics.jsonl"), sizes.metrics);
    main_log_.open(file("main.log"), sizes.main_log);
}

RunFileSizes RunDirectory::sizes() const { return {metrics_.size(), main_log_.size()}; }

std::function<void()> RunDirectory::synchronizer() const {
    if (!active()) return {};
    return [metrics = metrics_.synchronizer(), main_log = main_log_.synchronizer()] {
        metrics();
        main_log();
    };
}

std::string RunDirectory::file(const std::string& name) const { return (fs::path(path_) / name).string(); }

void RunDirectory::note_checkpoint(int64_t step) {
    if (!active()) return;
    check_lock();
    if (noted_) return;
    try {
        auto run = read_run_json(path_);
        if (run.is_object() && run["first_checkpoint"].is_null()) {
            run["first_checkpoint"] = step;
            write_file(file("run.json"), json_text(run, 2) + "\n");
        }
        noted_ = true;
    } catch (const Error& error) {
        print_error("train_gpt: cannot record the checkpoint in run.json: {}", error.what());
    }
}

void RunDirectory::append(const ordered_json& record) {
    if (!active()) return;
    ordered_json line = record;
    line["time"] = utc_now();
    line["elapsed"] = std::round(1e3 * seconds_since_start()) / 1e3;
    metrics_.append(json_text(line));
}

}  // namespace llmc
