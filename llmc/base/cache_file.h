// A JSON file in the user's cache directory, which programs keep from one run to the next. Its name and its `identity`
// say what the entries depend on, such as card, driver and library, so that a run elsewhere does not use them.
#pragma once
#include <string>

#include "llmc/base/json.h"

namespace llmc {

// $XDG_CACHE_HOME/train_gpt or ~/.cache/train_gpt; "" without a home directory.
std::string cache_directory();

class CacheFile {
public:
    // `identity` names everything that the entries depend on. With "" as directory, nothing is kept.
    CacheFile(const std::string& directory, const std::string& kind, const Json& identity);

    const std::string& path() const { return path_; }
    // The entries, an object. Empty if there is no file, or if it is unreadable or has another identity.
    Json load() const;
    // Adds entries. Objects are merged, and other values replace those that are there. Several processes, and several
    // machines with one home directory, may add at the same time. Returns a description of an error, or "".
    std::string add(const Json& entries) const;

private:
    JsonValue identity_;
    std::string path_;
};

}  // namespace llmc
