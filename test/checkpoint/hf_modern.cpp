// Architectures other than GPT-2 in Hugging Face's format: an export holds every value under their names, and an import
// returns it unchanged, with one file or several.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/checkpoint/hf_weights.h"
#include "test/helpers.h"
#include "test/model/modern_fixture.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("hf: other architectures come back from an export, bit by bit") {
    for (const char* name : kModernModels)
        for (const uint64_t shard_bytes : {kHfShardBytes, uint64_t{50000}}) {
            CAPTURE(name);
            const ModelConfig config = modern_config(name);
            const auto weights = modern_weights(config);
            const TemporaryDirectory folder;
            const FetchTensor fetch = [&](const std::string& tensor, std::vector<float>& out) {
                out = weights.at(tensor);
                if (tensor == "wte") out.resize(out.size() + static_cast<size_t>(config.channels), 0.0f);  // padding
            };
            export_hf_directory(folder / "", config, {HfType::fp32, -1, shard_bytes}, fetch);
            CHECK(std::filesystem::exists(folder / "model.safetensors") == (shard_bytes == kHfShardBytes));
            const WeightFiles files(folder / "");
            for (const HfTensor& tensor : hf_tensors(config)) {
                CAPTURE(tensor.spec.name);
                CHECK(files.read_floats(tensor.spec.name) == modern_values(tensor));
            }
            const HfWeights back(folder / "");
            ModelConfig described = back.model();
            described.name = config.name;
            CHECK(described == config);
            CHECK(differences(described, config, {"", "", "", "", ""}) == "");
            for (const auto& [tensor, values] : weights) CHECK(back.fetch(tensor) == values);
        }
}

// With several ranks all fetch together, so the other ranks follow the table.
TEST_CASE("hf: a file of one piece takes every tensor once, in the table's order") {
    for (const char* name : kModernModels) {
        const ModelConfig config = modern_config(name);
        const auto weights = modern_weights(config);
        const TemporaryDirectory folder;
        std::vector<std::string> fetched, wanted;
        for (const TensorRow& row : all_tensors(config)) wanted.push_back(row.name);
        export_hf(folder / "model.safetensors", config, -1, [&](const std::string& tensor, std::vector<float>& out) {
            fetched.push_back(tensor);
            out = weights.at(tensor);
        });
        CHECK(fetched == wanted);
    }
}

TEST_CASE("hf: weights refuse another architecture, or other settings of theirs") {
    const ModelConfig config = modern_config("llama");
    const auto weights = modern_weights(config);
    const TemporaryDirectory folder;
    export_hf_directory(folder / "", config, {HfType::bf16},
                        [&](const std::string& tensor, std::vector<float>& out) { out = weights.at(tensor); });
    const auto refusal = [&](auto change) {
        ModelConfig other = config;
        change(other);
        return checkpoint_error([&] { HfWeights(folder / "", other); });
    };
    CHECK(contains(refusal([](ModelConfig& m) { m.architecture = &kGpt2; }),
                   "the architecture is llama, this model has"));
    CHECK(
        contains(refusal([](ModelConfig& m) { m.rope.theta = 10000; }), "rope_theta is 500.0, this model has 10000.0"));
    CHECK(contains(refusal([](ModelConfig& m) { m.norm_eps = 1e-6; }), "norm_eps"));
    CHECK(contains(refusal([](ModelConfig& m) { m.tied = true; }), "tied is false, this model has true"));
    CHECK(contains(refusal([](ModelConfig& m) { m.kv_heads = 1; }), "kv_heads is 2, this model has 1"));
    CHECK(refusal([](ModelConfig&) {}) == "");
}
