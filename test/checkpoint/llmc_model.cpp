// llm.c's model files: the place of each tensor, both ways, and refused files. test_run_export.py compares with its own
// writer.
#include "llmc/checkpoint/llmc_model.h"
#include "llmc/model/model_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "llmc/device/formats.cuh"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using NamedWeights = std::map<std::string, std::vector<float>>;
const ModelConfig kTinyGpt2 = {.layers = 2, .heads = 2, .channels = 4, .vocab = 7, .context = 5};

// llm.c's order of tensors; block tensors are stored for all layers together. Sizes are elements per layer.
struct Kind {
    const char* name;
    bool of_block;
    size_t elements;
};
const Kind kKinds[16] = {
    {"wte", false, 128 * 4},        {"wpe", false, 5 * 4},       {"ln1.weight", true, 4},
    {"ln1.bias", true, 4},          {"qkv.weight", true, 48},    {"qkv.bias", true, 12},
    {"attn_proj.weight", true, 16}, {"attn_proj.bias", true, 4}, {"ln2.weight", true, 4},
    {"ln2.bias", true, 4},          {"fc.weight", true, 64},     {"fc.bias", true, 16},
    {"fc_proj.weight", true, 64},   {"fc_proj.bias", true, 4},   {"lnf.weight", false, 4},
    {"lnf.bias", false, 4},
};
constexpr size_t kElements = 512 + 20 + 2 * 244 + 8;

// Every element of the file has its own number, exact in BF16 up to a power of two. Padded rows are 0.
std::vector<float> numbered_file() {
    std::vector<float> all(kElements);
    for (size_t i = 0; i < kElements; i++)
        all[i] = i >= 7 * 4 && i < 512 ? 0.0f : std::ldexp(static_cast<float>(i % 256 + 1), static_cast<int>(i / 256));
    return all;
}

NamedWeights split(const std::vector<float>& all) {
    NamedWeights weights;
    size_t at = 0;
    for (const Kind& kind : kKinds)
        for (int layer = 0; layer < (kind.of_block ? 2 : 1); layer++) {
            const std::string name = kind.of_block ? fmt::format("h.{}.{}", layer, kind.name) : kind.name;
            const size_t count = std::string(kind.name) == "wte" ? 7 * 4 : kind.elements;
            weights[name].assign(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at + count));
            at += kind.elements;
        }
    CHECK(at == all.size());
    return weights;
}

std::string file_of(int32_t version, const std::vector<float>& all) {
    std::string bytes(1024, '\0');
    const int32_t head[8] = {20240326, version, 5, 7, 2, 2, 4, 128};
    std::memcpy(bytes.data(), head, sizeof head);
    for (const float value : all) {
        const uint32_t bits = float_bits(value);
        for (int shift = version == 3 ? 0 : 16; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift);
    }
    return bytes;
}

NamedWeights import_file(const std::string& path, const ModelConfig& model = kTinyGpt2) {
    NamedWeights weights;
    import_weights(*open_weights(path, model), [&](const std::string& name, const std::vector<float>& values) {
        CHECK(weights.emplace(name, values).second);
    });
    return weights;
}

}  // namespace

TEST_CASE("llmc_model: every tensor is read from its place and written to it, in FP32 and BF16") {
    TemporaryDirectory folder;
    const std::vector<float> all = numbered_file();
    for (const int32_t version : {3, 5}) {
        CAPTURE(version);
        const std::string path = folder / "model.bin", bytes = file_of(version, all);
        make_file(path, bytes);
        CHECK(import_file(path) == split(all));
        const ModelConfig described = open_weights(path)->model;
        CHECK(differences(described, kTinyGpt2) == "");
        CHECK(described.name == "model");

        NamedWeights weights = split(all);
        weights["wte"].resize(128 * 4, 3.0f);  // any values in the rows after the vocabulary
        export_llmc(folder / "again.bin", kTinyGpt2, version == 3 ? StateFormat::fp32 : StateFormat::bf16,
                    [&](const std::string& name, std::vector<float>& out) { out = weights.at(name); });
        CHECK(read_file(folder / "again.bin") == bytes);
    }
}

TEST_CASE("llmc_model: BF16 is rounded to nearest even") {
    TemporaryDirectory folder;
    NamedWeights weights = split(numbered_file());
    weights["lnf.bias"] = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, -1.0f - 0x1p-8f - 0x1p-20f, 0x1p-140f};
    const std::string path = folder / "x.bin";
    export_llmc(path, kTinyGpt2, StateFormat::bf16,
                [&](const std::string& name, std::vector<float>& out) { out = weights.at(name); });
    CHECK(import_file(path)["lnf.bias"] == std::vector<float>{1.0f, 1.0f + 0x1p-6f, -1.0f - 0x1p-7f, 0.0f});
}

