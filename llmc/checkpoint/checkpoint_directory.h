// The directory that holds a run's checkpoints, one directory each, and the order in which files and names are written
// and deleted there.
//
//   step_00001234.tmp/            being written: every rank writes its file, then rank 0 the manifest
//   step_00001234/                complete: the directory got its name when everything in it was on the disk
//   step_00001234.set_aside/      was in the way of something newer, or holds files that no save wrote; never deleted
//
// A directory without a suffix and with a manifest is a whole checkpoint after a crash at any point, because the name
// reaches the disk last when a checkpoint is written, and goes first when it is deleted. Only rank 0 calls these.
//
// A user may move a checkpoint to another disk and leave a link to it: it is read through the link. Nothing is ever
// deleted through a link, and only files that a save writes are deleted. What else is found is set aside, with a
// warning on stderr.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/files.h"

namespace llmc {

struct CheckpointRetention {
    int64_t keep = 3;        // how many of the newest stay; 0: all
    int64_t keep_every = 0;  // checkpoints whose step is a multiple of this stay too; 0: none
};

struct FoundCheckpoint {
    int64_t step;  // by its name
    std::string path;
    bool is_link;
    bool has_manifest;
};
// Directories called step_N, and links with such a name, newest first.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory);

std::string checkpoint_path(const std::string& directory, int64_t step);
std::string unfinished_path(const std::string& directory, int64_t step);
// The step in the last component of a path; -1 if that is not step_N.
int64_t step_in_name(const std::string& path);

// Removes what interrupted saves and removals have left. Only the run that owns the directory may call it. Never fails:
// a leftover that cannot be removed is reported and stays.
void remove_unfinished(FileCalls& calls, const std::string& directory);
// Makes unfinished_path(), which remove_unfinished() has made room for.
void begin_checkpoint(FileCalls& calls, const std::string& directory, int64_t step);
// Writes the manifest and gives the directory its final name. Every rank's file must be on the disk by now. A directory
// that has the name already is set aside.
void commit_checkpoint(FileCalls& calls, const std::string& directory, int64_t step, const std::string& manifest_text);
void abort_checkpoint(FileCalls& calls, const std::string& directory, int64_t step);

// Takes the name away first, so that the next save finishes a removal that was interrupted. Of a link, only the link is
// removed.
void remove_checkpoint(FileCalls& calls, const std::string& path);
// Removes all that runs have left in the directory, for a new run that replaces them.
void remove_all_checkpoints(FileCalls& calls, const std::string& directory);
// Renames it, so that it is no checkpoint any more, and returns the new path.
std::string set_aside(FileCalls& calls, const std::string& path);
// Removes complete checkpoints that need not be kept and returns their paths. `in_use`: the step that the run was
// resumed from, which stays until two newer ones are complete; -1: none. Removes what it can before it throws.
std::vector<std::string> prune_checkpoints(FileCalls& calls, const std::string& directory,
                                           const CheckpointRetention& retention, int64_t in_use);

}  // namespace llmc
