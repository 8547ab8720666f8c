// Writes a rank's safetensors file in one pass, with its checksums. Writes and strictly parses manifest.json.
// build: optimized, threads, fuzzed
#include "llmc/checkpoint/manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "llmc/checkpoint/safetensors.h"

namespace llmc {

// ---- a rank's file --------------------------------------------------------------------------------------------------

namespace {

// Computes the checksums of a file's chunks while it is written.
class ChunkSums {
public:
    void add(const void* data, size_t bytes) {
        const char* from = static_cast<const char*>(data);
        while (bytes > 0) {
            const size_t now = std::min(bytes, static_cast<size_t>(kChunkBytes) - filled_);
            if (filled_ == 0) XXH3_64bits_reset(&state_);
            XXH3_64bits_update(&state_, from, now);
            filled_ += now;
            from += now;
            bytes -= now;
            if (filled_ == kChunkBytes) end_chunk();
        }
    }
    std::vector<uint64_t> finish() {
        if (filled_ > 0) end_chunk();
        return sums_;
    }

private:
    void end_chunk() {
        sums_.push_back(XXH3_64bits_digest(&state_));
        filled_ = 0;
    }
    XXH3_state_t state_{};
    size_t filled_ = 0;
    std::vector<uint64_t> sums_;
};

}  // namespace

StateFile write_state_file(FileCalls& calls, const std::string& directory, int rank,
                           const std::vector<StateSlice>& slices, const SliceBytes& values, size_t piece_bytes) {
    StateFile result{state_file_name(rank), 0, {}, {}};
    const std::string path = directory + "/" + result.name;
    std::vector<TensorSpec> specs;
    for (const StateSlice& slice : slices)
        specs.push_back({slice.name(), slice.dtype, {static_cast<int64_t>(slice.count)}});
    const SafetensorsLayout layout = lay_out_safetensors(path, specs, {});
    NewFile file(calls, path);
    ChunkSums sums;
    std::map<std::string, size_t> index;
    for (size_t s = 0; s < slices.size(); s++) index[slices[s].name()] = s;
    const auto append = [&](const void* data, size_t bytes) {
        sums.add(data, bytes);
        file.append(data, bytes);
    };
    append(layout.head.data(), layout.head.size());
    for (const TensorInfo& tensor : layout.tensors) {
        const size_t s = index.at(tensor.name);
        result.slices.push_back(slices[s]);
        for (uint64_t at = 0, all = slices[s].bytes(); at < all; at += piece_bytes) {
            const size_t bytes = static_cast<size_t>(std::min<uint64_t>(piece_bytes, all - at));
            append(values(s, at, bytes), bytes);
        }
    }
    file.finish();
    result.bytes = file.bytes();
    result.checksums = sums.finish();
    return result;
}

// ---- manifest.json --------------------------------------------------------------------------------------------------

namespace {

constexpr const char* kFormat = "train_gpt checkpoint";
// The text is  {"checksum": "0123456789abcdef",\n"manifest": BODY}\n  with the checksum of BODY's bytes.
constexpr const char* kBeforeChecksum = "{\"checksum\": \"";
constexpr const char* kBeforeBody = "\",\n\"manifest\": ";
constexpr const char* kAfterBody = "}\n";
constexpr size_t kHexDigits = 16;

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

// Reads the fields of a manifest; its errors begin with the path of the file.
class Parser {
public:
    explicit Parser(const std::string& path) : path_(path) {}

    template <class... Args>
    [[noreturn]] void fail(fmt::format_string<Args...> problem, Args&&... args) const {
        refuse_file(path_, problem, std::forward<Args>(args)...);
    }

    const Json& field(const Json& object, const char* name) const {
        if (!object.is_object() || !object.contains(name)) fail("has no \"{}\"", name);
        return object.at(name);
    }
    std::string text(const Json& object, const char* name) const {
        const Json& value = field(object, name);
        if (!value.is_string()) fail("\"{}\" is not text", name);
        return value.get<std::string>();
    }
    uint64_t number(const Json& value, const char* name) const {
        if (!value.is_number_unsigned()) fail("\"{}\" is not a whole number of 0 or more", name);
        const uint64_t n = value.get<uint64_t>();
        if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) fail("\"{}\" is too large", name);
        return n;
    }
    uint64_t number(const Json& object, const char* name, uint64_t least, uint64_t most) const {
        const uint64_t n = number(field(object, name), name);
        if (n < least || n > most) fail("\"{}\" is {}", name, n);
        return n;
    }
    const Json& list(const Json& object, const char* name) const {
        const Json& value = field(object, name);
        if (!value.is_array()) fail("\"{}\" is not a list", name);
        return value;
    }
    const Json& object(const Json& parent, const char* name) const {
        const Json& value = field(parent, name);
        if (!value.is_object()) fail("\"{}\" is not an object", name);
        return value;
    }

