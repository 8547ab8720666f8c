// Hugging Face directories in FP32, BF16 and FP8, with one file and with several. hf_weights.cpp tests their common
// parts.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/checkpoint/hf_weights.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using NamedWeights = std::map<std::string, std::vector<float>>;
const ModelConfig kSmall = {.layers = 2, .heads = 1, .channels = 32, .vocab = 50, .context = 6};
const ModelConfig kSmallQwen = [] {
    ModelConfig model = kSmall;
    model.architecture = &kQwen2;
    model.hidden = 64;
    return model;
}();
constexpr int64_t kCodesOfQwen = 2 * 32 * (3 * 32 + 32 + 2 * 64 + 64);

// Weights of all magnitudes: each tensor has its own range, with values down to 2^-20 of its largest.
NamedWeights weights_of(const ModelConfig& model) {
    NamedWeights weights;
    uint32_t state = 1;
    const auto random = [&] { return static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f; };
    int tensor = 0;
    for (const TensorRow& row : all_tensors(model)) {
        std::vector<float>& values = weights[row.name];
        const float range = std::ldexp(1.0f, tensor++ % 12 - 8);
        for (int64_t i = 0; i < row.count(); i++)
            values.push_back((random() - 0.5f) * range * std::exp2(-20.0f * random() * random()));
    }
    return weights;
}

void export_as(const std::string& folder, StateFormat type, const NamedWeights& weights,
               uint64_t shard_bytes = kHfShardBytes, const ModelConfig& model = kSmall) {
    export_hf_directory(folder, model, {type, -1, shard_bytes},
                        [&](const std::string& name, std::vector<float>& out) { out = weights.at(name); });
}

NamedWeights import_from(const std::string& path) {
    NamedWeights weights;
    import_weights(*open_weights(path),
                   [&](const std::string& name, const std::vector<float>& values) { weights[name] = values; });
    return weights;
}

// Decodes by the format's definition: a sign, 4 bits of exponent (bias 7), 3 bits of fraction.
double value_of_e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}

// Half a unit in the last place of the format's numbers near `value`.
double half_ulp(double value, int fraction_bits, int smallest_exponent) {
    const int exponent = value == 0 ? smallest_exponent : std::max(std::ilogb(value), smallest_exponent);
    return std::ldexp(0.5, exponent - fraction_bits);
}

nlohmann::json config_in(const std::string& folder) { return parse_json(read_file(folder + "/config.json")); }

}  // namespace

TEST_CASE("hf_export: FP32 is exact, BF16 within half a unit, and both are read back") {
    TemporaryDirectory folder;
    const NamedWeights weights = weights_of(kSmall);
    export_as(folder / "", StateFormat::fp32, weights);
    CHECK(import_from(folder / "") == weights);
    CHECK(config_in(folder / "")["torch_dtype"] == "float32");

    export_as(folder / "", StateFormat::bf16, weights);
    const NamedWeights rounded = import_from(folder / "");
    CHECK(config_in(folder / "")["torch_dtype"] == "bfloat16");
    CHECK(rounded != weights);
    for (const auto& [name, values] : weights)
        for (size_t i = 0; i < values.size(); i++)
            REQUIRE(std::fabs(double{rounded.at(name)[i]} - values[i]) <= half_ulp(values[i], 7, -126));
    const SafetensorsFile file(folder / "model.safetensors");
    for (const TensorInfo& tensor : file.tensors()) CHECK(tensor.dtype == "BF16");
}

