// The safetensors files of one model: a single file, or a Hugging Face directory. The directory has either
// model.safetensors or shards (model-00001-of-00002.safetensors, ...) with model.safetensors.index.json, which names
// the file of each tensor.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llmc/checkpoint/safetensors.h"

namespace llmc {

class WeightFiles {
public:
    // Opens all files, checks their headers, and checks shards against the index: every tensor must be in the file that
    // the index names, and none may appear twice.
    explicit WeightFiles(const std::string& file_or_directory);

    const std::string& path() const { return path_; }  // as given by the caller
    // The directory's config.json, or the one next to a file called model.safetensors; "" if there is none.
    const std::string& config_path() const { return config_path_; }

    const std::map<std::string, const SafetensorsFile*>& tensors() const { return tensors_; }  // by name
    bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
    // The file with this tensor. Throws if there is none.
    const SafetensorsFile& file_with(const std::string& name) const;
    const TensorInfo& info(const std::string& name) const { return file_with(name).info(name); }
    std::vector<float> read_floats(const std::string& name) const { return file_with(name).read_floats(name); }

private:
    void open_shards(const std::string& index_path);
    void add_file(const std::string& path);

    std::string path_, config_path_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, const SafetensorsFile*> tensors_;
};

}  // namespace llmc
