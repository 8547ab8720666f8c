// GPT-2 in Hugging Face's format: published names, shapes and transposition, both ways, and files that do not fit.
#include "llmc/checkpoint/hf_weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/model/model_file.h"
#include "test/fixture.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using NamedWeights = std::map<std::string, std::vector<float>>;
const ModelConfig kTiny = {.layers = 2, .heads = 2, .channels = 4, .vocab = 7, .context = 5};

// Every element has its own value, exact in BF16 and F16. wte has one padded row more than the vocabulary.
NamedWeights numbered_weights(const ModelConfig& config) {
    NamedWeights weights;
    const std::vector<HfTensor> tensors = hf_tensors(config);
    for (size_t i = 0; i < tensors.size(); ++i) {
        size_t count = 1;
        for (int64_t extent : tensors[i].spec.shape) count *= static_cast<size_t>(extent);
        if (tensors[i].row.name == "wte") count += static_cast<size_t>(config.channels);
        std::vector<float>& values = weights[tensors[i].row.name];
        for (size_t k = 0; k < count; ++k) {
            values.push_back(static_cast<float>(k) * (i % 2 ? 1.0f : -1.0f) *
                             std::ldexp(1.0f, static_cast<int>(i) - 16));
        }
    }
    return weights;
}

void export_weights(const std::string& path, const NamedWeights& weights, const ModelConfig& config = kTiny) {
    export_hf(path, config, -1, [&](const std::string& name, std::vector<float>& out) { out = weights.at(name); });
}

NamedWeights import_weights(const std::string& path, const ModelConfig& config = kTiny) {
    NamedWeights weights;
    import_weights(*open_weights(path, config), [&](const std::string& name, const std::vector<float>& values) {
        CHECK(weights.emplace(name, values).second);
    });
    return weights;
}

NamedWeights unpadded(NamedWeights weights) {
    weights["wte"].resize(kTiny.vocab * kTiny.channels);
    return weights;
}

// A tensor of a test file, as bytes.
struct Raw {
    TensorSpec spec;
    std::string bytes;
};

std::vector<Raw> load_raw(const std::string& path) {
    const SafetensorsFile file(path);
    std::vector<Raw> tensors;
    for (const TensorInfo& info : file.tensors()) {
        std::string bytes(info.bytes(), '\0');
        file.read(info.name, bytes.data(), bytes.size());
        tensors.push_back({{info.name, info.dtype, info.shape}, bytes});
    }
    return tensors;
}

void save_raw(const std::string& path, const std::vector<Raw>& tensors) {
    std::vector<TensorSpec> specs;
    for (const Raw& tensor : tensors) specs.push_back(tensor.spec);
    SafetensorsWriter writer(path, specs, {});
    for (const Raw& tensor : tensors) writer.write(tensor.spec.name, tensor.bytes.data(), tensor.bytes.size());
    writer.finish();
}

Raw& find_raw(std::vector<Raw>& tensors, const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const Raw& tensor) { return tensor.spec.name == name; });
}

}  // namespace

