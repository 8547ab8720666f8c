// The manifest: it reads back as written, and any other text is refused.
#include "llmc/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include "llmc/base/json.h"
#include "state_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

Manifest example(int world) {
    Manifest m = state_manifest(20, world);
    for (int r = 0; r < world; r++)
        m.files.push_back({state_file_name(r), 100, {0x123456789abcdef0u + r}, state_slices(r, world)});
    return m;
}

// The error for a manifest with a changed body and the right checksum.
std::string refusal(const std::function<void(nlohmann::ordered_json&)>& change, int world = 2) {
    const std::string text = manifest_text(example(world));
    const size_t at = text.find("\"manifest\": ") + 12;
    nlohmann::ordered_json body = parse_json(text.substr(at, text.size() - at - 2));
    change(body);
    const std::string changed = json_text(body, 1);
    const std::string whole =
        fmt::format("{{\"checksum\": \"{:016x}\",\n\"manifest\": ", checksum(changed.data(), changed.size())) +
        changed + "}\n";
    return checkpoint_error([&] { parse_manifest("dir/manifest.json", whole); });
}

}  // namespace

TEST_CASE("manifest: reads back, and is JSON") {
    const Manifest m = example(3);
    const Manifest back = parse_manifest("x", manifest_text(m));
    CHECK(back.run_id == m.run_id);
    CHECK(back.step == 20);
    CHECK(back.world == 3);
    CHECK(back.tensors == m.tensors);
    CHECK(back.files == m.files);
    CHECK(*back.config == *m.config);
    CHECK(*back.state == *m.state);
    CHECK(back.bytes() == 300);
    CHECK(parse_json(manifest_text(m))["manifest"]["step"] == 20);
    CHECK(refusal([](auto&) {}) == "");  // the helper itself changes nothing
}

TEST_CASE("manifest: every flipped bit and every truncation is detected") {
    const std::string text = manifest_text(example(2));
    for (size_t i = 0; i < text.size(); i++) {
        std::string changed = text;
        changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
        if (contains(checkpoint_error([&] { parse_manifest("dir/manifest.json", changed); }), "dir/manifest.json: "))
            continue;
        FAIL("byte " << i << " was changed, and nothing was said");
    }
    for (size_t length = 0; length < text.size(); length++)
        if (!contains(checkpoint_error([&] { parse_manifest("dir/manifest.json", text.substr(0, length)); }),
                      "manifest"))
            FAIL("cut after " << length << " bytes, and nothing was said");
}

TEST_CASE("manifest: impossible contents are refused") {
    const auto says = [](const char* words, const std::function<void(nlohmann::ordered_json&)>& change) {
        const std::string message = refusal(change);
        CAPTURE(message);
        CHECK(contains(message, words));
        CHECK(contains(message, "dir/manifest.json: "));
    };
    says("format version 2", [](auto& m) { m["version"] = 2; });
    says("is not a checkpoint manifest", [](auto& m) { m["format"] = "something"; });
    for (const char* name : {"version", "run_id", "step", "world", "zero", "config", "versions", "run", "state",
                             "tensors", "chunk_bytes", "files"})
        says(name, [&](auto& m) { m.erase(name); });
    says("\"step\"", [](auto& m) { m["step"] = -1; });
    says("\"step\"", [](auto& m) { m["step"] = 18446744073709551615u; });
    says("\"step\"", [](auto& m) { m["step"] = 1.5; });
    says("\"world\"", [](auto& m) { m["world"] = 0; });
    says("3 ranks", [](auto& m) { m["world"] = 3; });
    says("impossible shape", [](auto& m) { m["tensors"][0]["shape"] = {4294967296u, 4294967296u}; });
    says("impossible shape", [](auto& m) { m["tensors"][0]["shape"] = {0}; });
    says("lists tensor wte twice", [](auto& m) { m["tensors"].push_back(m["tensors"][0]); });
    says("lists wte.m twice", [](auto& m) { m["tensors"][0]["parts"].push_back("m"); });
    for (const char* name : {"../rank_00000.safetensors", "/etc/passwd", "rank_00001.safetensors", "", "."})
        says("where rank_00000.safetensors belongs", [&](auto& m) { m["files"][0]["name"] = name; });
    says("\"bytes\"", [](auto& m) { m["files"][0]["bytes"] = 0; });
    says("1 checksums for the 9000000 bytes", [](auto& m) { m["files"][0]["bytes"] = 9000000; });
    says("16 hexadecimal digits", [](auto& m) { m["files"][0]["checksums"][0] = "0X34"; });
    says("16 hexadecimal digits", [](auto& m) { m["files"][0]["checksums"][0] = 7; });
    says("no file holds wte.master at element 0", [](auto& m) { m["files"][0]["slices"].erase(0); });
    says("two files hold", [](auto& m) { m["files"][1]["slices"][0]["start"] = 16; });
    says("no file holds", [](auto& m) { m["files"][1]["slices"][0]["start"] = 18; });
    says("its slices end", [](auto& m) { m["files"][1]["slices"][0]["count"] = 99; });
    says("\"count\"", [](auto& m) { m["files"][1]["slices"][0]["count"] = 0; });
    says("which is not listed", [](auto& m) { m["files"][0]["slices"][0]["tensor"] = "other"; });
    says("twice", [](auto& m) { m["files"][0]["slices"].push_back(m["files"][0]["slices"][0]); });
    says("is not a list", [](auto& m) { m["files"] = 3; });
    says("is not an object", [](auto& m) { m["state"] = nullptr; });
}
