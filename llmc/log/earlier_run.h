// Looks for an earlier run in the directory that --out names, and for files that no run has written. Without
// --overwrite, a new run replaces nothing that somebody could miss.
#pragma once
#include <string>

namespace llmc {

struct EarlierRun {
    std::string saved;           // sign that checkpoints or final weights were written; "" if there is none
    std::string steps;           // names the log that has steps; "" if none has
    bool never_saved = false;    // run.json says that no checkpoint was ever completed
    std::string somebody_elses;  // a file that a run would replace but that no run has written; "" if there is none

    // The reason why --resume auto must not begin a new run if it finds no checkpoint; "" if it may.
    std::string why_not_restart() const { return !saved.empty() || never_saved ? saved : steps; }
};
EarlierRun find_earlier_run(const std::string& directory);

// Moves the records of a run into a new directory DIR/before-N. Returns its path, or "" if there are no records.
std::string move_records_aside(const std::string& directory);

// Deletes the files of the run in the directory, and nothing else.
void remove_earlier_run(const std::string& directory);

// Throws unless DIR/checkpoints can be written to: a link must lead to a directory.
void require_checkpoint_directory(const std::string& path);

}  // namespace llmc
