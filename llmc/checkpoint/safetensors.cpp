// Reader and writer of safetensors files. The checks follow the format's reference implementation: a header of at most
// 100 MB, unique names, offsets inside the data, no overlaps, no gaps, and no bytes left over.
// build: fuzzed
#include "llmc/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "llmc/base/json.h"
#include "llmc/device/formats.cuh"

namespace llmc {

static_assert(std::endian::native == std::endian::little, "tensors are read and written in the file's byte order");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
const char* const kMetadataKey = "__metadata__";
constexpr InputKind kSafetensorsFile = {"weights", "a .safetensors file, or a directory that holds some",
                                        ExitCode::checkpoint};

// Computes a tensor's bytes. Returns false if shape and type give no size that fits into 64 bits.
static bool tensor_bytes(const std::vector<int64_t>& shape, size_t element_bytes, uint64_t* bytes) {
    *bytes = element_bytes;
    for (int64_t extent : shape) {
        if (extent < 0 || __builtin_mul_overflow(*bytes, static_cast<uint64_t>(extent), bytes)) return false;
    }
    return true;
}

static uint64_t unsigned_field(const std::string& path, const std::string& name, const char* field, const Json& value) {
    if (!value.is_number_unsigned())
        refuse_file(path, "tensor {}: {} holds {}, which is not a whole number >= 0", name, field, json_text(value));
    return value.get<uint64_t>();
}

static TensorInfo parse_tensor(const std::string& path, const std::string& name, const Json& entry) {
    const bool complete = entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
                          entry.contains("shape") && entry["shape"].is_array() && entry.contains("data_offsets") &&
                          entry["data_offsets"].is_array() && entry["data_offsets"].size() == 2;
    if (!complete) refuse_file(path, "tensor {} lacks a proper dtype, shape or data_offsets in the header", name);
    TensorInfo tensor{name, entry["dtype"].get<std::string>(), {}, 0, 0};
    for (const Json& extent : entry["shape"]) {
        const uint64_t value = unsigned_field(path, name, "shape", extent);
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
            refuse_file(path, "tensor {}: shape holds {}, which is too large", name, json_text(extent));
        tensor.shape.push_back(static_cast<int64_t>(value));
    }
    tensor.begin = unsigned_field(path, name, "data_offsets", entry["data_offsets"][0]);
    tensor.end = unsigned_field(path, name, "data_offsets", entry["data_offsets"][1]);
    return tensor;
}

// Checks that type, shape and offsets of a tensor agree and lie inside the data section.
static void check_tensor(const std::string& path, const TensorInfo& tensor, uint64_t data_bytes) {
    const char* name = tensor.name.c_str();
    const size_t element_bytes = dtype_bytes(tensor.dtype);
    if (element_bytes == 0) refuse_file(path, "tensor {} has the unknown dtype {}", name, tensor.dtype);
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
        refuse_file(path, "tensor {} claims bytes {} to {} of {} bytes of data; the file is truncated or damaged", name,
                    tensor.begin, tensor.end, data_bytes);
    }
    uint64_t needed = 0;
    const std::string shape = shape_text(tensor.shape);
    if (!tensor_bytes(tensor.shape, element_bytes, &needed))
        refuse_file(path, "tensor {} has a shape beyond 64 bits: {}", name, shape);
    if (needed != tensor.bytes())
        refuse_file(path, "tensor {} of shape {} and dtype {} needs {} bytes, its offsets give {}", name, shape,
                    tensor.dtype, needed, tensor.bytes());
}

static float float_from_f16(uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const uint32_t mantissa = bits & 1023u;
    const uint32_t sign = static_cast<uint32_t>(bits >> 15) << 31;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));  // infinities and NaNs
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return sign ? -magnitude : magnitude;
}

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
    const uint64_t file_bytes = file_.bytes();
    uint64_t length = 0;
    if (file_.read_at(0, &length, kLengthBytes) < kLengthBytes)
        refuse_file(path_, "has {} bytes, too few for a safetensors file", file_bytes);
    if (length > file_bytes - kLengthBytes || length > kMaxHeaderBytes) {
        refuse_file(path_,
                    "says its header has {} bytes, the file has {} (and the format allows {}); it is "
                    "truncated or not a safetensors file",
                    length, file_bytes, kMaxHeaderBytes);
    }
    std::string header(length, '\0');
    if (file_.read_at(kLengthBytes, header.data(), length) < length)
        refuse_file(path_, "was truncated while it was read");
    data_start_ = kLengthBytes + length;
    return header;
}

