// Opens one file, or a Hugging Face directory with one or several files (weight_files.h).
#include "llmc/checkpoint/weight_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

const char* const kSingle = "model.safetensors";
const char* const kIndex = "model.safetensors.index.json";
const char* const kConfig = "config.json";
constexpr InputKind kIndexFile = {"index of weights", "a Hugging Face directory", ExitCode::checkpoint, 256};

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
    throw Error(ExitCode::checkpoint, path + ": " + problem);
}

bool is_there(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

// Reads an index: {tensor: file name}.
std::map<std::string, std::string> read_index(const std::string& path) {
    const std::string content = read_input(path, kIndexFile);
    const nlohmann::json index = parse_json_or_null<nlohmann::json>(content);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
        fail(path, "is not an index of weights: a JSON object with weight_map is needed");
    std::map<std::string, std::string> files;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
        const std::string name = file.is_string() ? file.get<std::string>() : "";
        if (name.empty() || name == ".." || fs::path(name).filename() != name)
            fail(path, strprintf("says that tensor %s is in %s, which is not the name of a file next to it",
                                 tensor.c_str(), json_text(file).c_str()));
        files[tensor] = name;
    }
    return files;
}

[[noreturn]] void fail_without_weights(const std::string& directory) {
    const bool older = is_there(fs::path(directory) / "pytorch_model.bin") ||
                       is_there(fs::path(directory) / "pytorch_model.bin.index.json");
    fail(directory, strprintf("holds neither %s nor %s%s", kSingle, kIndex,
                              older ? "; pytorch_model.bin is not read: save the model again with "
                                      "save_pretrained(DIR, safe_serialization=True)"
                                    : ""));
}

}  // namespace

WeightFiles::WeightFiles(const std::string& file_or_directory) : path_(file_or_directory) {
    std::error_code ignored;
    const bool directory = fs::is_directory(path_, ignored);
    const fs::path folder = directory ? fs::path(path_) : fs::path(path_).parent_path();
    if (!directory)
        add_file(path_);
    else if (is_there(folder / kSingle))
        add_file((folder / kSingle).string());
    else if (is_there(folder / kIndex))
        open_shards((folder / kIndex).string());
    else
        fail_without_weights(path_);
    if ((directory || fs::path(path_).filename() == kSingle) && is_there(folder / kConfig))
        config_path_ = (folder / kConfig).string();
}

void WeightFiles::open_shards(const std::string& index_path) {
    const std::map<std::string, std::string> placed = read_index(index_path);
    const fs::path folder = fs::path(index_path).parent_path();
    std::set<std::string> names;
    for (const auto& [tensor, file] : placed) names.insert(file);
    for (const std::string& name : names)
        if (!is_there(folder / name)) fail(index_path, strprintf("names %s, which does not exist", name.c_str()));
    for (const std::string& name : names) add_file((folder / name).string());
    for (const auto& [tensor, file] : placed)
        if (!contains(tensor) || file_with(tensor).path() != (folder / file).string())
            fail(index_path,
                 strprintf("says that tensor %s is in %s, which does not hold it", tensor.c_str(), file.c_str()));
}

void WeightFiles::add_file(const std::string& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const TensorInfo& tensor : files_.back()->tensors()) {
        const auto [found, added] = tensors_.emplace(tensor.name, files_.back().get());
        if (!added)
            fail(path,
                 strprintf("holds tensor %s, which %s holds too", tensor.name.c_str(), found->second->path().c_str()));
    }
}

const SafetensorsFile& WeightFiles::file_with(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) fail(path_, strprintf("has no tensor %s", name.c_str()));
    return *found->second;
}

}  // namespace llmc
