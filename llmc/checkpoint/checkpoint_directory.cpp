// Writes, commits and removes checkpoint directories, in an order that survives a crash at any point.
// build: fuzzed
#include "llmc/checkpoint/checkpoint_directory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>

#include "llmc/base/text.h"
#include "llmc/checkpoint/manifest.h"

namespace llmc {

namespace fs = std::filesystem;

const std::string kPrefix = "step_", kUnfinished = ".tmp", kSetAside = ".set_aside";

static void warn(const std::string& text) { print_error("train_gpt: {}", text); }

static fs::file_type type_of(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type();
}
static bool is_link(const std::string& path) { return type_of(path) == fs::file_type::symlink; }

static void make_directory(FileCalls& calls, const std::string& path) {
    if (calls.mkdir(path.c_str(), 0777) == 0) return;
    if (errno != EEXIST) fail_to_write(path, "create the directory");
}

static void remove_link(FileCalls& calls, const std::string& path) {
    if (calls.unlink(path.c_str()) != 0 && errno != ENOENT) fail_to_write(path, "delete the link");
}

static bool is_written_by_saves(const std::string& name) {
    if (name == kManifestName || name == std::string(kManifestName) + ".tmp") return true;
    constexpr std::string_view before = "rank_", after = ".safetensors";
    return name.size() > before.size() + after.size() && name.starts_with(before) && name.ends_with(after) &&
           is_digits(name.substr(before.size(), name.size() - before.size() - after.size()));
}

// True for step_N and step_N.tmp, which .set_aside or .set_asideM may follow.
static bool is_name_of_saves(const std::string& name) {
    const size_t aside = std::min(name.find(kSetAside), name.size());
    const std::string number = name.substr(std::min(aside + kSetAside.size(), name.size()));
    std::string step = name.substr(0, aside);
    if (step.ends_with(kUnfinished)) step.resize(step.size() - kUnfinished.size());
    return step_in_name(step) >= 0 && (number.empty() || is_digits(number));
}

// Deletes the files that saves write, then the directory. Returns false if the directory stays because it contains
// something else. It deletes relative to the open directory, so it never follows a link that replaces it meanwhile.
static bool remove_directory(FileCalls& calls, const std::string& path) {
    const int fd = calls.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0 && errno == ENOENT) return true;
    if (fd < 0 && errno == ENOTDIR) return false;
    if (fd < 0) fail_to_write(path, "open it to delete it");
    std::string stays;
    int error = 0;
    for (const std::string& name : names_in(path)) {
        if (!is_written_by_saves(name) || calls.unlink_at(fd, name.c_str()) == 0) continue;
        if (errno == ENOENT || errno == EISDIR) continue;
        stays = path + "/" + name;
        error = errno;
        break;
    }
    calls.close(fd);
    errno = error;
    if (!stays.empty()) fail_to_write(stays, "delete it");
    if (calls.rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
    if (errno == ENOTEMPTY || errno == EEXIST) return false;
    fail_to_write(path, "delete the directory");
}

// Removes a leftover, or sets aside the rest of it.
static void clear(FileCalls& calls, const std::string& path) {
    if (is_link(path)) {
        remove_link(calls, path);
        warn(path + " was a link: it is removed, and the files that it led to are not touched");
    } else if (!remove_directory(calls, path)) {
        warn(path + " is more than a checkpoint: renamed to " + set_aside(calls, path));
    }
}

int64_t step_in_name(const std::string& path) {
    constexpr size_t kMostDigits = 18;
    const std::string name = path.substr(path.find_last_of('/') + 1);
    if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + kMostDigits) return -1;
    const std::optional<uint64_t> step = number_in<uint64_t>(name.substr(kPrefix.size()));
    return step ? static_cast<int64_t>(*step) : -1;
}

std::string checkpoint_path(const std::string& directory, int64_t step) {
    return directory + "/" + kPrefix + fmt::format("{:08}", step);
}

