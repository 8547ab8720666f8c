#include "llmc/model/gpt2_parameters.h"

#include <cmath>

namespace llmc {
namespace {

ParameterTensor matrix(const std::string& name, int rows, int columns) { return {name, {rows, columns}, true}; }
ParameterTensor vector(const std::string& name, int length) { return {name, {length}, false}; }

Unit block(int layer, int C) {
    const std::string h = "h." + std::to_string(layer) + ".";
    Unit unit;
    unit.name = "block " + std::to_string(layer);
    unit.tensors = {
        matrix(h + "qkv.weight", 3 * C, C), matrix(h + "attn_proj.weight", C, C),
        matrix(h + "fc.weight", 4 * C, C),  matrix(h + "fc_proj.weight", C, 4 * C),
        vector(h + "ln1.weight", C),        vector(h + "ln1.bias", C),
        vector(h + "qkv.bias", 3 * C),      vector(h + "attn_proj.bias", C),
        vector(h + "ln2.weight", C),        vector(h + "ln2.bias", C),
        vector(h + "fc.bias", 4 * C),       vector(h + "fc_proj.bias", C),
    };
    return unit;
}

bool ends_with(const std::string& text, const std::string& ending) {
    return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

// splitmix64: a bijective mix of 64 bits (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
uint64_t mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

uint64_t hash_name(const std::string& name) {
    uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
    for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return h;
}

// A standard normal number for counter `i` of the stream `key` (Box-Muller on two 32-bit halves).
float normal(uint64_t key, uint64_t i) {
    const uint64_t bits = mix(key ^ mix(i));
    const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
    const double angle = static_cast<double>(bits & 0xffffffffu) * (0x1p-32 * 6.283185307179586);
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
}

}  // namespace

std::vector<Unit> gpt2_units(const ModelConfig& config) {
    const int C = config.channels;
    std::vector<Unit> units;
    Unit embedding;
    embedding.name = "embedding";
    embedding.tensors = {matrix("wte", config.padded_vocab(), C), matrix("wpe", config.context, C)};
    units.push_back(embedding);
    for (int l = 0; l < config.layers; l++) units.push_back(block(l, C));
    Unit final;
    final.name = "final norm";
    final.tensors = {vector("lnf.weight", C), vector("lnf.bias", C)};
    units.push_back(final);
    return units;
}

std::vector<float> initial_values(const ModelConfig& config, const ParameterTensor& tensor, uint64_t seed) {
    std::vector<float> values(tensor.count(), 0.0f);
    if (tensor.shape.size() == 1) {
        if (ends_with(tensor.name, "ln1.weight") || ends_with(tensor.name, "ln2.weight") || tensor.name == "lnf.weight")
            std::fill(values.begin(), values.end(), 1.0f);
        return values;
    }
    const bool residual = ends_with(tensor.name, "_proj.weight");
    const float deviation = residual ? 0.02f / std::sqrt(2.0f * static_cast<float>(config.layers)) : 0.02f;
    const uint64_t key = mix(seed ^ hash_name(tensor.name));
    size_t used = values.size();
    if (tensor.name == "wte") used = static_cast<size_t>(config.vocab) * static_cast<size_t>(config.channels);
#pragma omp parallel for
    for (size_t i = 0; i < used; i++) values[i] = deviation * normal(key, i);
    return values;
}

}  // namespace llmc
