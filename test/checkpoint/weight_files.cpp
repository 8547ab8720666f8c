// The files of a model: one file, a directory with one file, a directory with shards and their index, and their
// defects.
#include "llmc/checkpoint/hf_weights.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const char* const kIndex = "model.safetensors.index.json";

// A file of one-element tensors.
void write_file(const std::string& path, const std::map<std::string, float>& tensors) {
    std::vector<TensorSpec> specs;
    for (const auto& [name, value] : tensors) specs.push_back({name, "F32", {1}});
    SafetensorsWriter writer(path, specs, {});
    for (const auto& [name, value] : tensors) writer.write(name, &value, sizeof value);
    writer.finish();
}

void write_index(const TemporaryDirectory& folder, const std::string& weight_map) {
    make_file(folder / kIndex, R"({"metadata": {"total_size": 12}, "weight_map": )" + weight_map + "}");
}

std::string refusal(const TemporaryDirectory& folder) {
    return checkpoint_error([&] { const WeightFiles files(folder / ""); });
}

}  // namespace

TEST_CASE("weight_files: a file, and a directory that holds model.safetensors") {
    TemporaryDirectory folder;
    write_file(folder / "x.safetensors", {{"a", 1.0f}});
    write_file(folder / "model.safetensors", {{"a", 2.0f}});
    CHECK(WeightFiles(folder / "x.safetensors").read_floats("a") == std::vector<float>{1.0f});
    CHECK(WeightFiles(folder / "").read_floats("a") == std::vector<float>{2.0f});
    CHECK(WeightFiles(folder / "").config_path().empty());
    CHECK(contains(checkpoint_error([&] { WeightFiles(folder / "").info("b"); }), "has no tensor b"));
    CHECK(contains(checkpoint_error([&] { const WeightFiles files(folder / "none"); }), "none: No such file"));

    make_file(folder / "config.json", "{}");
    CHECK(WeightFiles(folder / "").config_path() == folder / "config.json");
    CHECK(WeightFiles(folder / "model.safetensors").config_path() == folder / "config.json");
    CHECK(WeightFiles(folder / "x.safetensors").config_path().empty());  // that file may describe another model
}

TEST_CASE("weight_files: shards and their index") {
    TemporaryDirectory folder;
    write_file(folder / "model-00001-of-00002.safetensors", {{"a", 1.0f}, {"c", 3.0f}});
    write_file(folder / "model-00002-of-00002.safetensors", {{"b", 2.0f}});
    write_index(folder, R"({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
                            "c": "model-00001-of-00002.safetensors"})");
    const WeightFiles files(folder / "");
    CHECK(files.tensors().size() == 3);
    CHECK(files.read_floats("a") == std::vector<float>{1.0f});
    CHECK(files.read_floats("b") == std::vector<float>{2.0f});
    CHECK(files.read_floats("c") == std::vector<float>{3.0f});
    CHECK(files.file_with("b").path() == folder / "model-00002-of-00002.safetensors");

    std::filesystem::remove(folder / "model-00002-of-00002.safetensors");
    CHECK(refusal(folder) == (folder / kIndex) + ": names model-00002-of-00002.safetensors, which does not exist");
}

TEST_CASE("weight_files: an index that does not fit is refused") {
    TemporaryDirectory folder;
    CHECK(contains(refusal(folder), "holds neither model.safetensors nor model.safetensors.index.json"));
    CHECK(!contains(refusal(folder), "pytorch_model.bin"));
    make_file(folder / "pytorch_model.bin", "x");
    CHECK(contains(refusal(folder), "pytorch_model.bin is not read: save the model again"));

    write_file(folder / "1.safetensors", {{"a", 1.0f}});
    write_file(folder / "2.safetensors", {{"b", 2.0f}});
    write_index(folder, R"({"a": "1.safetensors", "b": "1.safetensors"})");
    CHECK(contains(refusal(folder), "says that tensor b is in 1.safetensors, which does not hold it"));
    write_index(folder, R"({"a": "2.safetensors", "b": "1.safetensors"})");
    CHECK(contains(refusal(folder), "says that tensor a is in 2.safetensors, which does not hold it"));
    for (const char* elsewhere : {R"("../1.safetensors")", R"("sub/1.safetensors")", R"("")", R"("..")", "7"}) {
        write_index(folder, fmt::format(R"({{"a": {}}})", elsewhere));
        CHECK(contains(refusal(folder), "tensor a is in " + std::string(elsewhere) + ", which is not the name of a"));
    }
    write_file(folder / "2.safetensors", {{"a", 1.0f}, {"b", 2.0f}});
    write_index(folder, R"({"a": "1.safetensors", "b": "2.safetensors"})");
    CHECK(contains(refusal(folder), "holds tensor a, which"));
    for (const char* no_index : {"", "{", "[]", "{}", R"({"weight_map": []})"}) {
        make_file(folder / kIndex, no_index);
        CHECK(contains(refusal(folder), "is not an index of weights"));
    }
}