TEST_CASE("hf_weights: names and shapes are those of the published GPT-2") {
    const ModelConfig d12 = {.layers = 12, .heads = 12, .channels = 768, .vocab = 50257, .context = 1024};
    std::map<std::string, HfTensor> tensors;
    int64_t total = 0;
    for (const HfTensor& tensor : hf_tensors(d12)) {
        const TensorSpec& spec = tensor.spec;
        CHECK(spec.dtype == "F32");
        CHECK(tensor.transposed == (spec.name.find(".c_") != std::string::npos && spec.name.ends_with(".weight")));
        tensors.emplace(tensor.row.name, tensor);
        total += spec.shape[0] * (spec.shape.size() > 1 ? spec.shape[1] : 1);
    }
    CHECK(tensors.size() == 148);
    CHECK(total == 124439808);  // "124M"
    const struct {
        const char *ours, *theirs;
        std::vector<int64_t> shape;
    } published[] = {{"wte", "wte.weight", {50257, 768}},
                     {"wpe", "wpe.weight", {1024, 768}},
                     {"h.0.ln1.weight", "h.0.ln_1.weight", {768}},
                     {"h.11.ln1.bias", "h.11.ln_1.bias", {768}},
                     {"h.0.qkv.weight", "h.0.attn.c_attn.weight", {768, 2304}},
                     {"h.11.qkv.bias", "h.11.attn.c_attn.bias", {2304}},
                     {"h.0.attn_proj.weight", "h.0.attn.c_proj.weight", {768, 768}},
                     {"h.0.attn_proj.bias", "h.0.attn.c_proj.bias", {768}},
                     {"h.0.ln2.weight", "h.0.ln_2.weight", {768}},
                     {"h.0.fc.weight", "h.0.mlp.c_fc.weight", {768, 3072}},
                     {"h.11.fc.bias", "h.11.mlp.c_fc.bias", {3072}},
                     {"h.0.fc_proj.weight", "h.0.mlp.c_proj.weight", {3072, 768}},
                     {"h.0.fc_proj.bias", "h.0.mlp.c_proj.bias", {768}},
                     {"lnf.weight", "ln_f.weight", {768}},
                     {"lnf.bias", "ln_f.bias", {768}}};
    for (const auto& [ours, theirs, shape] : published) {
        CAPTURE(ours);
        CHECK(tensors.at(ours).spec.name == std::string("transformer.") + theirs);
        CHECK(tensors.at(ours).spec.shape == shape);
    }
}

TEST_CASE("hf_weights: export writes (in, out) matrices, no padded rows, and config.json") {
    TemporaryDirectory folder;
    const NamedWeights weights = numbered_weights(kTiny);
    export_weights(folder / "model.safetensors", weights);
    const SafetensorsFile file(folder / "model.safetensors");
    CHECK(file.metadata().at("format") == "pt");
    CHECK(file.tensors().size() == hf_tensors(kTiny).size());

    // Element (out, in) of ours is element (in, out) of theirs; C = 4, so 4C = 16.
    const std::vector<float>& ours = weights.at("h.1.fc_proj.weight");                             // (C, 4C)
    const std::vector<float> theirs = file.read_floats("transformer.h.1.mlp.c_proj.weight");       // (4C, C)
    const std::vector<float>& ours_qkv = weights.at("h.0.qkv.weight");                             // (3C, C)
    const std::vector<float> theirs_qkv = file.read_floats("transformer.h.0.attn.c_attn.weight");  // (C, 3C)
    for (int out = 0; out < 4; ++out) {
        for (int in = 0; in < 16; ++in) CHECK(theirs[in * 4 + out] == ours[out * 16 + in]);
    }
    for (int out = 0; out < 12; ++out) {
        for (int in = 0; in < 4; ++in) CHECK(theirs_qkv[in * 12 + out] == ours_qkv[out * 4 + in]);
    }
    const std::vector<float> wte = file.read_floats("transformer.wte.weight");
    CHECK(wte.size() == 28);
    CHECK(std::equal(wte.begin(), wte.end(), weights.at("wte").begin()));

    const nlohmann::json config = parse_json(read_file(folder / "config.json"));
    CHECK(config["model_type"] == "gpt2");
    CHECK(config["architectures"][0] == "GPT2LMHeadModel");
    CHECK(config["n_layer"] == 2);
    CHECK(config["n_head"] == 2);
    CHECK(config["n_embd"] == 4);
    CHECK(config["n_positions"] == 5);
    CHECK(config["vocab_size"] == 7);
    CHECK(config["activation_function"] == "gelu_new");
    CHECK(config["layer_norm_epsilon"] == 1e-5);
    CHECK(config["tie_word_embeddings"] == true);
    CHECK(config["eos_token_id"].is_null());  // 50256 is not a token of this vocabulary
    CHECK(!std::filesystem::exists(folder / "config.json.tmp"));
}

