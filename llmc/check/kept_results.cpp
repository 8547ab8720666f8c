// Reads and writes the file of kept results, under a lock.
#include "llmc/check/kept_results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/manifest.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t kLargestFile = uint64_t{64} << 20;

// A process holds this lock while it changes the file. On a file system without locks some results may get lost.
class Lock {
public:
    explicit Lock(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
        if (fd_ >= 0) flock(fd_, LOCK_EX);
    }
    ~Lock() {
        if (fd_ >= 0) close(fd_);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    const int fd_;
};

std::string today() {
    const std::time_t now = std::time(nullptr);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
    return text;
}

}  // namespace

std::string cache_directory() {
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::string(cache) + "/train_gpt";
    if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/train_gpt";
    return "";
}

KeptResults::KeptResults(const std::string& directory, const Json& identity) : identity_(identity) {
    const std::string text = json_text(identity);
    if (!directory.empty()) path_ = directory + fmt::format("/check-{:016x}.json", checksum(text.data(), text.size()));
}

// The file of this identity; null where there is none.
Json KeptResults::read() const {
    if (path_.empty()) return {};
    const Json json = parse_json<Json>(read_whole(path_, kLargestFile));
    return json.at("identity") == identity_ ? json : Json();
}

Findings KeptResults::load() const {
    try {
        const Json json = read();
        if (!json.is_null()) return findings_from_json(json.at("findings"));
    } catch (const std::exception&) {  // treated as missing; it will be written again
    }
    return {};
}

std::string KeptResults::date() const {
    try {
        const Json json = read();
        if (!json.is_null()) return json.at("changed");
    } catch (const std::exception&) {
    }
    return "";
}

std::string KeptResults::add(const Findings& findings) const {
    if (path_.empty()) return "there is no home directory to store them in";
    try {
        std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
        const Lock lock(path_ + ".lock");
        Findings all = load();
        for (const auto& [name, finding] : findings) all[name] = finding;
        const Json json = {{"identity", identity_}, {"changed", today()}, {"findings", findings_json(all)}};
        write_synced(system_calls(), path_, json_text(json, 1) + "\n");
        return "";
    } catch (const std::exception& error) {
        return error.what();
    }
}

}  // namespace llmc
