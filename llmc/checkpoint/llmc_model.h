// Reads and writes llm.c's model files (.bin), which are little-endian. A header of 256 int32 holds the magic 20240326,
// the version (3 for FP32, 5 for BF16), longest sequence, vocabulary, layers, heads, channels, padded vocabulary, and
// zeros. Then come GPT-2's 16 kinds of tensors in the order of the forward pass, each with the slices of all layers one
// after the other. Matrices are (out, in) row-major like ours. The padded rows of wte are written as 0 and ignored when
// read.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/files.h"
#include "llmc/checkpoint/weight_source.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// True if the file begins with the magic number of this format.
bool has_llmc_magic(const std::string& path);
// True if a path is for this format: the file begins with one of llm.c's magic numbers, or is called .bin.
bool is_llmc_file(const std::string& path);

class LlmcWeights : public WeightSource {
public:
    // Checks magic, version, numbers and the size of the file. Reads no tensor yet.
    explicit LlmcWeights(const std::string& path);
    std::vector<float> fetch(const std::string& name) const override;

private:
    void read_header();
    void check_size();

    InputFile file_;
    size_t element_bytes_ = 0;
    int64_t padded_vocab_ = 0;
};

// Writes `path` atomically: whole or not at all. `type` is fp32 or bf16.
void export_llmc(const std::string& path, const ModelConfig& model, StateFormat type, const FetchTensor& fetch);

}  // namespace llmc
