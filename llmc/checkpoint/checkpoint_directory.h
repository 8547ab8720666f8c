// The directory that holds a run's checkpoints, one directory each, and the order in which a checkpoint comes and goes.
//
//   step_00001234.tmp/            being written: every rank its file, then, when all are on the disk, the manifest
//   step_00001234/                complete: the directory got its name when everything in it was on the disk
//   step_00001234.set_aside/      in the way of something newer; for a person to look at
//
// A directory without the suffix and with a manifest is a whole checkpoint after a crash at any point, because names
// reach the disk last when one is written, and the manifest goes first when one is deleted. All of this is for rank 0
// alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/checkpoint/files.h"

namespace llmc {

struct CheckpointRetention {
    int64_t keep = 3;        // the newest so many; 0: all
    int64_t keep_every = 0;  // and every one whose step is a multiple of this
};

struct FoundCheckpoint {
    int64_t step;
    std::string path;
    bool has_manifest;
};
// Newest first.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory);

std::string checkpoint_path(const std::string& directory, int64_t step);
std::string unfinished_path(const std::string& directory, int64_t step);

// What saves that were cut short have left; for whoever has the run directory to itself.
void remove_unfinished(FileCalls& calls, const std::string& directory);
// Makes the empty directory unfinished_path(), after remove_unfinished().
void begin_checkpoint(FileCalls& calls, const std::string& directory, int64_t step);
// Every rank's file is on the disk: now the manifest, then the name. What has that name already is set aside.
void commit_checkpoint(FileCalls& calls, const std::string& directory, int64_t step, const std::string& manifest_text);
void abort_checkpoint(FileCalls& calls, const std::string& directory, int64_t step);

// Takes its name away first: what a removal cut short has left, the next save removes.
void remove_checkpoint(FileCalls& calls, const std::string& path);
// Renames it so that nobody takes it for a checkpoint.
std::string set_aside(FileCalls& calls, const std::string& path);
// Removes complete checkpoints that need not be kept. `in_use`: the step that the run was resumed from, which stays
// until two newer ones are complete; -1: none. Returns what has been removed.
std::vector<std::string> prune_checkpoints(FileCalls& calls, const std::string& directory,
                                           const CheckpointRetention& retention, int64_t in_use);

}  // namespace llmc
