// The results of Hugging Face's classes for small models of architectures other than GPT-2
// (dev/reference/make_modern_fixture.py), and their weights.
#pragma once
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/checkpoint/hf_weights.h"
#include "llmc/model/model_file.h"
#include "test/fixture.h"
#include "test/helpers.h"
#include "test/model/gpt2_fixture.h"

namespace llmc::test {

inline const nlohmann::json& modern_fixture() {
    static const nlohmann::json file = [] { return parse_json(read_file(fixture_path("modern.json"))); }();
    return file;
}
constexpr const char* kModernModels[] = {"llama", "llama_tied", "mistral", "qwen2", "qwen3", "nano"};

inline ModelConfig modern_config(const std::string& name) {
    ModelConfig config = model_from_json(modern_fixture().at(name).at("config"), name);
    config.name = name;
    return config;
}

// pattern() of make_modern_fixture.py.
inline std::vector<double> pattern(const std::string& name, size_t count) {
    uint32_t seed = 0x811C9DC5u;
    for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x01000193u;
    std::vector<double> values(count);
    for (size_t i = 0; i < count; i++) {
        uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
        x = (x ^ (x >> 16)) * 0x45D9F3Bu;
        values[i] = (static_cast<double>((x ^ (x >> 16)) % 4096) - 2048) / 2048;
    }
    return values;
}

// The values of one of Hugging Face's tensors.
inline std::vector<float> modern_values(const HfTensor& tensor) {
    std::vector<float> values;
    for (const double x : pattern(tensor.spec.name, tensor.elements()))
        values.push_back(static_cast<float>(tensor.row.is_matrix() ? x / 8 : 1 + x / 4));
    return values;
}

// The weights by our names.
inline std::map<std::string, std::vector<float>> modern_weights(const ModelConfig& config) {
    std::map<std::string, std::vector<float>> weights;
    for (const HfTensor& tensor : hf_tensors(config)) {
        std::vector<float>& ours = weights[tensor.row.name];
        ours.resize(tensor.row.count());
        tensor.from_file(modern_values(tensor), ours);
    }
    return weights;
}

template <class Real>
std::unique_ptr<TestModel<Real>> loaded(const TrainerConfig& config) {
    auto test = std::make_unique<TestModel<Real>>(config);
    for (const auto& [name, values] : modern_weights(config.model)) test->trainer.set_weight(name, values);
    test->trainer.weights_are_set();
    return test;
}
template <class Real>
std::unique_ptr<TestModel<Real>> loaded(const ModelConfig& config, int B, int T, Recompute recompute) {
    return loaded<Real>(trainer_config(config, B, T, recompute));
}

// One sequence.
inline Batch modern_batch(const std::string& name) {
    const std::vector<int> tokens = modern_fixture().at(name).at("tokens");
    return {{tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}};
}

inline TrainerConfig modern_training(const std::string& name, const Fp8Config* fp8, Recompute recompute) {
    TrainerConfig config = trainer_config(modern_config(name), 4, 32, recompute, fp8);
    config.schedule = {ScheduleKind::constant, 3e-3, 0, 100, 0};
    config.clip = 1.0;
    return config;
}

}  // namespace llmc::test