TEST_CASE("hf_export: FP8 codes times their scale are the values to half a unit of E4M3, and are read back") {
    TemporaryDirectory folder;
    NamedWeights weights = weights_of(kSmallQwen);
    weights["h.0.fc.weight"].assign(weights["h.0.fc.weight"].size(), 0.0f);
    weights["h.1.fc.weight"].assign(weights["h.1.fc.weight"].size(), 3 * std::numeric_limits<float>::denorm_min());
    weights["h.1.qkv.weight"][5] = -3e38f;
    export_as(folder / "", StateFormat::fp8, weights, kHfShardBytes, kSmallQwen);
    const NamedWeights back = import_from(folder / "");
    const SafetensorsFile file(folder / "model.safetensors");
    CHECK(file.metadata().at("format") == "pt");
    CHECK(contains(file.metadata().at("fp8"), "weight (F8_E4M3) * weight_scale (F32"));
    const nlohmann::json quantization = config_in(folder / "")["quantization_config"];
    CHECK(quantization["quant_method"] == "compressed-tensors");
    CHECK(quantization["config_groups"]["group_0"]["targets"] == nlohmann::json{"Linear"});

    size_t codes_seen = 0;
    for (const HfTensor& tensor : hf_tensors(kSmallQwen)) {
        const std::string& name = tensor.spec.name;
        CAPTURE(name);
        const TensorInfo& info = file.info(name);
        CHECK(info.shape == tensor.spec.shape);
        const bool is_linear = name.ends_with("_proj.weight");
        CHECK(info.dtype == (is_linear ? "F8_E4M3" : "BF16"));
        CHECK(file.contains(name + "_scale") == is_linear);
        if (!is_linear) continue;
        const float scale = file.read_floats(name + "_scale").at(0);
        CHECK(file.info(name + "_scale").shape == std::vector<int64_t>{1});
        std::vector<uint8_t> codes(info.bytes());
        file.read(name, codes.data(), codes.size());
        const std::vector<float> wanted = tensor.to_file(weights.at(tensor.row.name));
        const std::vector<float> read = tensor.to_file(back.at(tensor.row.name));
        double largest = 0;
        for (size_t i = 0; i < codes.size(); i++) {
            const double got = value_of_e4m3(codes[i]), scaled = wanted[i] / double{scale};
            // The division was rounded to FP32 before the cast to a code.
            REQUIRE(std::fabs(got - scaled) <= half_ulp(scaled, 3, -6) + std::fabs(scaled) * 0x1p-23);
            REQUIRE(read[i] == static_cast<float>(got) * scale);
            largest = std::max(largest, std::fabs(got));
        }
        CHECK(largest == (tensor.row.name == "h.0.fc.weight" || tensor.row.name == "h.1.fc.weight" ? 0 : 448));
        codes_seen += codes.size();
    }
    CHECK(codes_seen == kCodesOfQwen);

    weights["h.0.fc.weight"][7] = NAN;
    CHECK(contains(
        checkpoint_error([&] { export_as(folder / "", StateFormat::fp8, weights, kHfShardBytes, kSmallQwen); }),
        "gate_proj.weight has NaN"));
}

TEST_CASE("hf_export: a model larger than the limit of a file is split into several, with an index") {
    TemporaryDirectory folder;
    const NamedWeights weights = weights_of(kSmall);
    export_as(folder / "", StateFormat::fp32, weights, 20'000);
    CHECK(!std::filesystem::exists(folder / "model.safetensors"));
    const nlohmann::json index = parse_json(read_file(folder / "model.safetensors.index.json"));
    CHECK(index["metadata"]["total_size"] == 4 * kSmall.parameters());
    CHECK(index["weight_map"].size() == hf_tensors(kSmall).size());
    size_t shards = 0, tensors = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
        if (entry.path().extension() != ".safetensors") continue;
        const SafetensorsFile file(entry.path().string());
        uint64_t bytes = 0;
        for (const TensorInfo& tensor : file.tensors()) {
            CHECK(index["weight_map"][tensor.name] == entry.path().filename().string());
            bytes += tensor.bytes();
        }
        CHECK(bytes <= 20'000);
        shards++, tensors += file.tensors().size();
    }
    // Up to h.0.qkv.weight there are 19,712 bytes, with its bias 20,096. Then h.0.fc, h.0.fc_proj, h.1.qkv and so on
    // begin a file each.
    CHECK(shards == 7);
    CHECK(std::filesystem::exists(folder / "model-00001-of-00007.safetensors"));
    CHECK(tensors == hf_tensors(kSmall).size());
    CHECK(import_from(folder / "") == weights);

    TemporaryDirectory other;
    export_as(other / "", StateFormat::fp8, weights_of(kSmallQwen), 9'000, kSmallQwen);
    const nlohmann::json fp8 = parse_json(read_file(other / "model.safetensors.index.json"));
    const std::string name = "model.layers.1.mlp.up_proj.weight";
    CHECK(fp8["weight_map"][name] == fp8["weight_map"][name + "_scale"]);
    CHECK(fp8["metadata"]["total_size"] == 2 * kSmallQwen.parameters() - kCodesOfQwen + 14 * 4);
    const NamedWeights back = import_from(other / "");
    CHECK(back.size() == all_tensors(kSmallQwen).size());
}