TEST_CASE("hf_weights: export then import gives the same weights") {
    TemporaryDirectory folder;
    const std::string path = folder / "model.safetensors";
    const NamedWeights weights = numbered_weights(kTiny);
    export_weights(path, weights);
    CHECK(import_weights(path) == unpadded(weights));

    // Wider than a transposition tile, not a multiple of it, and not square.
    const ModelConfig wide = {.layers = 1, .heads = 2, .channels = 38, .vocab = 3, .context = 2};
    NamedWeights wide_weights = numbered_weights(wide);
    export_weights(folder / "wide.safetensors", wide_weights, wide);
    wide_weights["wte"].resize(3 * 38);
    CHECK(import_weights(folder / "wide.safetensors", wide) == wide_weights);

    const Gpt2Fixture fixture;
    const ModelConfig config = {.layers = fixture.integer("layers"),
                                .heads = fixture.integer("heads"),
                                .channels = fixture.integer("channels"),
                                .vocab = fixture.integer("vocab"),
                                .context = fixture.integer("context")};
    NamedWeights reference;
    for (const HfTensor& tensor : hf_tensors(config)) reference[tensor.row.name] = fixture.weight(tensor.row.name);
    export_weights(folder / "fixture.safetensors", reference, config);
    CHECK(import_weights(folder / "fixture.safetensors", config) == reference);
}

TEST_CASE("hf_weights: import takes bare names, BF16 and F16, a tied head and mask buffers") {
    TemporaryDirectory folder;
    const std::string path = folder / "model.safetensors";
    const NamedWeights weights = numbered_weights(kTiny);
    export_weights(path, weights);
    std::vector<Raw> tensors = load_raw(path);
    Raw head = find_raw(tensors, "transformer.wte.weight");
    head.spec.name = "lm_head.weight";
    for (Raw& tensor : tensors) tensor.spec.name = tensor.spec.name.substr(std::string("transformer.").size());
    tensors.push_back(head);
    tensors.push_back({{"h.0.attn.bias", "BOOL", {1, 1, 5, 5}}, std::string(25, '\1')});
    tensors.push_back({{"h.0.attn.masked_bias", "F32", {}}, std::string(4, '\0')});
    save_raw(path, tensors);
    CHECK(import_weights(path) == unpadded(weights));

    for (Raw& tensor : tensors) {  // the upper half of an F32 is a BF16
        if (tensor.spec.dtype != "F32") continue;
        std::string upper;
        for (size_t i = 0; i < tensor.bytes.size(); i += 4) upper += tensor.bytes.substr(i + 2, 2);
        tensor.spec.dtype = "BF16";
        tensor.bytes = upper;
    }
    save_raw(path, tensors);
    CHECK(import_weights(path) == unpadded(weights));

    Raw& bias = find_raw(tensors, "ln_f.bias");
    bias.spec.dtype = "F16";
    bias.bytes = std::string("\x00\x3c\x00\xc0\x00\x00\x00\x38", 8);
    save_raw(path, tensors);
    CHECK(import_weights(path)["lnf.bias"] == std::vector<float>{1.0f, -2.0f, 0.0f, 0.5f});
}

