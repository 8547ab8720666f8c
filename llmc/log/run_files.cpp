// The table of a run directory's files, and the deletions and moves that follow from it.
#include "llmc/log/run_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "llmc/base/text.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/log/run_directory.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

constexpr InputKind kAnyFile = {"file", "a regular file", ExitCode::failure, 0, false};
constexpr size_t kHead = 256;             // bytes of a file that its test sees
constexpr size_t kEnd = size_t{1} << 16;  // bytes of a file's fingerprint, at its beginning and its end

struct Row {
    std::regex name;
    const char* content;  // regular expression for the beginning of the file; nullptr if no content shows it
    RunFileFate fate;
    bool is_recorded = false;
    bool is_replaced = true;
};

// run.json comes first. The first row whose name matches counts. An empty file is a run's, because nothing in it could
// get lost.
const std::vector<Row>& rows() {
    using enum RunFileFate;
    static const std::vector<Row> all = {
        {std::regex(R"(run\.json)"), R"x(\{\s*"(run_id|resumed)":)x", moves},
        {std::regex(R"(metrics\.jsonl)"), R"x(\{"step":)x", moves},
        {std::regex(R"(main\.log)"), "s:[0-9]", moves},
        // Earlier versions wrote it.
        {std::regex(R"(check\.json)"), R"x(\{\s*(\}|"[^"]*": ?\{\s*"family":))x", moves},
        {std::regex(R"(trace-rank[0-9]+\.json)"), R"x(\{"displayTimeUnit":"ms","baseTimeNanoseconds":)x", moves},
        {std::regex(R"(watchdog_rank[0-9]{5,}\.json)"), R"x(\{\s*"backend":)x", moves},
        // scripts/follow.py names them after the run_id. TensorFlow's own have the name of a computer.
        {std::regex(R"(tensorboard/events\.out\.tfevents\.[0-9]{10}\.[0-9a-f]{16}-[0-9TZ]*-[0-9]+)"),
         R"x([\s\S]{0,40}brain\.Event:2)x", moves},
        {std::regex(R"(model\.safetensors|config\.json)"), nullptr, moves, true},
        {std::regex(R"(tokenizer\.(json|bin|tiktoken))"), nullptr, follows, true},
        {std::regex("decay"), R"x([0-9]{1,18}\s*$)x", ends},
        {std::regex("lock"), "process [0-9]+ on ", stays},
        // Parts of a model in several files. Next to a run's model.safetensors they would be taken for its parts.
        {std::regex(R"(model.*\.safetensors.*)"), nullptr, stays, false, false},
    };
    return all;
}

std::string fingerprint_of(uint64_t bytes, const std::string& head, const std::string& tail) {
    const std::string ends = head + tail;
    return fmt::format("{}-{:016x}", bytes, checksum(ends.data(), ends.size()));
}

// The fingerprints in run.json of the files that this run has written; "" for one that was being written when the
// run died. Earlier versions recorded none.
struct Recorded {
    bool by_earlier_version = false;
    std::map<std::string, std::string> files;
};
bool has_content_of(const Row& row, const std::string& directory, const std::string& name, const Recorded& recorded) {
    const std::string path = directory + "/" + name;
    try {
        const InputFile file(path, kAnyFile);
        if (file.bytes() == 0) return true;
        if (row.is_recorded) {
            if (recorded.by_earlier_version) return row.fate == RunFileFate::moves;
            const auto found = recorded.files.find(name);
            return found != recorded.files.end() && (found->second.empty() || found->second == file_fingerprint(path));
        }
        std::string head(kHead, '\0');
        head.resize(file.read_at(0, head.data(), kHead));
        return row.content != nullptr &&
               std::regex_search(head, std::regex(row.content), std::regex_constants::match_continuous);
    } catch (const Error&) {  // a link, a directory, or a file that cannot be read
        return false;
    }
}

Recorded recorded_in(const std::string& directory) {
    Recorded recorded;
    if (!has_content_of(rows()[0], directory, "run.json", recorded)) return recorded;
    const Json run = read_run_json(directory);
    if (!run.is_object()) return recorded;
    recorded.by_earlier_version = !run.contains("wrote");
    if (recorded.by_earlier_version || !run["wrote"].is_object()) return recorded;
    for (const auto& [name, fingerprint] : run["wrote"].items())
        if (fingerprint.is_string()) recorded.files[name] = fingerprint;
    return recorded;
}

bool is_real_directory(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type() == fs::file_type::directory;
}

// Calls take(name) for the run's own files with one of these fates. It returns 0 or an errno.
void for_each_own_file(const std::string& directory, const std::vector<RunFileFate>& fates, const char* action,
                       const std::function<int(const std::string& name)>& take) {
    for (const RunFile& file : find_run_files(directory)) {
        if (!file.is_ours || std::find(fates.begin(), fates.end(), file.fate) == fates.end()) continue;
        const int error = take(file.name);
        if (error != 0 && error != ENOENT)
            throw Error(code_of(error, ExitCode::bad_flags), "cannot {} {}/{}: {}", action, directory, file.name,
                        reason_of(error, "choose another directory with --out"));
        if (file.name.find('/') != std::string::npos)
            ::rmdir(fs::path(directory + "/" + file.name).parent_path().c_str());  // stays until it is empty
    }
}

}  // namespace

