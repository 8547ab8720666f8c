// Recognises runs by the first lines of their logs, by run.json and by what lies next to them.
#include "llmc/log/earlier_run.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/log/metrics.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

bool exists(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}
bool is_directory(const std::string& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}
bool has_bytes(const std::string& path) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(path, error);
    return exists(path) && (error || bytes > 0);
}

// What the lines of a log say about the run.
struct Log {
    bool is_ours = false;  // its first line looks like a run's
    bool has_steps = false;
};
Log look_at_log(const std::string& path, const std::string& first, const std::string& step) {
    Log log;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return log;
    std::ifstream file(path);
    std::string line;
    for (bool is_first = true; std::getline(file, line); is_first = false) {
        if (is_first) log.is_ours = line.starts_with(first);
        log.has_steps = line.find(step) != std::string::npos;
        if (log.has_steps || !log.is_ours) break;
    }
    return log;
}

// The sign in DIR/checkpoints that there was a checkpoint; "" if there is none.
std::string saved_in(const std::string& checkpoints) {
    if (!exists(checkpoints)) return "";
    if (!is_directory(checkpoints))
        return "checkpoints is " + std::string(fs::is_symlink(checkpoints) ? "a link that leads nowhere" : "a file");
    for (const std::string& name : names_in(checkpoints))
        if (!name.starts_with("step_") || !name.ends_with(".tmp")) return "checkpoints/" + name + " is there";
    return "";
}

std::vector<std::string> names_starting_with(const std::string& directory, const std::string& start) {
    std::vector<std::string> names;
    for (const std::string& name : names_in(directory))
        if (name.starts_with(start)) names.push_back(name);
    return names;
}

}  // namespace

EarlierRun find_earlier_run(const std::string& directory) {
    const std::string dir = directory + "/";
    EarlierRun found;
    found.saved = saved_in(directory + "/checkpoints");
    const Log metrics = look_at_log(dir + "metrics.jsonl", "{\"step\":", "\"loss\":");
    const Log main_log = look_at_log(dir + "main.log", "s:", " trl:");
    found.steps = metrics.has_steps ? "metrics.jsonl has steps" : main_log.has_steps ? "main.log has steps" : "";

    const ordered_json run = read_run_json(directory);
    const bool is_run = run.is_object() && run.contains("run_id");
    const bool is_ours = is_run || metrics.is_ours || main_log.is_ours;
    const auto says = [&](bool true_here, const char* text) {
        if (true_here && found.saved.empty()) found.saved = text;
    };
    if (is_run && run.contains("first_checkpoint")) {
        found.never_saved = run["first_checkpoint"].is_null();
        says(!found.never_saved, "run.json says that a checkpoint was written");
    }
    says(is_run && run.contains("resumed"), "run.json says that the run was resumed");
    says(is_ours && exists(dir + "model.safetensors"), "model.safetensors is there");
    if (is_ours) return found;
    std::vector<std::string> names = {"run.json", "metrics.jsonl", "main.log", "config.json"};
    for (const std::string& name : names_starting_with(directory, "model"))
        if (name.find(".safetensors") != std::string::npos) names.push_back(name);
    for (const std::string& name : names)
        if (has_bytes(dir + name)) found.somebody_elses = name;
    return found;
}

std::string move_records_aside(const std::string& directory) {
    const std::string dir = directory + "/";
    if (!has_bytes(dir + "metrics.jsonl") && !has_bytes(dir + "main.log")) return "";
    int number = 1;
    while (exists(dir + strprintf("before-%d", number))) number++;
    const std::string target = dir + strprintf("before-%d", number);
    std::error_code error;
    fs::create_directory(target, error);
    std::vector<std::string> names = {"run.json", "metrics.jsonl", "main.log", "check.json", "tensorboard"};
    for (const std::string& name : names_starting_with(directory, "trace-rank")) names.push_back(name);
    for (const std::string& name : names)
        if (!error && exists(dir + name)) fs::rename(dir + name, target + "/" + name, error);
    if (error) fail_to_write(target, error.value());
    return target;
}

void remove_earlier_run(const std::string& directory) {
    const std::string dir = directory + "/";
    remove_all_checkpoints(system_calls(), directory + "/checkpoints");
    std::error_code error;
    fs::remove_all(dir + "tensorboard", error);
    std::vector<std::string> names = {"run.json", "metrics.jsonl", "model.safetensors", "main.log"};
    for (const std::string& name : names_starting_with(directory, "trace-rank")) names.push_back(name);
    for (const std::string& name : names) {
        fs::remove(dir + name, error);
        if (error)
            throw Error(ExitCode::bad_flags, strprintf("cannot delete %s: %s; choose another directory with --out",
                                                       (dir + name).c_str(), error.message().c_str()));
    }
}

void require_checkpoint_directory(const std::string& path) {
    if (!exists(path) || is_directory(path)) return;
    std::error_code ignored;
    if (!fs::is_symlink(path))
        throw Error(ExitCode::checkpoint, path + " is not a directory, so no checkpoint can be written to it");
    throw Error(ExitCode::checkpoint, strprintf("%s is a link to %s, which is not there: mount its disk or create the "
                                                "directory, or remove the link",
                                                path.c_str(), fs::read_symlink(path, ignored).c_str()));
}

}  // namespace llmc