TEST_CASE("hf_weights: a file that does not fit the model is refused before anything is stored") {
    TemporaryDirectory folder;
    const std::string path = folder / "model.safetensors";
    export_weights(path, numbered_weights(kTiny));
    std::filesystem::remove(folder / "config.json");  // otherwise it would be the first mismatch
    const std::vector<Raw> good = load_raw(path);
    const auto refusal = [&](const std::vector<Raw>& tensors, const ModelConfig& config = kTiny) {
        save_raw(path, tensors);
        int stored = 0;
        const std::string message = checkpoint_error([&] {
            import_weights(*open_weights(path, config),
                           [&](const std::string&, const std::vector<float>&) { ++stored; });
        });
        CHECK(stored == 0);
        return message;
    };

    std::vector<Raw> bad = good;
    std::erase_if(bad, [](const Raw& tensor) { return tensor.spec.name == "transformer.h.1.mlp.c_fc.bias"; });
    CHECK(contains(refusal(bad), "has no tensor transformer.h.1.mlp.c_fc.bias (16)"));

    bad = good;
    find_raw(bad, "transformer.h.1.attn.c_attn.weight").spec.shape = {12, 4};  // not transposed
    CHECK(contains(refusal(bad), "transformer.h.1.attn.c_attn.weight is (12, 4), this model needs (4, 12)"));

    bad = good;
    find_raw(bad, "transformer.ln_f.bias").spec.dtype = "I32";
    CHECK(contains(refusal(bad), "tensor transformer.ln_f.bias is I32"));

    bad = good;
    bad.push_back({{"lm_head.weight", "F32", {7, 4}}, std::string(7 * 4 * 4, '\0')});
    CHECK(contains(refusal(bad), "lm_head.weight differs from wte"));

    ModelConfig other = kTiny;
    other.vocab = 8;
    CHECK(contains(refusal(good, other), "transformer.wte.weight is (7, 4), this model needs (8, 4)"));
    other = kTiny;
    other.layers = 1;
    CHECK(contains(refusal(good, other), "transformer.h.1."));
    other.layers = 3;
    CHECK(contains(refusal(good, other), "has no tensor transformer.h.2.ln_1.weight (4)"));
    other = kTiny;
    other.heads = 3;
    CHECK(contains(refusal(good, other), "channels a multiple of heads"));
    CHECK(contains(checkpoint_error([&] { import_weights(folder / "none"); }), "No such file"));
}

TEST_CASE("hf_weights: import takes a directory, with shards too, names with and without the prefix") {
    TemporaryDirectory folder;
    const NamedWeights weights = numbered_weights(kTiny);
    export_weights(folder / "model.safetensors", weights);
    CHECK(import_weights(folder / "") == unpadded(weights));

    std::vector<Raw> shards[2];
    nlohmann::json index;
    for (Raw& tensor : load_raw(folder / "model.safetensors")) {
        const size_t shard = shards[0].size() > shards[1].size();
        if (shard == 1) tensor.spec.name = tensor.spec.name.substr(std::string("transformer.").size());
        index["weight_map"][tensor.spec.name] = fmt::format("model-{:05}-of-00002.safetensors", shard + 1);
        shards[shard].push_back(tensor);
    }
    std::filesystem::remove(folder / "model.safetensors");
    for (size_t i = 0; i < 2; ++i)
        save_raw(folder / (fmt::format("model-{:05}-of-00002.safetensors", i + 1)), shards[i]);
    make_file(folder / "model.safetensors.index.json", json_text(index));
    CHECK(import_weights(folder / "") == unpadded(weights));

    find_raw(shards[1], "h.1.mlp.c_fc.bias").spec.dtype = "I32";
    save_raw(folder / "model-00002-of-00002.safetensors", shards[1]);
    CHECK(contains(checkpoint_error([&] { import_weights(folder / ""); }),
                   "model-00002-of-00002.safetensors: tensor h.1.mlp.c_fc.bias is I32"));
}

