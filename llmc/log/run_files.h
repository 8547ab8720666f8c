// The files that a run writes into its directory, in one table: their names, and how the content of each shows that a
// run wrote it. Refusing a directory, --overwrite and everything that deletes or moves a file there use this table, so
// a file that somebody else put there under one of these names is neither replaced nor deleted. Nothing here follows a
// link: a link under one of these names is no run's file.
#pragma once
#include <string>
#include <vector>

namespace llmc {

// The fate of a run's file when a new run takes over the directory.
enum class RunFileFate {
    moves,    // to before-N if the earlier run never saved; deleted by --overwrite
    ends,     // deleted by --overwrite
    follows,  // RunDirectory::keep_tokenizer() replaces or deletes it
    stays
};

struct RunFile {
    std::string name;  // relative to the directory: "run.json", "tensorboard/events.out.tfevents..."
    RunFileFate fate;
    bool is_replaced = true;   // a run writes a file of this name
    bool is_ours = true;       // a run wrote it
    bool is_recorded = false;  // other programs write such files, so run.json records which ones are the run's
};

// The files in `directory` whose names are in the table. A checkpoint is not one of them (checkpoint_directory.h).
std::vector<RunFile> find_run_files(const std::string& directory);
bool is_run_file(const std::string& directory, const std::string& name);

// Identifies the content of a file by its size, beginning and end. "" if it is not a regular file.
std::string file_fingerprint(const std::string& path);
std::string text_fingerprint(const std::string& text);  // of a file with this content

// True if somebody replaced the file after the run wrote it, as far as run.json says.
bool was_replaced(const std::string& directory, const std::string& name);

// Deletes, or moves to the directory `target`, the run's own files with one of these fates, and then the directory
// tensorboard if it is empty. Throws Error(bad_flags) or Error(no_resources).
void delete_run_files(const std::string& directory, const std::vector<RunFileFate>& fates);
void move_run_files(const std::string& directory, const std::vector<RunFileFate>& fates, const std::string& target);

}  // namespace llmc
