// The inputs to fuzz: each target feeds bytes to one reader of files, and any exception other than llmc::Error is a
// bug.
// build: fuzzed
#include "test/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/data/choices.h"
#include "llmc/data/shards.h"
#include "llmc/data/tokenizer.h"
#include "llmc/flags/options.h"
#include "llmc/model/model_file.h"
#include "llmc/train/state.h"
#include "test/checkpoint/state_fixture.h"
#include "test/helpers.h"

namespace llmc::test {
namespace {

// Bytes as a file in memory.
class MemoryFile {
public:
    explicit MemoryFile(const std::string& bytes) : fd_(::memfd_create("fuzz", 0)) {
        if (fd_ < 0 || ::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
            throw std::runtime_error("memfd_create failed");
    }
    ~MemoryFile() { ::close(fd_); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

private:
    int fd_;
};

// Any other exception is a finding.
template <class Read>
void expect_no_more_than_errors(Read&& read) {
    try {
        read();
    } catch (const Error&) {
    }
}

// ---- the readers ---------------------------------------------------------------------------------------------------

// Adds the right checksum, to find out what a changed text could do.
void read_manifest(const std::string& bytes) {
    expect_no_more_than_errors([&] { parse_manifest("manifest.json", bytes); });
    const std::string whole =
        fmt::format("{{\"checksum\": \"{:016x}\",\n\"manifest\": ", checksum(bytes.data(), bytes.size())) + bytes +
        "}\n";
    expect_no_more_than_errors([&] {
        const Manifest manifest = parse_manifest("manifest.json", whole);
        parse_manifest("manifest.json", manifest_text(manifest));  // a manifest that was read can be written
        state_from_json(*manifest.state);
    });
}

void read_state(const std::string& bytes) {
    const auto json = parse_json_or_null(bytes);
    if (json.is_null()) return;
    expect_no_more_than_errors([&] { json_text(state_json(state_from_json(json))); });
}

void read_safetensors(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] {
        const SafetensorsFile opened(file.path());
        for (const TensorInfo& tensor : opened.tensors()) {
            std::vector<char> values(tensor.bytes());  // no more than the file has
            opened.read(tensor.name, values.data(), values.size());
        }
    });
}

void read_shard(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] {
        const ShardSet set({file.path()});
        std::vector<int32_t> sample(9);
        for (int64_t i = 0; i < std::min<int64_t>(set.samples(8), 10); i++) set.read_sample(i, 8, sample.data(), 300);
        set.check_vocabulary(300);
        set.fingerprint();
    });
}

template <class Token>
std::string shard(int32_t magic, int32_t version) {
    constexpr int32_t count = 40;
    std::string bytes(1024 + count * sizeof(Token), '\0');
    const int32_t head[] = {magic, version, count};
    std::memcpy(bytes.data(), head, sizeof head);
    for (int i = 0; i < count; i++) bytes[1024 + static_cast<size_t>(i) * sizeof(Token)] = static_cast<char>(i * 5);
    return bytes;
}

// The sidecar of a valid shard.
void read_sidecar(const std::string& bytes) {
    static const TemporaryDirectory directory;
    static const std::string path = make_file(directory / "shard.bin", shard<uint16_t>(20240520, 1));
    std::ofstream(path + ".json", std::ios::binary) << bytes;
    expect_no_more_than_errors([&] {
        const ShardSet set({path});
        set.check_vocabulary(300);
        set.fingerprint();
    });
}

void read_tokenizer(const std::string& bytes) {
    expect_no_more_than_errors([&] {
        const TokenDecoder decoder = TokenDecoder::parse_table(bytes, "fuzz");
        decoder.decode({0, 1, 2, 255, 256, 50256});
        if (TokenDecoder::parse_table(decoder.as_table(), "fuzz").text_bytes() != decoder.text_bytes())
            throw std::logic_error("a table is read back as another one");
    });
}

void read_choice_file(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] { check_choices(read_choices(file.path()), 300, 64, file.path()); });
}

// A run.json, or only its configuration: resolves its values and writes it again.
void read_run_json(const std::string& bytes) {
    const MemoryFile file(bytes);
    ResolveInputs inputs;
    inputs.ranks = 2, inputs.train_tokens = 1000, inputs.val_tokens = {100};
    expect_no_more_than_errors([&] {
        Options options = read_config_file(file.path());
        resolve(options, inputs);
        config_json(options);
    });
}

void read_model(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] {
        const ModelConfig config = read_model_file(file.path());
        config.validate();
        json_text(hf_model_json(config));
        model_from_json(parse_json(json_text(model_json(config))), "what was written").validate();
    });
}

