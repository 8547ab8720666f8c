// The directory that holds a run's checkpoints, one directory each, and the order in which files and names are written
// and deleted there.
//
//   step_00001234.tmp/            being written: every rank writes its file, then rank 0 writes the manifest
//   step_00001234/                complete: it got this name when everything in it was on the disk
//   step_00001234.set_aside/      replaced by something newer, or holds files that no save wrote; only
//                                 remove_all_checkpoints() deletes it
//
// A directory without a suffix and with a manifest is a whole checkpoint, even after a crash at any point: the name
// reaches the disk last when a checkpoint is written, and is removed first when it is deleted. Only rank 0 calls these
// functions.
//
// A user may move a checkpoint to another disk and leave a link to it; reading follows the link. Nothing is ever
// deleted through a link, and only files that a save writes are deleted. Everything else is set aside, with a warning
// on stderr.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/files.h"

namespace llmc {

// Which old checkpoints stay.
struct CheckpointRetention {
    int64_t keep = 3;        // the newest checkpoints to keep; 0 keeps all
    int64_t keep_every = 0;  // also keep checkpoints whose step is a multiple of this; 0 keeps no others
};

struct FoundCheckpoint {
    int64_t step;  // from its name
    std::string path;
    bool is_link;
    bool has_manifest;
};
// Directories called step_N and links with such a name, newest first.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory);

std::string checkpoint_path(const std::string& directory, int64_t step);
std::string unfinished_path(const std::string& directory, int64_t step);
// The step in the last component of a path, or -1 if that is not step_N.
int64_t step_in_name(const std::string& path);

// Removes the remains of interrupted saves and removals. Only the run that owns the directory may call it. Never fails:
// if something cannot be removed, it prints a warning and leaves it.
void remove_unfinished(FileCalls& calls, const std::string& directory);
// Creates unfinished_path(). Call remove_unfinished() first to make room for it.
void begin_checkpoint(FileCalls& calls, const std::string& directory, int64_t step);
// Writes the manifest and gives the directory its final name. Every rank's file must already be on the disk. If a
// directory with that name exists, it is set aside.
void commit_checkpoint(FileCalls& calls, const std::string& directory, int64_t step, const std::string& manifest_text);
// Removes the unfinished checkpoint of a failed save.
void abort_checkpoint(FileCalls& calls, const std::string& directory, int64_t step);

// Renames the checkpoint before deleting it, so that the next save can finish an interrupted removal. If it is a link,
// removes only the link.
void remove_checkpoint(FileCalls& calls, const std::string& path);
// Removes everything that runs have left in the directory, for a new run that replaces them.
void remove_all_checkpoints(FileCalls& calls, const std::string& directory);
// Renames a checkpoint so that it no longer counts as one, and returns the new path.
std::string set_aside(FileCalls& calls, const std::string& path);
// Removes complete checkpoints that need not be kept. `in_use` is the step that the run was resumed from, or -1; it
// stays until two newer checkpoints are complete. `read` are the steps whose checkpoints other programs read now. If a
// removal fails, removes the rest and then throws.
void prune_checkpoints(FileCalls& calls, const std::string& directory, const CheckpointRetention& retention,
                       int64_t in_use, const std::vector<int64_t>& read = {});

}  // namespace llmc