TEST_CASE("hf_weights: a config.json of another model is refused, with every number that differs") {
    TemporaryDirectory folder;
    export_weights(folder / "model.safetensors", numbered_weights(kTiny));
    const auto refusal = [&](const ModelConfig& config, const char* path = "") {
        return checkpoint_error([&] { import_weights(folder / path, config); });
    };
    // The tensors have the same shapes with one head.
    const ModelConfig other_heads = {.layers = 2, .heads = 1, .channels = 4, .vocab = 7, .context = 5};
    CHECK(contains(refusal(other_heads),
                   "holds another model: heads is 2, this model has 1; choose the model that it holds: --layers 2 "
                   "--heads 2 --channels 4 --context 5 --vocab 7"));
    CHECK(contains(refusal(other_heads, "model.safetensors"), "heads is 2, this model has 1"));
    CHECK(contains(refusal({.layers = 3, .heads = 2, .channels = 8, .vocab = 9, .context = 6}),
                   "layers is 2, this model has 3; channels is 4, this model has 8; vocab is 7, this model has 9; "
                   "context is 5, this model has 6; choose"));

    nlohmann::json config = parse_json(read_file(folder / "config.json"));
    config["model_type"] = "gemma";
    make_file(folder / "config.json", json_text(config));
    CHECK(
        contains(refusal(kTiny), R"("model_type" is "gemma", which is not one of the supported architectures (gpt2,)"));
    make_file(folder / "config.json", "{");
    CHECK(contains(refusal(kTiny), "config.json is not JSON: parse error at line 1"));
    make_file(folder / "config.json", "[]");
    CHECK(contains(refusal(kTiny), "config.json is not a JSON object"));
    std::filesystem::remove(folder / "config.json");
    CHECK(refusal(other_heads) == "");
}

TEST_CASE("hf_weights: a value that is not finite is refused, with its place in the file") {
    TemporaryDirectory folder;
    NamedWeights weights = numbered_weights(kTiny);
    weights["h.1.fc.weight"][3 * 4 + 2] = NAN;  // (out 3, in 2) of ours
    export_weights(folder / "model.safetensors", weights);
    CHECK(contains(checkpoint_error([&] { import_weights(folder / ""); }),
                   "model.safetensors: transformer.h.1.mlp.c_fc.weight has NaN at row 2, column 3"));
    weights = numbered_weights(kTiny);
    weights["lnf.bias"][1] = std::numeric_limits<float>::infinity();
    export_weights(folder / "model.safetensors", weights);
    CHECK(
        contains(checkpoint_error([&] { import_weights(folder / ""); }), "transformer.ln_f.bias has Inf at element 1"));
}

TEST_CASE("hf_weights: a directory describes its own model") {
    TemporaryDirectory folder;
    const std::string path = folder / "model.safetensors";
    export_weights(path, numbered_weights(kTiny));
    CHECK(differences(open_weights(folder / "")->model, kTiny) == "");
    CHECK(open_weights(path)->fetch("h.1.qkv.weight") == numbered_weights(kTiny)["h.1.qkv.weight"]);

    nlohmann::json config = parse_json(read_file(folder / "config.json"));
    config.erase("vocab_size");
    config.erase("n_positions");
    config.erase("n_ctx");
    make_file(folder / "config.json", json_text(config));
    CHECK(HfWeights(path).model.vocab == 7);
    CHECK(HfWeights(path).model.context == 5);
    std::filesystem::remove(folder / "config.json");
    CHECK(contains(checkpoint_error([&] { open_weights(path); }), "there is no config.json next to the weights"));
}

TEST_CASE("hf_weights: an export that fails leaves nothing behind") {
    TemporaryDirectory folder;
    const std::string path = folder / "model.safetensors";
    NamedWeights weights = numbered_weights(kTiny);
    weights["h.1.fc.bias"].pop_back();
    CHECK(contains(checkpoint_error([&] { export_weights(path, weights); }),
                   "h.1.fc.bias has 15 elements, 16 are needed"));
    weights = numbered_weights(kTiny);
    weights["lnf.weight"].resize(8);  // only wte may be padded
    CHECK(
        contains(checkpoint_error([&] { export_weights(path, weights); }), "lnf.weight has 8 elements, 4 are needed"));
    weights = numbered_weights(kTiny);
    weights["wte"].resize(24);  // fewer rows than the vocabulary
    CHECK(contains(checkpoint_error([&] { export_weights(path, weights); }), "wte has 24 elements, 28 are needed"));
    CHECK(std::filesystem::is_empty(folder / ""));

    std::filesystem::create_directory(folder / "config.json");
    CHECK(contains(checkpoint_error([&] { export_weights(path, numbered_weights(kTiny)); }),
                   "config.json: cannot rename the finished file to it"));
    CHECK(!std::filesystem::exists(folder / "config.json.tmp"));
}