std::string file_fingerprint(const std::string& path) {
    try {
        const InputFile file(path, kAnyFile);
        std::string head(std::min<uint64_t>(file.bytes(), kEnd), '\0'), tail = head;
        head.resize(file.read_at(0, head.data(), head.size()));
        tail.resize(file.read_at(file.bytes() - tail.size(), tail.data(), tail.size()));
        return fingerprint_of(file.bytes(), head, tail);
    } catch (const Error&) {
        return "";
    }
}

std::string text_fingerprint(const std::string& text) {
    const size_t end = std::min(text.size(), kEnd);
    return fingerprint_of(text.size(), text.substr(0, end), text.substr(text.size() - end));
}

bool was_replaced(const std::string& directory, const std::string& name) {
    const Recorded recorded = recorded_in(directory);
    const auto found = recorded.files.find(name);
    return found != recorded.files.end() && !found->second.empty() &&
           found->second != file_fingerprint(directory + "/" + name);
}

std::vector<RunFile> find_run_files(const std::string& directory) {
    std::vector<std::string> names = names_in(directory);
    if (is_real_directory(directory + "/tensorboard"))
        for (const std::string& name : names_in(directory + "/tensorboard")) names.push_back("tensorboard/" + name);
    std::vector<RunFile> files;
    std::optional<Recorded> recorded;
    for (const std::string& name : names)
        for (const Row& row : rows()) {
            if (!std::regex_match(name, row.name)) continue;
            if (row.is_recorded && !recorded) recorded = recorded_in(directory);
            const bool is_ours = has_content_of(row, directory, name, recorded.value_or(Recorded()));
            files.push_back({name, row.fate, row.is_replaced, is_ours, row.is_recorded});
            break;
        }
    return files;
}

bool is_run_file(const std::string& directory, const std::string& name) {
    const std::vector<RunFile> files = find_run_files(directory);
    return std::any_of(files.begin(), files.end(),
                       [&](const RunFile& file) { return file.name == name && file.is_ours; });
}

void delete_run_files(const std::string& directory, const std::vector<RunFileFate>& fates) {
    for_each_own_file(directory, fates, "delete", [&](const std::string& name) {
        return ::unlink((directory + "/" + name).c_str()) == 0 ? 0 : errno;
    });
}

void move_run_files(const std::string& directory, const std::vector<RunFileFate>& fates, const std::string& target) {
    for_each_own_file(directory, fates, "move", [&](const std::string& name) {
        std::error_code error;
        const std::string to = target + "/" + name;
        fs::create_directories(fs::path(to).parent_path(), error);
        if (!error) fs::rename(directory + "/" + name, to, error);
        return error.value();
    });
}

}  // namespace llmc
