// The reference values of dev/reference/ for tests. Tests run from the repository root; LLMC_FIXTURES names another
// folder of fixtures.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "llmc/checkpoint/safetensors.h"

namespace llmc::test {

inline std::string fixture_path(const std::string& file_name) {
    const char* folder = std::getenv("LLMC_FIXTURES");
    return std::string(folder && *folder ? folder : "test/fixtures") + "/" + file_name;
}

// A small GPT-2 with weights, gradients, logits and the losses of ten training steps; see dev/reference/README.md.
class Gpt2Fixture {
public:
    Gpt2Fixture() : file(fixture_path("gpt2_small.safetensors")) {}

    // Metadata as numbers: layers, channels, heads, vocab, context, batch, seq, steps, seed; lr, beta1, beta2, eps,
    // weight_decay, clip, layernorm_eps.
    int integer(const std::string& key) const { return std::stoi(file.metadata().at(key)); }
    double number(const std::string& key) const { return std::stod(file.metadata().at(key)); }

    std::vector<float> weight(const std::string& name) const { return file.read_floats(name); }
    std::vector<float> gradient(const std::string& name) const { return file.read_floats("grad." + name); }
    std::vector<int32_t> tokens() const { return values<int32_t>("tokens"); }        // (steps, batch, seq + 1)
    std::vector<double> losses() const { return values<double>("losses"); }          // (steps)
    std::vector<double> grad_norms() const { return values<double>("grad_norms"); }  // (steps)

    SafetensorsFile file;

private:
    template <typename T>
    std::vector<T> values(const std::string& name) const {
        std::vector<T> result(file.info(name).bytes() / sizeof(T));
        file.read(name, result.data(), result.size() * sizeof(T));
        return result;
    }
};

}  // namespace llmc::test
