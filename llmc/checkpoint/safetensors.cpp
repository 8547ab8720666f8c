// Reader and writer of safetensors files. The checks follow the format's reference implementation: a header of at most
// 100 MB, unique names, offsets inside the data, no overlaps, no gaps, and no bytes left over.
// build: fuzzed
#include "llmc/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "llmc/base/error.h"
#include "llmc/base/files.h"
#include "llmc/base/json.h"

namespace llmc {

static_assert(std::endian::native == std::endian::little, "tensors are read and written in the file's byte order");

namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
const char* const kMetadataKey = "__metadata__";
constexpr InputKind kSafetensorsFile = {"weights", "a .safetensors file, or a directory that holds some",
                                        ExitCode::checkpoint};

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
    throw Error(ExitCode::checkpoint, path + ": " + problem);
}

// Computes a tensor's bytes. Returns false if shape and type give no size that fits into 64 bits.
bool tensor_bytes(const std::vector<int64_t>& shape, size_t element_bytes, uint64_t* bytes) {
    *bytes = element_bytes;
    for (int64_t extent : shape) {
        if (extent < 0 || __builtin_mul_overflow(*bytes, static_cast<uint64_t>(extent), bytes)) return false;
    }
    return true;
}

uint64_t unsigned_field(const std::string& path, const std::string& name, const char* field, const Json& value) {
    if (!value.is_number_unsigned()) {
        fail(path, strprintf("tensor %s: %s holds %s, which is not a whole number >= 0", name.c_str(), field,
                             json_text(value).c_str()));
    }
    return value.get<uint64_t>();
}

TensorInfo parse_tensor(const std::string& path, const std::string& name, const Json& entry) {
    const bool complete = entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
                          entry.contains("shape") && entry["shape"].is_array() && entry.contains("data_offsets") &&
                          entry["data_offsets"].is_array() && entry["data_offsets"].size() == 2;
    if (!complete) {
        fail(path, strprintf("tensor %s lacks a proper dtype, shape or data_offsets in the header", name.c_str()));
    }
    TensorInfo tensor{name, entry["dtype"].get<std::string>(), {}, 0, 0};
    for (const Json& extent : entry["shape"]) {
        const uint64_t value = unsigned_field(path, name, "shape", extent);
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
            fail(path,
                 strprintf("tensor %s: shape holds %s, which is too large", name.c_str(), json_text(extent).c_str()));
        }
        tensor.shape.push_back(static_cast<int64_t>(value));
    }
    tensor.begin = unsigned_field(path, name, "data_offsets", entry["data_offsets"][0]);
    tensor.end = unsigned_field(path, name, "data_offsets", entry["data_offsets"][1]);
    return tensor;
}

// Checks that type, shape and offsets of a tensor agree and lie inside the data section.
void check_tensor(const std::string& path, const TensorInfo& tensor, uint64_t data_bytes) {
    const char* name = tensor.name.c_str();
    const size_t element_bytes = dtype_bytes(tensor.dtype);
    if (element_bytes == 0) fail(path, strprintf("tensor %s has the unknown dtype %s", name, tensor.dtype.c_str()));
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
        fail(path,
             strprintf("tensor %s claims bytes %llu to %llu of %llu bytes of data; the file is truncated or damaged",
                       name, static_cast<unsigned long long>(tensor.begin), static_cast<unsigned long long>(tensor.end),
                       static_cast<unsigned long long>(data_bytes)));
    }
    uint64_t needed = 0;
    const std::string shape = shape_text(tensor.shape);
    if (!tensor_bytes(tensor.shape, element_bytes, &needed)) {
        fail(path, strprintf("tensor %s has a shape beyond 64 bits: %s", name, shape.c_str()));
    }
    if (needed != tensor.bytes()) {
        fail(path, strprintf("tensor %s of shape %s and dtype %s needs %llu bytes, its offsets give %llu", name,
                             shape.c_str(), tensor.dtype.c_str(), static_cast<unsigned long long>(needed),
                             static_cast<unsigned long long>(tensor.bytes())));
    }
}

float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float float_from_f16(uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const uint32_t mantissa = bits & 1023u;
    const uint32_t sign = static_cast<uint32_t>(bits >> 15) << 31;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));  // infinities and NaNs
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return sign ? -magnitude : magnitude;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------------
// Types and shapes

