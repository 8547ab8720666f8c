// Runs scripts/follow.py as a child of rank 0, for --track. The child reads metrics.jsonl, so the run neither waits for
// it nor notices when it fails.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "llmc/flags/options.h"
#include "llmc/log/run_directory.h"

namespace llmc {

class Follower {
public:
    // Starts the script if --track asks for it and this rank writes the run directory. A script that cannot be started
    // is a warning that says what to install.
    Follower(const Options& options, const RunDirectory& directory);
    // Tells the script that the run has ended and waits up to 20 seconds while it sends the last records. One that
    // takes longer continues on its own. One that failed is a warning with the command that catches up.
    ~Follower();
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;

private:
    std::string start();  // returns the problem, "" if there is none
    void warn(const std::string& problem) const;

    std::vector<std::string> command_;  // what a user would type to follow the run
    pid_t pid_ = -1;                    // -1: not running
    int alive_ = -1;                    // end of a pipe to the script; it ends when this is closed or the process dies
};

}  // namespace llmc
