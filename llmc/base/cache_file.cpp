// The file is written under a lock, and replaced as a whole (cache_file.h).
#include "llmc/base/cache_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

namespace llmc {
namespace {

constexpr InputKind kCache = {"cache", "no file at all", ExitCode::failure, 64};

// A process holds this lock while it changes the file. On a file system without locks some entries may get lost.
class Lock {
public:
    explicit Lock(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
        if (fd_ >= 0) flock(fd_, LOCK_EX);
    }
    ~Lock() {
        if (fd_ >= 0) close(fd_);
    }
    Lock(Lock&&) = delete;

private:
    const int fd_;
};

}  // namespace

std::string cache_directory() {
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::string(cache) + "/train_gpt";
    if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/train_gpt";
    return "";
}

CacheFile::CacheFile(const std::string& directory, const std::string& kind, const Json& identity)
    : identity_(identity) {
    if (!directory.empty())
        path_ = directory + fmt::format("/{}-{:016x}.json", kind, std::hash<std::string>()(json_text(identity)));
}

Json CacheFile::load() const {
    try {
        const Json json = path_.empty() ? Json() : read_json_or_null(path_, kCache);
        if (json.at("identity") == *identity_ && json.at("entries").is_object()) return json["entries"];
    } catch (const std::exception&) {  // treated as missing; it will be written again
    }
    return Json::object();
}

std::string CacheFile::add(const Json& entries) const {
    if (path_.empty()) return "there is no home directory to keep it in";
    try {
        std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
        const Lock lock(path_ + ".lock");
        Json all = load();
        all.update(entries, /*merge_objects=*/true);
        const Json json = {{"identity", *identity_}, {"entries", all}};
        write_synced(system_calls(), path_, json_text(json, 1) + "\n");
        return "";
    } catch (const std::exception& error) {
        return error.what();
    }
}

}  // namespace llmc
