// Reads and writes llm.c's model files (llmc_model.h).
#include "llmc/checkpoint/llmc_model.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "llmc/data/shards.h"

namespace llmc {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are little-endian and read without swapping");

constexpr int kHeaderInts = 256;
constexpr int64_t kHeaderBytes = kHeaderInts * 4;
constexpr int32_t kVersionFp32 = 3, kVersionBf16 = 5;
constexpr InputKind kLlmcFile = {"weights", "a model file (.bin) of llm.c", ExitCode::checkpoint};

// One layer's tensor, at its place in the file.
struct Slice {
    TensorRow row;
    int64_t first, elements;  // in the file, with padded rows
};

// The file's order: that of the table, but with all layers of a kind one after the other.
std::vector<Slice> slices(const ModelConfig& model, int64_t padded_vocab) {
    const ModelTable table = model.table();
    std::vector<Slice> all;
    int64_t at = 0;
    const auto add = [&](const TensorRow& row) {
        const int64_t elements = row.name == "wte" ? padded_vocab * row.columns : row.count();
        all.push_back({row, at, elements});
        at += elements;
    };
    for (const TensorRow& row : table.embedding) add(row);
    for (TensorRow row : table.block) {
        const std::string name = row.name;
        for (row.block = 0; row.block < model.layers; row.block++) {
            row.name = block_prefix(row.block) + name;
            add(row);
        }
    }
    for (const TensorRow& row : table.final) add(row);
    return all;
}

}  // namespace

bool has_llmc_magic(const std::string& path) {
    int32_t number = 0;
    InputFile(path, kLlmcFile).read_at(0, &number, sizeof number);
    return number == kLlmcModelMagic;
}

// No safetensors file begins like this: its first 8 bytes are a length, and the second number here is never 0.
bool is_llmc_file(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return false;
    return std::filesystem::path(path).extension() == ".bin" || has_llmc_magic(path);
}

LlmcWeights::LlmcWeights(const std::string& path) : WeightSource(path), file_(path, kLlmcFile) {
    read_header();
    check_size();
}

void LlmcWeights::read_header() {
    int32_t header[kHeaderInts] = {};
    const size_t got = file_.read_at(0, header, sizeof header);
    if (got < sizeof header[0] || header[0] != kLlmcModelMagic)
        refuse_file(place, "is not an llm.c model file: its magic is {}{}, a model's is {}", header[0],
                    name_of_magic(header[0]), kLlmcModelMagic);
    if (got < sizeof header)
        refuse_file(place, "has {} bytes, fewer than the {} of a header: it is truncated", got, sizeof header);
    if (header[1] != kVersionFp32 && header[1] != kVersionBf16)
        refuse_file(place, "is of version {}; 3 (FP32) and 5 (BF16) can be read", header[1]);
    element_bytes_ = header[1] == kVersionFp32 ? sizeof(float) : sizeof(bf16);
    model.name = std::filesystem::path(place).stem().string();
    model.context = header[2];
    model.vocab = header[3];
    model.layers = header[4];
    model.heads = header[5];
    model.channels = header[6];
    padded_vocab_ = header[7];
    require_numbers(place, model);
    if (padded_vocab_ < model.vocab) refuse_file(place, "pads a vocabulary of {} to {}", model.vocab, padded_vocab_);
}

void LlmcWeights::check_size() {
    const Slice last = slices(model, padded_vocab_).back();
    const int64_t needed = kHeaderBytes + (last.first + last.elements) * static_cast<int64_t>(element_bytes_);
    const int64_t size = static_cast<int64_t>(file_.bytes());
    if (size == needed) return;
    refuse_file(place,
                "is {}: a model of {} layers, {} channels, a context of {} and a vocabulary of {} ({} "
                "padded) takes {} bytes, the file has {}",
                size < needed ? "truncated" : "too long", model.layers, model.channels, model.context, model.vocab,
                padded_vocab_, needed, size);
}

std::vector<float> LlmcWeights::fetch(const std::string& name) const {
    const std::vector<Slice> all = slices(model, padded_vocab_);
    const auto found = std::find_if(all.begin(), all.end(), [&](const Slice& slice) { return slice.row.name == name; });
    if (found == all.end()) refuse_file(place, "has no tensor {}", name);
    std::vector<float> values(static_cast<size_t>(found->row.count()));
    std::vector<bf16> halves(element_bytes_ == sizeof(bf16) ? values.size() : 0);
    void* const to = halves.empty() ? static_cast<void*>(values.data()) : static_cast<void*>(halves.data());
    const uint64_t offset = static_cast<uint64_t>(kHeaderBytes) + static_cast<uint64_t>(found->first) * element_bytes_;
    const size_t bytes = values.size() * element_bytes_;
    if (file_.read_at(offset, to, bytes) < bytes)
        refuse_file(place, "ended inside tensor {}: it was truncated while open", name);
    std::transform(halves.begin(), halves.end(), values.begin(), [](bf16 half) { return to_float(half); });
    std::vector<int64_t> shape = {found->row.rows};
    if (found->row.is_matrix()) shape.push_back(found->row.columns);
    require_finite(place, name, shape, values);
    return values;
}

void export_llmc(const std::string& path, const ModelConfig& model, StateFormat type, const FetchTensor& fetch) {
    const int32_t header[kHeaderInts] = {kLlmcModelMagic, type == StateFormat::fp32 ? kVersionFp32 : kVersionBf16,
                                         model.context,   model.vocab,
                                         model.layers,    model.heads,
                                         model.channels,  model.padded_vocab()};
    if (model.architecture != &kGpt2)
        refuse_file(path, "llm.c's model files hold GPT-2; this model is of the architecture {}",
                    model.architecture->name);
    AtomicFile file(system_calls(), path);
    file.append(header, sizeof header);
    std::vector<float> values;
    std::vector<bf16> halves;
    for (const Slice& slice : slices(model, model.padded_vocab())) {
        fetch_exactly(path, slice.row, fetch, values);
        values.resize(static_cast<size_t>(slice.elements), 0.0f);
        if (type == StateFormat::fp32) {
            file.append(values.data(), values.size() * sizeof(float));
            continue;
        }
        halves.resize(values.size());
        std::transform(values.begin(), values.end(), halves.begin(), [](float value) { return to_bf16(value); });
        file.append(halves.data(), halves.size() * sizeof(bf16));
    }
    file.finish();
}

}  // namespace llmc