size_t dtype_bytes(const std::string& dtype) {
    static const std::map<std::string, size_t> sizes = {
        {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
        {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8},
    };
    const auto found = sizes.find(dtype);
    return found == sizes.end() ? 0 : found->second;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + ")";
}

int64_t TensorInfo::elements() const { return static_cast<int64_t>(bytes() / dtype_bytes(dtype)); }

// ----------------------------------------------------------------------------------------------------------------
// Reading

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), file_(path, kSafetensorsFile) {
    parse_header(read_header());
    check_layout();
}

// Finds the start of the data and returns the JSON text before it.
std::string SafetensorsFile::read_header() {
    using ull = unsigned long long;
    const uint64_t file_bytes = file_.bytes();
    uint64_t length = 0;
    if (file_.read_at(0, &length, kLengthBytes) < kLengthBytes)
        fail(path_, strprintf("has %llu bytes, too few for a safetensors file", ull{file_bytes}));
    if (length > file_bytes - kLengthBytes || length > kMaxHeaderBytes) {
        fail(path_, strprintf("says its header has %llu bytes, the file has %llu (and the format allows %llu); it is "
                              "truncated or not a safetensors file",
                              ull{length}, ull{file_bytes}, ull{kMaxHeaderBytes}));
    }
    std::string header(length, '\0');
    if (file_.read_at(kLengthBytes, header.data(), length) < length) fail(path_, "was truncated while it was read");
    data_start_ = kLengthBytes + length;
    return header;
}

void SafetensorsFile::parse_header(const std::string& header) {
    Json root;
    try {
        root = parse_json<Json>(header);
    } catch (const JsonError& error) {
        fail(path_, strprintf("its header is not valid JSON (%s)", error.what()));
    }
    if (!root.is_object()) fail(path_, "its header is not a JSON object");
    for (const auto& [name, entry] : root.items()) {
        if (name != kMetadataKey) {
            tensors_.push_back(parse_tensor(path_, name, entry));
            continue;
        }
        if (!entry.is_object()) fail(path_, "__metadata__ is not a JSON object");
        for (const auto& [key, value] : entry.items()) {
            if (!value.is_string()) fail(path_, strprintf("__metadata__ %s is not a string", key.c_str()));
            metadata_[key] = value.get<std::string>();
        }
    }
}

// Checks that the tensors tile the data section: in file order, each begins where the previous one ends.
void SafetensorsFile::check_layout() {
    const uint64_t data_bytes = file_.bytes() - data_start_;
    for (const TensorInfo& tensor : tensors_) check_tensor(path_, tensor, data_bytes);
    std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    uint64_t expected = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
        const TensorInfo& tensor = tensors_[i];
        if (tensor.begin < expected) {
            fail(path_, strprintf("tensors %s and %s overlap", tensors_[i - 1].name.c_str(), tensor.name.c_str()));
        }
        if (tensor.begin > expected) {
            fail(path_, strprintf("%llu bytes before tensor %s belong to no tensor",
                                  static_cast<unsigned long long>(tensor.begin - expected), tensor.name.c_str()));
        }
        expected = tensor.end;
        index_[tensor.name] = i;
    }
    if (expected != data_bytes) {
        fail(path_, strprintf("%llu bytes at its end belong to no tensor",
                              static_cast<unsigned long long>(data_bytes - expected)));
    }
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
    const auto found = index_.find(name);
    if (found == index_.end()) fail(path_, strprintf("has no tensor %s", name.c_str()));
    return tensors_[found->second];
}

void SafetensorsFile::read(const std::string& name, void* dst, size_t bytes) const {
    const TensorInfo& tensor = info(name);
    if (bytes != tensor.bytes()) {
        fail(path_,
             strprintf("tensor %s %s %s has %llu bytes, %zu were asked for", name.c_str(), tensor.dtype.c_str(),
                       shape_text(tensor.shape).c_str(), static_cast<unsigned long long>(tensor.bytes()), bytes));
    }
    read_range(name, 0, dst, bytes);
}

void SafetensorsFile::read_range(const std::string& name, uint64_t offset, void* dst, size_t bytes) const {
    const TensorInfo& tensor = info(name);
    if (offset > tensor.bytes() || bytes > tensor.bytes() - offset) {
        fail(path_, strprintf("tensor %s has %llu bytes, %zu from byte %llu on were asked for", name.c_str(),
                              static_cast<unsigned long long>(tensor.bytes()), bytes,
                              static_cast<unsigned long long>(offset)));
    }
    if (file_.read_at(data_start_ + tensor.begin + offset, dst, bytes) < bytes)
        fail(path_, strprintf("ended inside tensor %s: it was truncated while open", name.c_str()));
}

