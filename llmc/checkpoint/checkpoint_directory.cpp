#include "llmc/checkpoint/checkpoint_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "llmc/checkpoint/state_tensors.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

const std::string kPrefix = "step_", kUnfinished = ".tmp", kSetAside = ".set_aside";

// The step of "step_00001234"; -1 for any other name.
int64_t step_of(const std::string& name) {
    constexpr size_t kMostDigits = 18;
    if (!name.starts_with(kPrefix)) return -1;
    const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
    if (begin == end || static_cast<size_t>(end - begin) > kMostDigits) return -1;
    if (!std::all_of(begin, end, [](char c) { return c >= '0' && c <= '9'; })) return -1;
    int64_t step = 0;
    std::from_chars(begin, end, step);
    return step;
}

bool exists(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}
bool is_directory(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type() == fs::file_type::directory;
}

// A directory of plain files.
void remove_directory(FileCalls& calls, const std::string& path) {
    for (const std::string& name : names_in(path)) {
        const std::string file = path + "/" + name;
        if (calls.unlink(file.c_str()) != 0 && errno != ENOENT) fail_to_write(file, "delete it");
    }
    if (calls.rmdir(path.c_str()) != 0 && errno != ENOENT) fail_to_write(path, "delete the directory");
}

void make_directory(FileCalls& calls, const std::string& path) {
    if (calls.mkdir(path.c_str(), 0777) == 0) return;
    if (errno != EEXIST) fail_to_write(path, "create the directory");
}

}  // namespace

std::string checkpoint_path(const std::string& directory, int64_t step) {
    return directory + "/" + kPrefix + strprintf("%08lld", static_cast<long long>(step));
}

std::string unfinished_path(const std::string& directory, int64_t step) {
    return checkpoint_path(directory, step) + kUnfinished;
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory) {
    std::vector<FoundCheckpoint> found;
    for (const std::string& name : names_in(directory)) {
        const int64_t step = step_of(name);
        const std::string path = directory + "/" + name;
        if (step < 0 || !is_directory(path)) continue;
        found.push_back({step, path, exists(path + "/" + kManifestName)});
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
    return found;
}

void remove_unfinished(FileCalls& calls, const std::string& directory) {
    for (const std::string& name : names_in(directory))
        if (name.starts_with(kPrefix) && name.ends_with(kUnfinished)) remove_directory(calls, directory + "/" + name);
}

void begin_checkpoint(FileCalls& calls, const std::string& directory, int64_t step) {
    const bool is_new = !exists(directory);
    make_directory(calls, directory);
    const fs::path run = fs::path(directory).parent_path();
    if (is_new) sync_directory(calls, run.string());
    if (is_new && run.has_parent_path()) sync_directory(calls, run.parent_path().string());  // may be new as well
    remove_unfinished(calls, directory);
    make_directory(calls, unfinished_path(directory, step));
}

void commit_checkpoint(FileCalls& calls, const std::string& directory, int64_t step, const std::string& manifest_text) {
    const std::string unfinished = unfinished_path(directory, step), path = checkpoint_path(directory, step);
    write_synced(calls, unfinished + "/" + kManifestName, manifest_text);
    if (exists(path)) set_aside(calls, path);
    if (calls.rename(unfinished.c_str(), path.c_str()) != 0)
        fail_to_write(path, "rename the finished checkpoint to it");
    sync_directory(calls, directory);
}

void abort_checkpoint(FileCalls& calls, const std::string& directory, int64_t step) {
    remove_directory(calls, unfinished_path(directory, step));
}

void remove_checkpoint(FileCalls& calls, const std::string& path) {
    const std::string removed = path + kUnfinished;
    if (exists(removed)) remove_directory(calls, removed);
    if (calls.rename(path.c_str(), removed.c_str()) != 0) fail_to_write(path, "rename it for deletion");
    sync_directory(calls, fs::path(path).parent_path().string());
    remove_directory(calls, removed);
}

std::string set_aside(FileCalls& calls, const std::string& path) {
    std::string target = path + kSetAside;
    for (int i = 2; exists(target); i++) target = path + kSetAside + std::to_string(i);
    if (calls.rename(path.c_str(), target.c_str()) != 0) fail_to_write(path, "set it aside");
    sync_directory(calls, fs::path(path).parent_path().string());
    return target;
}

std::vector<std::string> prune_checkpoints(FileCalls& calls, const std::string& directory,
                                           const CheckpointRetention& retention, int64_t in_use) {
    std::vector<std::string> removed;
    if (retention.keep == 0) return removed;
    int64_t newer = 0;  // complete ones seen so far
    for (const FoundCheckpoint& checkpoint : find_checkpoints(directory)) {
        if (!checkpoint.has_manifest) continue;  // to be looked at by a person
        const bool newest = newer < retention.keep;
        const bool by_step = retention.keep_every > 0 && checkpoint.step % retention.keep_every == 0;
        const bool used = checkpoint.step == in_use && newer < 2;
        newer++;
        if (newest || by_step || used) continue;
        remove_checkpoint(calls, checkpoint.path);
        removed.push_back(checkpoint.path);
    }
    return removed;
}

}  // namespace llmc