std::string unfinished_path(const std::string& directory, int64_t step) {
    return checkpoint_path(directory, step) + kUnfinished;
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory) {
    std::vector<FoundCheckpoint> found;
    for (const std::string& name : names_in(directory)) {
        const int64_t step = step_in_name(name);
        const std::string path = directory + "/" + name;
        const fs::file_type type = type_of(path);
        const bool is_link = type == fs::file_type::symlink;
        if (step < 0 || (type != fs::file_type::directory && !is_link)) continue;
        found.push_back({step, path, is_link, name_exists(path + "/" + kManifestName)});
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
    return found;
}

void remove_unfinished(FileCalls& calls, const std::string& directory) {
    try {
        for (const std::string& name : names_in(directory)) {
            if (!is_name_of_saves(name) || !name.ends_with(kUnfinished)) continue;
            try {
                clear(calls, directory + "/" + name);
            } catch (const Error& error) {
                warn(std::string("cannot delete the rest of an interrupted save: ") + error.what());
            }
        }
    } catch (const Error& error) {
        warn(error.what());
    }
}

void begin_checkpoint(FileCalls& calls, const std::string& directory, int64_t step) {
    const bool is_new = !name_exists(directory);
    make_directory(calls, directory);
    const fs::path run = fs::path(directory).parent_path();
    if (is_new) sync_directory(calls, run.string());
    // The run's directory may be new as well.
    if (is_new && run.has_parent_path()) sync_directory(calls, run.parent_path().string());
    make_directory(calls, unfinished_path(directory, step));
}

void commit_checkpoint(FileCalls& calls, const std::string& directory, int64_t step, const std::string& manifest_text) {
    const std::string unfinished = unfinished_path(directory, step), path = checkpoint_path(directory, step);
    write_synced(calls, unfinished + "/" + kManifestName, manifest_text);
    if (name_exists(path)) set_aside(calls, path);
    if (calls.rename(unfinished.c_str(), path.c_str()) != 0)
        fail_to_write(path, "rename the finished checkpoint to it");
    sync_directory(calls, directory);
}

void abort_checkpoint(FileCalls& calls, const std::string& directory, int64_t step) {
    clear(calls, unfinished_path(directory, step));
}

void remove_checkpoint(FileCalls& calls, const std::string& path) {
    const std::string removed = path + kUnfinished, parent = fs::path(path).parent_path().string();
    if (is_link(path)) {
        clear(calls, path);
        return sync_directory(calls, parent);
    }
    if (name_exists(removed)) clear(calls, removed);
    if (calls.rename(path.c_str(), removed.c_str()) != 0) fail_to_write(path, "rename it for deletion");
    sync_directory(calls, parent);
    clear(calls, removed);
}

void remove_all_checkpoints(FileCalls& calls, const std::string& directory) {
    for (const FoundCheckpoint& found : find_checkpoints(directory)) remove_checkpoint(calls, found.path);
    for (const std::string& name : names_in(directory)) {
        const std::string path = directory + "/" + name;
        if (!is_name_of_saves(name)) continue;
        if (is_link(path))
            remove_link(calls, path);
        else if (!remove_directory(calls, path))
            warn(path + " stays, because it holds files that no save wrote");
    }
    if (!is_link(directory)) calls.rmdir(directory.c_str());  // stays if it contains other files
}

std::string set_aside(FileCalls& calls, const std::string& path) {
    std::string target = path + kSetAside;
    for (int i = 2; name_exists(target); i++) target = path + kSetAside + std::to_string(i);
    if (calls.rename(path.c_str(), target.c_str()) != 0) fail_to_write(path, "set it aside");
    sync_directory(calls, fs::path(path).parent_path().string());
    return target;
}

void prune_checkpoints(FileCalls& calls, const std::string& directory, const CheckpointRetention& retention,
                       int64_t in_use, const std::vector<int64_t>& read) {
    if (retention.keep == 0) return;
    std::optional<Error> problem;  // the first error
    int64_t newer = 0;             // complete checkpoints seen so far
    for (const FoundCheckpoint& checkpoint : find_checkpoints(directory)) {
        if (!checkpoint.has_manifest) continue;  // kept: a person may want to inspect it
        const bool newest = newer < retention.keep;
        const bool by_step = retention.keep_every > 0 && checkpoint.step % retention.keep_every == 0;
        const bool used = (checkpoint.step == in_use && newer < 2) ||
                          std::find(read.begin(), read.end(), checkpoint.step) != read.end();
        newer++;
        if (newest || by_step || used) continue;
        try {
            remove_checkpoint(calls, checkpoint.path);
        } catch (const Error& error) {
            if (!problem) problem = error;
        }
    }
    if (problem) throw *problem;
}

}  // namespace llmc