std::vector<float> SafetensorsFile::read_floats(const std::string& name) const {
    const TensorInfo& tensor = info(name);
    const size_t count = static_cast<size_t>(tensor.elements());
    std::vector<float> values(count);
    if (tensor.dtype == "F32") {
        read(name, values.data(), count * sizeof(float));
    } else if (tensor.dtype == "F64") {
        std::vector<double> wide(count);
        read(name, wide.data(), count * sizeof(double));
        std::transform(wide.begin(), wide.end(), values.begin(), [](double v) { return static_cast<float>(v); });
    } else if (tensor.dtype == "BF16" || tensor.dtype == "F16") {
        std::vector<uint16_t> bits(count);
        read(name, bits.data(), count * sizeof(uint16_t));
        std::transform(bits.begin(), bits.end(), values.begin(),
                       tensor.dtype == "BF16" ? float_from_bf16 : float_from_f16);
    } else {
        fail(path_, strprintf("tensor %s has dtype %s; F32, BF16, F16 or F64 is needed here", name.c_str(),
                              tensor.dtype.c_str()));
    }
    return values;
}

// ----------------------------------------------------------------------------------------------------------------
// Writing

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
    const SafetensorsLayout layout = lay_out_safetensors(path, specs, metadata);
    for (const TensorInfo& tensor : layout.tensors) slots_[tensor.name] = {tensor.begin, tensor.end, false};
    file_.emplace(system_calls(), path);
    file_->append(layout.head.data(), layout.head.size());
    data_start_ = layout.head.size();
}

SafetensorsLayout lay_out_safetensors(const std::string& path, const std::vector<TensorSpec>& specs,
                                      const std::map<std::string, std::string>& metadata) {
    SafetensorsLayout layout;
    std::set<std::string> names = {kMetadataKey};
    for (const TensorSpec& spec : specs) {
        if (dtype_bytes(spec.dtype) == 0)
            fail(path, strprintf("cannot write tensor %s: unknown dtype %s", spec.name.c_str(), spec.dtype.c_str()));
        if (!names.insert(spec.name).second)
            fail(path, strprintf("cannot write tensor %s: the name is taken", spec.name.c_str()));
        layout.tensors.push_back({spec.name, spec.dtype, spec.shape, 0, 0});
    }
    std::stable_sort(layout.tensors.begin(), layout.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
    });

    nlohmann::ordered_json root = nlohmann::ordered_json::object();
    if (!metadata.empty()) root[kMetadataKey] = metadata;
    uint64_t position = 0;
    for (TensorInfo& tensor : layout.tensors) {
        uint64_t bytes = 0;
        tensor.begin = position;
        if (!tensor_bytes(tensor.shape, dtype_bytes(tensor.dtype), &bytes) ||
            __builtin_add_overflow(position, bytes, &position))
            fail(path, strprintf("cannot write tensor %s: impossible shape %s", tensor.name.c_str(),
                                 shape_text(tensor.shape).c_str()));
        tensor.end = position;
        root[tensor.name] = {
            {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
    }
    std::string header;
    try {
        header = root.dump();  // unlike json_text(), this throws
    } catch (const Json::exception& error) {
        fail(path, strprintf("cannot write its header: a name or metadata text is not UTF-8 (%s)", error.what()));
    }
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    layout.head.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
    layout.head += header;
    return layout;
}

void SafetensorsWriter::write(const std::string& name, const void* data, size_t bytes) {
    const auto found = slots_.find(name);
    if (!file_) fail(path_, strprintf("cannot write tensor %s: the file is finished", name.c_str()));
    if (found == slots_.end()) fail(path_, strprintf("cannot write tensor %s: it was not announced", name.c_str()));
    Slot& slot = found->second;
    if (slot.written) fail(path_, strprintf("tensor %s is written twice", name.c_str()));
    if (bytes != slot.end - slot.begin) {
        fail(path_, strprintf("tensor %s has %llu bytes, %zu were given", name.c_str(),
                              static_cast<unsigned long long>(slot.end - slot.begin), bytes));
    }
    file_->write_at(data_start_ + slot.begin, data, bytes);
    slot.written = true;
}

void SafetensorsWriter::finish() {
    if (!file_) fail(path_, "is finished already");
    for (const auto& [name, slot] : slots_) {
        if (!slot.written) fail(path_, strprintf("tensor %s was never written", name.c_str()));
    }
    file_->finish();
    file_.reset();
}

}  // namespace llmc
