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

TEST_CASE("hf: other architectures are exported and imported without changing a bit") {
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
            export_hf_directory(folder / "", config, {StateFormat::fp32, -1, shard_bytes}, fetch);
            CHECK(std::filesystem::exists(folder / "model.safetensors") == (shard_bytes == kHfShardBytes));
            const WeightFiles files(folder / "");
            for (const HfTensor& tensor : hf_tensors(config)) {
                CAPTURE(tensor.spec.name);
                CHECK(files.read_floats(tensor.spec.name) == modern_values(tensor));
            }
            const HfWeights back(folder / "");
            ModelConfig described = back.model;
            described.name = config.name;
            CHECK(described == config);
            CHECK(differences(described, config) == "");
            for (const auto& [tensor, values] : weights) CHECK(back.fetch(tensor) == values);
        }
}

// With several ranks all fetch together, so the other ranks follow the table.
TEST_CASE("hf: an export to one file fetches every tensor once, in the table's order") {
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

TEST_CASE("hf: weights of another architecture or other settings are refused") {
    const ModelConfig config = modern_config("llama");
    const auto weights = modern_weights(config);
    const TemporaryDirectory folder;
    export_hf_directory(folder / "", config, {StateFormat::bf16},
                        [&](const std::string& tensor, std::vector<float>& out) { out = weights.at(tensor); });
    const auto refusal = [&](auto change) {
        ModelConfig other = config;
        change(other);
        return checkpoint_error([&] { open_weights(folder / "", other); });
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

TEST_CASE("hf: a tensor without a place in the model, or one that is missing, is refused by name") {
    const auto refusal = [](const char* model, const std::string& extra, const ModelConfig* read_as = nullptr) {
        const ModelConfig config = modern_config(model);
        const auto weights = modern_weights(config);
        const TemporaryDirectory folder;
        export_hf_directory(folder / "", config, {StateFormat::fp32},
                            [&](const std::string& tensor, std::vector<float>& out) { out = weights.at(tensor); });
        nlohmann::json index;
        for (const HfTensor& tensor : hf_tensors(config)) index["weight_map"][tensor.spec.name] = "rest.safetensors";
        index["weight_map"][extra] = "extra.safetensors";
        std::filesystem::rename(folder / "model.safetensors", folder / "rest.safetensors");
        make_file(folder / "model.safetensors.index.json", json_text(index));
        SafetensorsWriter writer(folder / "extra.safetensors", {{extra, "F32", {1}}}, {});
        writer.write(extra, "abcd", 4);
        writer.finish();
        if (read_as) std::filesystem::remove(folder / "config.json");
        return checkpoint_error([&] { HfWeights(folder / "", read_as); });
    };
    const struct {
        const char *model, *extra;
    } cases[] = {{"llama", "model.layers.0.self_attn.q_proj.bias"},
                 {"llama", "model.layers.0.mlp.gate_proj.weight_scale"},
                 {"llama", "model.layers.2.input_layernorm.weight"},
                 {"llama", "score.weight"},
                 {"mistral", "model.layers.1.block_sparse_moe.gate.weight"},
                 {"qwen2", "model.layers.1.self_attn.o_proj.bias"},
                 {"qwen2", "model.layers.1.self_attn.q_norm.weight"},
                 {"qwen3", "model.layers.0.self_attn.v_proj.bias"},
                 {"nano", "model.norm.weight"}};
    for (const auto& [model, extra] : cases)
        CHECK(contains(refusal(model, extra), std::string("tensor ") + extra + " (1) has no place in this model"));
    CHECK(refusal("llama", "model.layers.0.self_attn.rotary_emb.inv_freq") == "");
    ModelConfig biased = modern_config("llama");
    biased.architecture = &kQwen2;
    CHECK(contains(refusal("llama", "lm_head.bias", &biased),
                   "has no tensor model.layers.0.self_attn.q_proj.bias (128)"));
}

TEST_CASE("hf: models differ if only one has windows or a cap, but not in how windows are written") {
    const auto said = [](const ModelConfig& there, const ModelConfig& here) {
        const TemporaryDirectory folder;
        const auto weights = modern_weights(there);
        export_hf_directory(folder / "", there, {StateFormat::fp32},
                            [&](const std::string& tensor, std::vector<float>& out) { out = weights.at(tensor); });
        return checkpoint_error([&] { open_weights(folder / "", here); });
    };
    const ModelConfig whole = modern_config("qwen3");
    ModelConfig windows = whole;
    windows.window = 8, windows.window_layers = "SL";
    CHECK(contains(said(windows, whole), "window is 8, this model has null; window_layers is \"SL\""));
    CHECK(contains(said(whole, windows), "window is null, this model has 8"));
    ModelConfig spelled_out = windows;
    spelled_out.window_layers = "SLSLSL";  // config.json has a letter for each of the two layers
    CHECK(said(windows, windows) == "");
    CHECK(said(windows, spelled_out) == "");
    windows.window_layers = "L";
    CHECK(said(whole, windows) == "");

    const ModelConfig capped = modern_config("nano");
    ModelConfig open = capped;
    open.logit_cap = 0;
    CHECK(contains(said(open, capped), "logit_cap is null, this model has 15.0"));
    CHECK(contains(said(capped, open), "logit_cap is 15.0, this model has null"));
    CHECK(said(open, open) == "");
}
