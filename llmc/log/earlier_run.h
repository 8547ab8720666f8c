// Looks at a directory that --out names for an earlier run, the start of one that failed, or somebody's files.
// A new run replaces nothing that anybody could miss, unless it is told to (--overwrite).
#pragma once
#include <string>

namespace llmc {

struct EarlierRun {
    std::string saved;           // the sign that checkpoints or final weights were written; "" if there is none
    std::string steps;           // the log that has steps; "": none
    bool never_saved = false;    // run.json says that no checkpoint was ever completed
    std::string somebody_elses;  // a file that a run would replace, and that no run has written; "": none

    // Why --resume auto must not begin a new run where it finds no checkpoint; "": it may.
    std::string why_not_restart() const { return !saved.empty() || never_saved ? saved : steps; }
};
EarlierRun find_earlier_run(const std::string& directory);

// Moves the records of a run into a new directory DIR/before-N and returns its path; "": there are no records.
std::string move_records_aside(const std::string& directory);

// Deletes the files of the run in the directory, and nothing else.
void remove_earlier_run(const std::string& directory);

// Throws unless DIR/checkpoints can be written to: a link must lead to a directory.
void require_checkpoint_directory(const std::string& path);

}  // namespace llmc