// ---- valid files ---------------------------------------------------------------------------------------------------

std::vector<std::string> manifests() {
    std::vector<std::string> bodies;
    for (const int world : {1, 3}) {
        Manifest m = state_manifest(20, world);
        m.state = state_json({20, {}, Fp8Saved{"rule", true, true, {"h.0.fc"}, {Fp8SavedTensor{}}}});
        for (int r = 0; r < world; r++) m.files.push_back({state_file_name(r), 100, {7}, state_slices(r, world)});
        const std::string text = manifest_text(m);
        const size_t at = text.find("\"manifest\": ") + std::strlen("\"manifest\": ");
        bodies.push_back(text.substr(at, text.size() - at - 2));
    }
    return bodies;
}

std::vector<std::string> states() {
    return {json_text(state_json({20, {}, Fp8Saved{"rule", true, true, {"h.0.fc"}, {Fp8SavedTensor{}}}}))};
}

std::vector<std::string> safetensors() {
    const SafetensorsLayout layout =
        lay_out_safetensors("", {{"a", "F32", {2, 3}}, {"b", "BF16", {5}}, {"c", "U8", {}}}, {{"format", "pt"}});
    return {layout.head + std::string(layout.tensors.back().end, 'x')};
}

std::vector<std::string> shards() { return {shard<uint16_t>(20240520, 1), shard<uint32_t>(20240801, 7)}; }

std::vector<std::string> tokenizers() {
    std::string table;
    for (const char* line : {"IQ== 0\n", "Ig== 1\n", "Iw== 2\n", "aGVsbG8= 3\n"}) table += line;
    std::vector<std::string> files{table};
    for (const int32_t version : {1, 2, 3}) {
        const int32_t head[256] = {20240328, version, 4, 3, 1};
        files.emplace_back(reinterpret_cast<const char*>(head), sizeof head);
        for (const char* piece : {"a", "hello", "", "<|end|>"}) {
            const auto length = static_cast<uint16_t>(std::strlen(piece));
            files.back().append(reinterpret_cast<const char*>(&length), version == 3 ? 2 : 1).append(piece);
        }
    }
    return files;
}

std::vector<std::string> choice_files() {
    std::string bytes(1024, '\0');
    const int32_t head[] = {20240522, 1, 2};
    std::memcpy(bytes.data(), head, sizeof head);
    const uint16_t words[] = {65535, 22, 0, 1, 2, 1, 7, 1, 8, 1, 9, 65535, 26, 1, 0, 2, 2, 5, 6, 2, 3, 4, 1, 2};
    std::string wide = bytes;
    wide[4] = 2;  // version
    wide[8] = 1;  // example
    const uint32_t wide_words[] = {65535, 68, 0, 1, 2, 0, 1, 9, 3, 5, 6, 70000, 2, 4, 2, 7, 6};
    return {bytes + std::string(reinterpret_cast<const char*>(words), sizeof words),
            wide + std::string(reinterpret_cast<const char*>(wide_words), sizeof wide_words)};
}

std::vector<std::string> sidecars() {
    return {R"({"tokenizer": "bytes", "tokenizer_hash": "0123456789abcdef", "vocab": 257, "max_token": 256,
                "documents": 1, "tokens": 40, "bytes": 39, "end_token": 256, "checksum": "0123456789abcdef",
                "entropy_floor": 1.5})"};
}

std::vector<std::string> run_jsons() {
    Options options;
    options.train = "data/train*.bin";
    options.val = {{"", "data/val*.bin"}, {"other", "data/other*.bin"}};
    options.model_name = "llama3.2-1b";
    const std::string config = config_json(options);
    resolve(options, {});
    return {config, "{\"run_id\": \"20240520\", \"world\": 2, \"config\": " + config_json(options) + "}"};
}

std::vector<std::string> models() {
    std::vector<std::string> files;
    for (const char* name : {"d12", "llama3-8b", "mistral-7b", "qwen2.5-3b", "qwen3-8b", "nano-d4"})
        for (const auto& json : {model_json(find_model(name)), hf_model_json(find_model(name))})
            files.push_back(json_text(json));
    return files;
}

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
    static const std::vector<FuzzTarget> targets = {{"manifest", read_manifest, manifests},
                                                    {"state", read_state, states},
                                                    {"safetensors", read_safetensors, safetensors},
                                                    {"shard", read_shard, shards},
                                                    {"tokenizer", read_tokenizer, tokenizers},
                                                    {"choices", read_choice_file, choice_files},
                                                    {"sidecar", read_sidecar, sidecars},
                                                    {"run", read_run_json, run_jsons},
                                                    {"model", read_model, models}};
    return targets;
}

}  // namespace llmc::test