void SafetensorsFile::parse_header(const std::string& header) {
    Json root;
    try {
        root = parse_json(header);
    } catch (const JsonError& error) {
        refuse_file(path_, "its header is not valid JSON ({})", error.what());
    }
    if (!root.is_object()) refuse_file(path_, "its header is not a JSON object");
    for (const auto& [name, entry] : root.items()) {
        if (name != kMetadataKey) {
            tensors_.push_back(parse_tensor(path_, name, entry));
            continue;
        }
        if (!entry.is_object()) refuse_file(path_, "__metadata__ is not a JSON object");
        for (const auto& [key, value] : entry.items()) {
            if (!value.is_string()) refuse_file(path_, "__metadata__ {} is not a string", key);
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
        if (tensor.begin < expected) refuse_file(path_, "tensors {} and {} overlap", tensors_[i - 1].name, tensor.name);
        if (tensor.begin > expected)
            refuse_file(path_, "{} bytes before tensor {} belong to no tensor", tensor.begin - expected, tensor.name);
        expected = tensor.end;
        index_[tensor.name] = i;
    }
    if (expected != data_bytes) refuse_file(path_, "{} bytes at its end belong to no tensor", data_bytes - expected);
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
    const auto found = index_.find(name);
    if (found == index_.end()) refuse_file(path_, "has no tensor {}", name);
    return tensors_[found->second];
}

void SafetensorsFile::read(const std::string& name, void* dst, size_t bytes) const {
    const TensorInfo& tensor = info(name);
    if (bytes != tensor.bytes())
        refuse_file(path_, "tensor {} {} {} has {} bytes, {} were asked for", name, tensor.dtype,
                    shape_text(tensor.shape), tensor.bytes(), bytes);
    read_range(name, 0, dst, bytes);
}

void SafetensorsFile::read_range(const std::string& name, uint64_t offset, void* dst, size_t bytes) const {
    const TensorInfo& tensor = info(name);
    if (offset > tensor.bytes() || bytes > tensor.bytes() - offset)
        refuse_file(path_, "tensor {} has {} bytes, {} from byte {} on were asked for", name, tensor.bytes(), bytes,
                    offset);
    if (file_.read_at(data_start_ + tensor.begin + offset, dst, bytes) < bytes)
        refuse_file(path_, "ended inside tensor {}: it was truncated while open", name);
}

void SafetensorsFile::read_floats(const std::string& name, uint64_t first, size_t count, float* values) const {
    const TensorInfo& tensor = info(name);
    const auto read_as = [&]<class T>(float (*to_float)(T)) {
        std::vector<T> stored(count);
        read_range(name, first * sizeof(T), stored.data(), count * sizeof(T));
        std::transform(stored.begin(), stored.end(), values, to_float);
    };
    if (tensor.dtype == "F32")
        read_range(name, first * sizeof(float), values, count * sizeof(float));
    else if (tensor.dtype == "F64")
        read_as(+[](double value) { return static_cast<float>(value); });
    else if (tensor.dtype == "BF16")
        read_as(+[](bf16 value) { return to_float(value); });
    else if (tensor.dtype == "F16")
        read_as(float_from_f16);
    else if (tensor.dtype == "F8_E4M3")
        read_as(+[](e4m3 code) { return to_float(code); });
    else
        refuse_file(path_, "tensor {} has dtype {}; F32, BF16, F16, F64 or F8_E4M3 is needed here", name, tensor.dtype);
}

std::vector<float> SafetensorsFile::read_floats(const std::string& name) const {
    std::vector<float> values(static_cast<size_t>(info(name).elements()));
    read_floats(name, 0, values.size(), values.data());
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
            refuse_file(path, "cannot write tensor {}: unknown dtype {}", spec.name, spec.dtype);
        if (!names.insert(spec.name).second) refuse_file(path, "cannot write tensor {}: the name is taken", spec.name);
        layout.tensors.push_back({spec.name, spec.dtype, spec.shape, 0, 0});
    }
    std::stable_sort(layout.tensors.begin(), layout.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
    });

    Json root = Json::object();
    if (!metadata.empty()) root[kMetadataKey] = metadata;
    uint64_t position = 0;
    for (TensorInfo& tensor : layout.tensors) {
        uint64_t bytes = 0;
        tensor.begin = position;
        if (!tensor_bytes(tensor.shape, dtype_bytes(tensor.dtype), &bytes) ||
            __builtin_add_overflow(position, bytes, &position))
            refuse_file(path, "cannot write tensor {}: impossible shape {}", tensor.name, shape_text(tensor.shape));
        tensor.end = position;
        root[tensor.name] = {
            {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
    }
    std::string header;
    try {
        header = root.dump();  // unlike json_text(), this throws
    } catch (const Json::exception& error) {
        refuse_file(path, "cannot write its header: a name or metadata text is not UTF-8 ({})", error.what());
    }
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    layout.head.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
    layout.head += header;
    return layout;
}

void SafetensorsWriter::write(const std::string& name, const void* data, size_t bytes) {
    const auto found = slots_.find(name);
    if (!file_) refuse_file(path_, "cannot write tensor {}: the file is finished", name);
    if (found == slots_.end()) refuse_file(path_, "cannot write tensor {}: it was not announced", name);
    Slot& slot = found->second;
    if (slot.written) refuse_file(path_, "tensor {} is written twice", name);
    if (bytes != slot.end - slot.begin)
        refuse_file(path_, "tensor {} has {} bytes, {} were given", name, slot.end - slot.begin, bytes);
    file_->write_at(data_start_ + slot.begin, data, bytes);
    slot.written = true;
}

void SafetensorsWriter::finish() {
    if (!file_) refuse_file(path_, "is finished already");
    for (const auto& [name, slot] : slots_) {
        if (!slot.written) refuse_file(path_, "tensor {} was never written", name);
    }
    file_->finish();
    file_.reset();
}

}  // namespace llmc
