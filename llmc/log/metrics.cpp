// Turns records into lines, and writes the files of the run directory.
#include "llmc/log/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/comm/agreement.h"
#include "llmc/log/earlier_run.h"
#include "llmc/log/versions.h"
#include "llmc/model/model_file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

bool disk_is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

const auto process_start = std::chrono::steady_clock::now();

[[noreturn]] void fail_to_prepare(const std::string& path, int error) {
    throw Error(disk_is_full(error) ? ExitCode::no_resources : ExitCode::bad_flags,
                strprintf("cannot write to the run directory %s: %s; choose another with --out", path.c_str(),
                          std::strerror(error)));
}

}  // namespace

ordered_json read_run_json(const std::string& directory) {
    constexpr InputKind kind = {"description of the run", "the run.json of a run", ExitCode::checkpoint, 16};
    return read_json_or_null<ordered_json>((fs::path(directory) / "run.json").string(), kind);
}

double seconds_since_start() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - process_start).count();
}

void fail_to_write(const std::string& file, int error) {
    throw Error(disk_is_full(error) ? ExitCode::no_resources : ExitCode::failure,
                strprintf("cannot write %s: %s", file.c_str(), std::strerror(error)));
}

void write_file(const std::string& file, const std::string& text) {
    const std::string temporary = file + ".tmp";
    std::FILE* stream = std::fopen(temporary.c_str(), "w");
    if (stream == nullptr) fail_to_write(temporary, errno);
    errno = 0;
    const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
    const int error = errno;
    std::fclose(stream);
    if (!written) {
        std::remove(temporary.c_str());
        fail_to_write(file, error);
    }
    if (std::rename(temporary.c_str(), file.c_str()) != 0) fail_to_write(file, errno);
}

void put_number(ordered_json& record, const std::string& key, double value) {
    if (std::isfinite(value)) {
        record[key] = value;
        return;
    }
    record[key] = nullptr;
    record["nonfinite"][key] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double ValLoss::perplexity() const { return std::exp(static_cast<double>(loss)); }

namespace {

ordered_json json_of(const StepRecord& r) {
    ordered_json line;
    line["step"] = r.step;
    put_number(line, "loss", r.loss);
    put_number(line, "lr", r.lr);
    put_number(line, "norm", r.norm);
    line["tokens"] = r.tokens;
    if (r.seq > 0) line["seq"] = r.seq;
    put_number(line, "ms", r.ms);
    put_number(line, "tokens_per_s", r.tokens_per_s);
    line["products"] = {{"fp8", r.products.fp8}, {"bf16", r.products.bf16}, {"fp32", r.products.fp32}};
    if (r.products.emulated > 0) line["products"]["emulated"] = r.products.emulated;
    line["skipped"] = r.skipped;
    put_number(line, "loss_scale", r.loss_scale);
    if (r.watts) put_number(line, "watts", *r.watts);
    if (r.joules_per_token) put_number(line, "joules_per_token", *r.joules_per_token);
    if (!r.batch_hash.empty()) line["batch_hash"] = r.batch_hash;
    if (r.spike) {
        ordered_json limits = ordered_json::object();
        if (r.spike.loss) put_number(limits, "loss", *r.spike.loss);
        if (r.spike.norm) put_number(limits, "norm", *r.spike.norm);
        line["spike"] = limits;
    }
    if (r.verified) {
        line["verified"] = r.verified->difference.empty();
        put_number(line, "verify_ms", r.verified->ms);
    }
    if (r.fresh) line["fresh_weights"] = {{"ln_vocab", r.fresh->ln_vocab}, {"expected_loss", r.fresh->expected}};
    return line;
}

ordered_json json_of(const ValRecord& r) {
    ordered_json line;
    line["step"] = r.step;
    for (const ValLoss& set : r.losses) {
        const std::string suffix = set.name.empty() ? "" : "_" + set.name;
        put_number(line, "val_loss" + suffix, set.loss);
        put_number(line, "val_perplexity" + suffix, set.perplexity());
        if (set.bits_per_byte) put_number(line, "val_bpb" + suffix, *set.bits_per_byte);
    }
    if (r.hellaswag) {
        line["hellaswag_acc"] = r.hellaswag->accuracy;
        line["hellaswag_acc_norm"] = r.hellaswag->accuracy_per_token;
    }
    return line;
}

}  // namespace

std::string metrics_line(const StepRecord& r) { return json_text(json_of(r)); }
std::string metrics_line(const ValRecord& r) { return json_text(json_of(r)); }

std::string main_log_line(const StepRecord& r) {
    return strprintf("s:%lld trl:%.4f lr:%.6f norm:%.2f", static_cast<long long>(r.step - 1), unsigned_nan(r.loss),
                     r.lr, unsigned_nan(r.norm));
}

std::string main_log_line(const ValRecord& r) {
    const long long step = r.step;
    std::string text = r.losses.empty() ? "" : strprintf("s:%lld tel:%.4f", step, unsigned_nan(r.losses[0].loss));
    if (r.hellaswag)
        text += strprintf("%ss:%lld eval:%.4f", text.empty() ? "" : "\n", step, r.hellaswag->accuracy_per_token);
    return text;
}

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
    if (path.empty()) return;
    std::error_code error;
    fs::create_directories(path, error);
    if (error) fail_to_prepare(path, error.value());
    if (!fs::is_directory(path, error)) fail_to_prepare(path, ENOTDIR);
    lock();
}

