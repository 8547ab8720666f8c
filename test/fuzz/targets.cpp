#include "test/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/data/choices.h"
#include "llmc/data/shards.h"
#include "llmc/data/tokenizer.h"
#include "llmc/device/error.h"
#include "llmc/train/state.h"
#include "test/checkpoint/state_fixture.h"

namespace llmc::test {
namespace {

// Bytes as a file, in memory.
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

// ---- what is read --------------------------------------------------------------------------------------------------

// Behind its checksum: what a changed text could do if that were right.
void read_manifest(const std::string& bytes) {
    expect_no_more_than_errors([&] { parse_manifest("manifest.json", bytes); });
    const std::string whole = strprintf("{\"checksum\": \"%016llx\",\n\"manifest\": ",
                                        static_cast<unsigned long long>(checksum(bytes.data(), bytes.size()))) +
                              bytes + "}\n";
    expect_no_more_than_errors([&] {
        const Manifest manifest = parse_manifest("manifest.json", whole);
        parse_manifest("manifest.json", manifest_text(manifest));  // what was read can be written
        state_from_json(manifest.state);
    });
}

void read_state(const std::string& bytes) {
    const auto json = nlohmann::ordered_json::parse(bytes, nullptr, false);
    if (json.is_discarded()) return;
    expect_no_more_than_errors([&] { state_json(state_from_json(json)).dump(); });
}

void read_safetensors(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] {
        const SafetensorsFile opened(file.path());
        for (const TensorInfo& tensor : opened.tensors()) {
            std::vector<char> values(tensor.bytes());  // at most the file's
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

void read_tokenizer(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] {
        const TokenDecoder decoder = TokenDecoder::open(file.path());
        decoder.decode({0, 1, 2, 255, 256, 50256});
        decoder.encode("hello !");
    });
}

void read_choice_file(const std::string& bytes) {
    const MemoryFile file(bytes);
    expect_no_more_than_errors([&] { check_choices(read_choices(file.path()), 300, 64, file.path()); });
}

// ---- files as they should be ---------------------------------------------------------------------------------------

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
    return {state_json({20, {}, Fp8Saved{"rule", true, true, {"h.0.fc"}, {Fp8SavedTensor{}}}}).dump()};
}

std::vector<std::string> safetensors() {
    const SafetensorsLayout layout =
        lay_out_safetensors("", {{"a", "F32", {2, 3}}, {"b", "BF16", {5}}, {"c", "U8", {}}}, {{"format", "pt"}});
    return {layout.head + std::string(layout.bytes() - layout.head.size(), 'x')};
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
std::vector<std::string> shards() { return {shard<uint16_t>(20240520, 1), shard<uint32_t>(20240801, 7)}; }

std::vector<std::string> tokenizers() {
    std::string table;
    for (const char* line : {"IQ== 0\n", "Ig== 1\n", "Iw== 2\n", "aGVsbG8= 3\n"}) table += line;
    return {table};
}

std::vector<std::string> choice_files() {
    std::string bytes(1024, '\0');
    const int32_t head[] = {20240522, 1, 2};
    std::memcpy(bytes.data(), head, sizeof head);
    const uint16_t words[] = {65535, 22, 0, 1, 2, 1, 7, 1, 8, 1, 9, 65535, 26, 1, 0, 2, 2, 5, 6, 2, 3, 4, 1, 2};
    return {bytes + std::string(reinterpret_cast<const char*>(words), sizeof words)};
}

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
    static const std::vector<FuzzTarget> targets = {
        {"manifest", read_manifest, manifests},         {"state", read_state, states},
        {"safetensors", read_safetensors, safetensors}, {"shard", read_shard, shards},
        {"tokenizer", read_tokenizer, tokenizers},      {"choices", read_choice_file, choice_files}};
    return targets;
}

}  // namespace llmc::test