TEST_CASE("llmc_model: a file is llm.c's by its magic or its name") {
    TemporaryDirectory folder;
    const std::string bytes = file_of(3, numbered_file());
    for (const char* name : {"model.bin", "model", "model.safetensors"}) {
        make_file(folder / name, bytes);
        CHECK(is_llmc_file(folder / name));
        CHECK(import_file(folder / name) == split(numbered_file()));
    }
    make_file(folder / "other", "{}");
    CHECK(!is_llmc_file(folder / "other"));
    make_file(folder / "other.bin", "{}");
    CHECK(is_llmc_file(folder / "other.bin"));
    CHECK(!is_llmc_file(folder / ""));
    CHECK(!is_llmc_file(folder / "none.bin"));
}

TEST_CASE("llmc_model: files of another kind or another model are refused") {
    TemporaryDirectory folder;
    const std::string path = folder / "x.bin", good = file_of(3, numbered_file());
    const auto refusal = [&](const std::string& bytes, const ModelConfig& model = kTinyGpt2) {
        make_file(path, bytes);
        return checkpoint_error([&] { open_weights(path, model); });
    };
    const auto with = [&](size_t at, int32_t value) {
        std::string bytes = good;
        std::memcpy(bytes.data() + 4 * at, &value, 4);
        return bytes;
    };
    CHECK(refusal(good) == "");
    CHECK(contains(refusal(""), "is not an llm.c model file: its magic is 0, a model's is 20240326"));
    CHECK(contains(refusal(with(0, 20240520)), "its magic is 20240520 (a token shard: give it to --train)"));
    CHECK(contains(refusal(with(0, 20240527)), "20240527 (an llm.c training state)"));
    CHECK(contains(refusal("PK\3\4"), "pytorch_model.bin"));
    CHECK(contains(refusal(good.substr(0, 1000)), "1000 bytes, fewer than the 1024 of a header: it is truncated"));
    CHECK(contains(refusal(with(1, 1)), "is of version 1; 3 (FP32) and 5 (BF16)"));
    CHECK(contains(refusal(with(1, 4)), "is of version 4"));
    for (const size_t at : {2, 3, 4, 5, 6})
        for (const int32_t value : {0, -3}) CHECK(contains(refusal(with(at, value)), "is not a possible model"));
    const int32_t largest = std::numeric_limits<int32_t>::max();
    CHECK(contains(refusal(with(4, 1 << 30)), "layers and channels at most 131072"));
    CHECK(contains(refusal(with(2, largest)), "vocab and context at most 1073741824"));
    CHECK(contains(refusal(with(3, largest)), "vocab and context at most 1073741824"));
    CHECK(contains(refusal(with(5, 3)), "channels a multiple of heads"));
    CHECK(contains(refusal(with(7, 6)), "pads a vocabulary of 7 to 6"));
    CHECK(contains(refusal(with(7, 256)),
                   "is truncated: a model of 2 layers, 4 channels, a context of 5 and a "
                   "vocabulary of 7 (256 padded) takes 7184 bytes, the file has 5136"));
    CHECK(contains(refusal(with(7, largest)), "is truncated"));
    CHECK(contains(refusal(good.substr(0, good.size() - 1)), "is truncated"));
    CHECK(contains(refusal(good + '\0'), "is too long"));
    CHECK(contains(refusal(with(1, 5)), "is too long"));
    ModelConfig other = kTinyGpt2;
    other.heads = 1;
    CHECK(contains(refusal(good, other), "holds another model: heads is 2, this model has 1; choose the model that"));
}

TEST_CASE("llmc_model: a non-finite value is refused, except in padded rows, which are not read") {
    TemporaryDirectory folder;
    const std::string path = folder / "x.bin";
    const auto refusal = [&](int32_t version, size_t at) {
        std::vector<float> all = numbered_file();
        all[at] = NAN;
        make_file(path, file_of(version, all));
        return checkpoint_error([&] { import_file(path); });
    };
    for (const int32_t version : {3, 5}) {
        CHECK(contains(refusal(version, 7 * 4 - 1), "x.bin: wte has NaN at row 6, column 3"));
        CHECK(refusal(version, 7 * 4) == "");
        // wte, wpe, ln1 of two layers, h.0.qkv.weight; then row 5, column 2 of h.1's.
        CHECK(contains(refusal(version, 512 + 20 + 16 + 48 + 5 * 4 + 2), "h.1.qkv.weight has NaN at row 5, column 2"));
        CHECK(contains(refusal(version, kElements - 1), "lnf.bias has NaN at element 3"));
    }
}

TEST_CASE("llmc_model: an export that fails leaves nothing behind") {
    TemporaryDirectory folder;
    NamedWeights weights = split(numbered_file());
    weights["h.1.fc.bias"].pop_back();
    CHECK(contains(checkpoint_error([&] {
                       export_llmc(folder / "x.bin", kTinyGpt2, StateFormat::fp32,
                                   [&](const std::string& name, std::vector<float>& out) { out = weights.at(name); });
                   }),
                   "h.1.fc.bias has 15 elements, 16 are needed"));
    CHECK(std::filesystem::is_empty(folder / ""));
}