RunDirectory::~RunDirectory() {
    if (lock_ >= 0) ::close(lock_);
}

// Locks the open file. Such a lock ends with the process, and network file systems support it.
void RunDirectory::lock() {
    const std::string name = file("lock");
    lock_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
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
        throw Error(ExitCode::bad_flags, strprintf("the run directory %s is in use by another run (%s); choose another "
                                                   "with --out, or wait for that run's end",
                                                   path_.c_str(), owner));
    }
    ::gethostname(host, sizeof host - 1);
    const std::string text = strprintf("process %d on %s\n", static_cast<int>(::getpid()), host);
    if (::ftruncate(lock_, 0) != 0 || ::pwrite(lock_, text.data(), text.size(), 0) < 0) fail_to_prepare(path_, errno);
}

// If somebody deletes the lock file, a second run could use this directory.
void RunDirectory::check_lock() {
    struct stat named {
    }, held{};
    if (lock_ < 0 || ::fstat(lock_, &held) != 0) return;
    if (::stat(file("lock").c_str(), &named) == 0 && named.st_ino == held.st_ino) return;
    std::fprintf(stderr, "train_gpt: %s was deleted or replaced: nothing keeps another run out of this directory\n",
                 file("lock").c_str());
    ::close(std::exchange(lock_, -1));
}

void RunDirectory::begin(bool overwrite, bool restart) {
    if (!active()) return;
    if (overwrite) {
        remove_earlier_run(path_);
        return go_on({});
    }
    const EarlierRun earlier = find_earlier_run(path_);
    if (!earlier.somebody_elses.empty())
        throw Error(ExitCode::bad_flags,
                    strprintf("the run directory %s holds files that no run has written and that this one would "
                              "replace (%s); choose another with --out, or replace them with --overwrite",
                              path_.c_str(), earlier.somebody_elses.c_str()));
    std::string sign = earlier.why_not_restart();
    if (!restart && sign.empty()) sign = earlier.steps;
    if (!sign.empty())
        throw Error(ExitCode::bad_flags, strprintf("the run directory %s already holds a run (%s); choose another with "
                                                   "--out, continue that run with --resume latest, or replace it "
                                                   "with --overwrite",
                                                   path_.c_str(), sign.c_str()));
    if (const std::string aside = move_records_aside(path_); !aside.empty())
        std::printf("note: the records of an earlier run, which wrote no checkpoint, are now in %s\n", aside.c_str());
    go_on({});
}

void RunDirectory::go_on(const RunFileSizes& sizes) {
    if (!active()) return;
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
        std::fprintf(stderr, "train_gpt: cannot note the checkpoint in run.json: %s\n", error.what());
    }
}

void RunDirectory::record(const StepRecord& r) {
    append(json_of(r));
    main_log_.append(main_log_line(r));
}

void RunDirectory::record(const ValRecord& r) {
    if (r.empty()) return;
    append(json_of(r));
    main_log_.append(main_log_line(r));
}

void RunDirectory::append(const ordered_json& r) {
    if (!active()) return;
    ordered_json line = r;
    line["time"] = utc_now();
    line["elapsed"] = std::round(1e3 * seconds_since_start()) / 1e3;
    metrics_.append(json_text(line));
}

void RunDirectory::record_end(int64_t step, const std::string& why) {
    main_log_.append(strprintf("s:%lld end:1 ", static_cast<long long>(step - 1)) + why);
}

}  // namespace llmc