    StateTensor tensor(const Json& entry) const {
        StateTensor tensor{text(entry, "name"), {}, {}};
        uint64_t elements = 1;
        for (const Json& extent : list(entry, "shape")) {
            const uint64_t n = number(extent, "shape");
            if (n == 0 || __builtin_mul_overflow(elements, n, &elements) || elements > (uint64_t{1} << 60))
                fail("tensor {} has an impossible shape", tensor.name);
            tensor.shape.push_back(static_cast<int64_t>(n));
        }
        for (const Json& part : list(entry, "parts")) {
            if (!part.is_string()) fail("tensor {} has a part that is not text", tensor.name);
            tensor.parts.push_back(part.get<std::string>());
        }
        return tensor;
    }

    StateFile file(const Json& entry, size_t index, uint64_t chunk_bytes) const {
        StateFile file;
        file.name = text(entry, "name");
        // A save writes only this name, so no name can lead out of the directory.
        if (file.name != state_file_name(static_cast<int>(index)))
            fail("names a file {} where {} belongs", file.name, state_file_name(static_cast<int>(index)));
        file.bytes = number(entry, "bytes", 1, uint64_t{1} << 60);
        for (const Json& sum : list(entry, "checksums")) file.checksums.push_back(checksum_of(sum, file.name));
        if (file.checksums.size() != (file.bytes + chunk_bytes - 1) / chunk_bytes)
            fail("has {} checksums for the {} bytes of {}", file.checksums.size(), file.bytes, file.name);
        for (const Json& slice : list(entry, "slices")) {
            StateSlice read{text(slice, "tensor"), text(slice, "part"), number(slice, "start", 0, uint64_t{1} << 60),
                            number(slice, "count", 1, uint64_t{1} << 60)};
            if (slice.contains("dtype")) read.dtype = text(slice, "dtype");
            if (read.dtype != "F32" && read.dtype != "BF16")
                fail("{} holds {} in {}, where F32 or BF16 belongs", file.name, read.name(), read.dtype);
            file.slices.push_back(std::move(read));
        }
        return file;
    }

