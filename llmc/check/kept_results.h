// Results of card checks, kept from one run to the next: a readable JSON file for each card, driver, set of libraries
// and program, in $XDG_CACHE_HOME/train_gpt or ~/.cache/train_gpt. Several processes, and several machines with one
// home directory, may write at the same time: each adds its findings.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "llmc/check/findings.h"

namespace llmc {

// "": there is no home directory to keep anything in.
std::string cache_directory();

class KeptResults {
public:
    // `identity`: {what: which} of everything that results depend on, but for the items. In a directory of "" nothing
    // is kept.
    KeptResults(const std::string& directory, const nlohmann::ordered_json& identity);

    const std::string& path() const { return path_; }
    // The kept results; empty if there is no such file, or if it is unreadable or belongs to something else.
    Findings load() const;
    // The day of the last addition; empty if load() returns nothing.
    std::string date() const;
    // Adds findings; newer ones replace older ones. Returns a description of an error, which does not stop a run.
    std::string add(const Findings& findings) const;

private:
    nlohmann::ordered_json read() const;

    nlohmann::ordered_json identity_;
    std::string path_;
};

}  // namespace llmc