    // Checks that the slices cover every part of every tensor exactly once.
    void check_cover(const Manifest& manifest) const {
        using Range = std::pair<uint64_t, uint64_t>;  // start, end
        std::map<std::string, std::vector<Range>> ranges;
        std::set<std::string> tensors;
        for (const StateTensor& tensor : manifest.tensors) {
            if (!tensors.insert(tensor.name).second) fail("lists tensor {} twice", tensor.name);
            for (const std::string& part : tensor.parts)
                if (!ranges.emplace(tensor.name + "." + part, std::vector<Range>{}).second)
                    fail("lists {}.{} twice", tensor.name, part);
        }
        for (const StateFile& file : manifest.files) {
            std::set<std::string> in_file;
            for (const StateSlice& slice : file.slices) {
                const auto found = ranges.find(slice.name());
                if (found == ranges.end()) fail("{} holds {}, which is not listed", file.name, slice.name());
                if (!in_file.insert(slice.name()).second) fail("{} holds {} twice", file.name, slice.name());
                found->second.emplace_back(slice.start, slice.start + slice.count);
            }
        }
        for (const StateTensor& tensor : manifest.tensors)
            for (const std::string& part : tensor.parts) {
                const std::string name = tensor.name + "." + part;
                std::vector<Range>& covered = ranges[name];
                std::sort(covered.begin(), covered.end());
                uint64_t at = 0;
                for (const Range& range : covered) {
                    if (range.first != at)
                        fail("{} {} at element {}", range.first > at ? "no file holds" : "two files hold", name,
                             std::min(at, range.first));
                    at = range.second;
                }
                if (at != tensor.elements())
                    fail("{} has {} elements, its slices end at {}", name, tensor.elements(), at);
            }
    }

private:
    uint64_t checksum_of(const Json& value, const std::string& file) const {
        const std::string digits = value.is_string() ? value.get<std::string>() : "";
        if (digits.size() != kHexDigits || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
            fail("a checksum of {} is not 16 hexadecimal digits", file);
        return std::stoull(digits, nullptr, 16);
    }

    const std::string& path_;
};

}  // namespace

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

std::string state_file_name(int rank) { return fmt::format("rank_{:05}.safetensors", rank); }

uint64_t StateTensor::elements() const {
    uint64_t n = 1;
    for (const int64_t extent : shape) n *= static_cast<uint64_t>(extent);
    return n;
}

uint64_t Manifest::bytes() const {
    uint64_t sum = 0;
    for (const StateFile& file : files) sum += file.bytes;
    return sum;
}

Json state_file_json(const StateFile& file) {
    Json sums = Json::array(), slices = Json::array();
    for (const uint64_t sum : file.checksums) sums.push_back(hex(sum));
    for (const StateSlice& slice : file.slices) {
        slices.push_back(
            {{"tensor", slice.tensor}, {"part", slice.part}, {"start", slice.start}, {"count", slice.count}});
        if (slice.dtype != "F32") slices.back()["dtype"] = slice.dtype;
    }
    return {{"name", file.name}, {"bytes", file.bytes}, {"checksums", sums}, {"slices", slices}};
}

void add_state_file(Manifest& manifest, const std::string& path, const Json& entry) {
    manifest.files.push_back(Parser(path).file(entry, manifest.files.size(), manifest.chunk_bytes));
}

std::string manifest_text(const Manifest& m) {
    Json body;
    body["format"] = kFormat;
    body["version"] = kCheckpointVersion;
    body["run_id"] = m.run_id;
    body["step"] = m.step;
    body["world"] = m.world;
    body["zero"] = m.zero;
    body["config"] = *m.config;
    body["versions"] = *m.versions;
    body["run"] = *m.run;
    body["state"] = *m.state;
    body["tensors"] = Json::array();
    for (const StateTensor& tensor : m.tensors)
        body["tensors"].push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"parts", tensor.parts}});
    body["chunk_bytes"] = m.chunk_bytes;
    body["files"] = Json::array();
    for (const StateFile& file : m.files) body["files"].push_back(state_file_json(file));
    const std::string text = json_text(body, 1);
    return kBeforeChecksum + hex(checksum(text.data(), text.size())) + kBeforeBody + text + kAfterBody;
}

Manifest parse_manifest(const std::string& path, const std::string& text) {
    const Parser parser(path);
    const std::string before = kBeforeChecksum, between = kBeforeBody, after = kAfterBody;
    const size_t body_at = before.size() + kHexDigits + between.size();
    if (text.size() < body_at + after.size() || !text.starts_with(before) ||
        text.compare(before.size() + kHexDigits, between.size(), between) != 0 || !text.ends_with(after))
        parser.fail("is not a checkpoint manifest, or is incomplete");
    const std::string body = text.substr(body_at, text.size() - body_at - after.size());
    if (text.substr(before.size(), kHexDigits) != hex(checksum(body.data(), body.size())))
        parser.fail("is damaged: its checksum does not match");

    Json json;
    try {
        json = parse_json(body);
    } catch (const JsonError& error) {
        parser.fail("is not valid JSON ({})", error.what());
    }
    if (parser.text(json, "format") != kFormat) parser.fail("is not a checkpoint manifest");
    const uint64_t version = parser.number(parser.field(json, "version"), "version");
    if (version != kCheckpointVersion)
        parser.fail("has format version {}, this program reads version {}; use the program that wrote it", version,
                    kCheckpointVersion);
    Manifest m;
    m.run_id = parser.text(json, "run_id");
    m.step = static_cast<int64_t>(parser.number(json, "step", 0, uint64_t{1} << 60));
    m.world = static_cast<int>(parser.number(json, "world", 1, 1 << 20));
    m.zero = static_cast<int>(parser.number(json, "zero", 0, 3));
    *m.config = parser.object(json, "config");
    *m.versions = parser.object(json, "versions");
    *m.run = parser.object(json, "run");
    *m.state = parser.object(json, "state");
    for (const Json& tensor : parser.list(json, "tensors")) m.tensors.push_back(parser.tensor(tensor));
    m.chunk_bytes = parser.number(json, "chunk_bytes", 1, uint64_t{1} << 30);
    for (const Json& file : parser.list(json, "files")) add_state_file(m, path, file);
    if (m.files.size() != static_cast<size_t>(m.world))
        parser.fail("lists {} files of {} ranks", m.files.size(), m.world);
    parser.check_cover(m);
    return m;
}

}  // namespace llmc
