// Checkpoints on disk: any range is read from any number of files, and every changed byte is noticed.
#include "llmc/checkpoint/checkpoint_reader.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "state_fixture.h"

using namespace llmc;
using namespace llmc::test;
namespace fs = std::filesystem;

TEST_CASE("checkpoint: any range of any tensor, however many ranks wrote it") {
    for (const int world : {1, 2, 3, 5, 8}) {
        CAPTURE(world);
        TemporaryFolder folder;
        const CheckpointReader reader(write_checkpoint(folder.file("c"), 7, world));
        reader.verify(Verify::full);
        CHECK(holds_its_state(reader));
        for (uint64_t start = 0; start <= 35; start++)
            for (uint64_t end = start; end <= 35; end += 1 + start % 3) {
                std::vector<float> values(end - start + 1, -1.0f);
                reader.read("wte", "m", start, end - start, values.data());
                for (uint64_t i = start; i < end; i++)
                    if (values[i - start] != state_value("wte", "m", i, 7)) FAIL("element " << i << " from " << start);
                if (values.back() != -1.0f) FAIL("too much was read from " << start << " to " << end);
                reader.read("wte", "v", start, end - start, values.data());  // stored in BF16
                for (uint64_t i = start; i < end; i++)
                    if (values[i - start] != state_value("wte", "v", i, 7)) FAIL("element " << i << " from " << start);
                if (values.back() != -1.0f) FAIL("too much was read from " << start << " to " << end);
            }
        CHECK(mentions(error_of([&] { reader.read("wte", "m", 30, 6, nullptr); }), "holds no elements 30 to 36"));
        CHECK(mentions(error_of([&] { reader.read("wte", "w", 0, 1, nullptr); }), "wte.w"));
        CHECK(mentions(error_of([&] { reader.read("what", "m", 0, 1, nullptr); }), "no tensor what"));
    }
}

TEST_CASE("checkpoint: a slice has the type that the manifest says, FP32 where it says nothing") {
    TemporaryFolder folder;
    const std::string path = write_checkpoint(folder.file("c"), 7, 1);
    Manifest manifest = CheckpointReader(path).manifest();
    const std::string text = manifest_text(manifest);
    CHECK(text.find("\"dtype\": \"BF16\"") == text.rfind("\"dtype\""));
    std::vector<StateSlice>& slices = manifest.files[0].slices;
    CHECK(slices.back().name() == "wte.v");  // after wider types
    CHECK(slices.back().bytes() == 70);
    for (StateSlice& slice : slices) slice.dtype = "F32";
    const CheckpointReader other(path, manifest_text(manifest));
    CHECK(mentions(error_of([&] { other.verify(Verify::full); }),
                   "wte.v is BF16 (35), the manifest lists 35 values in F32"));
    slices[0].dtype = "F16";
    CHECK(mentions(error_of([&] { CheckpointReader(path, manifest_text(manifest)); }),
                   "rank_00000.safetensors holds wte.master in F16, where F32 or BF16 belongs"));
}

TEST_CASE("checkpoint: ranks check each other's files") {
    TemporaryFolder folder;
    const std::string path = write_checkpoint(folder.file("c"), 7, 4);
    std::string bytes = read_bytes(path + "/" + state_file_name(2));
    bytes.back() ^= 1;
    write_bytes(path + "/" + state_file_name(2), bytes);
    const CheckpointReader reader(path);
    for (size_t rank = 0; rank < 3; rank++) {
        const std::string said = error_of([&] { reader.verify(Verify::full, rank, 3); });
        CHECK((rank == 2) == mentions(said, "rank_00002.safetensors: is damaged between bytes 0 and "));
        CHECK((rank == 2) == mentions(said, "wte.v"));
    }
    CHECK_NOTHROW(reader.verify(Verify::size));
}

TEST_CASE("checkpoint: every flipped byte of every file is seen") {
    TemporaryFolder folder;
    const std::string path = write_checkpoint(folder.file("c"), 7, 2);
    for (const char* name : {"manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"}) {
        const std::string file = path + "/" + name, bytes = read_bytes(file);
        for (size_t i = 0; i < bytes.size(); i++) {
            std::string changed = bytes;
            changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
            write_bytes(file, changed);
            const std::string said = error_of([&] { CheckpointReader(path).verify(Verify::full); });
            if (!mentions(said, file + ": ")) FAIL(name << ": byte " << i << " was changed: " << said);
        }
        write_bytes(file, bytes);
    }
    CHECK_NOTHROW(CheckpointReader(path).verify(Verify::full));
}

TEST_CASE("checkpoint: files that are missing, cut, longer, or something else") {
    for (const Verify how : {Verify::size, Verify::full}) {
        TemporaryFolder folder;
        const std::string path = write_checkpoint(folder.file("c"), 7, 2), file = path + "/" + state_file_name(1);
        const std::string bytes = read_bytes(file);
        const auto said = [&] { return error_of([&] { CheckpointReader(path).verify(how); }); };
        write_bytes(file, bytes.substr(0, bytes.size() - 1));
        CHECK(mentions(said(), "rank_00001.safetensors: has "));
        write_bytes(file, bytes + "x");
        CHECK(mentions(said(), "rank_00001.safetensors: has "));
        write_bytes(file, "");
        CHECK(mentions(said(), "has 0 bytes"));
        fs::remove(file);
        CHECK(mentions(said(), "is missing"));
        write_bytes(path + "/elsewhere", bytes);
        fs::create_symlink("elsewhere", file);
        CHECK(mentions(said(), "is not a regular file"));
        fs::remove(file);
        fs::create_directory(file);
        CHECK(mentions(said(), "is not a regular file"));
    }
    TemporaryFolder folder;
    const std::string path = write_checkpoint(folder.file("c"), 7, 1);
    fs::rename(path + "/manifest.json", path + "/m");
    CHECK(mentions(error_of([&] { CheckpointReader reader(path); }), "manifest.json: cannot open it"));
    fs::create_symlink("m", path + "/manifest.json");
    CHECK(mentions(error_of([&] { CheckpointReader reader(path); }), "manifest.json: cannot open it"));
}

TEST_CASE("checkpoint: a directory holds the step that its name says") {
    TemporaryFolder folder;
    const std::string path = write_checkpoint(folder.file("c"), 7, 1), wrong = folder.file("c/step_00000099");
    fs::rename(path, wrong);
    CHECK(error_of([&] { CheckpointReader reader(wrong); }) ==
          wrong + ": holds step 7, which its name does not say; rename it to step_00000007");
    fs::rename(wrong, folder.file("c/best"));
    CHECK(CheckpointReader(folder.file("c/best")).manifest().step == 7);
}

TEST_CASE("checkpoint: a file of another manifest is not read, even unchecked") {
    TemporaryFolder folder;
    const std::string path = write_checkpoint(folder.file("c"), 7, 2);
    fs::copy_file(path + "/" + state_file_name(0), path + "/" + state_file_name(1),
                  fs::copy_options::overwrite_existing);
    float value;
    const CheckpointReader reader(path);
    CHECK(mentions(error_of([&] { reader.read("wte", "m", 34, 1, &value); }), "the manifest lists"));
}

TEST_CASE("state files: large slices come in pieces, and chunks have their own checksums") {
    TemporaryFolder folder;
    const std::vector<StateSlice> slices = {{"a", "m", 0, 5'000'000}, {"b", "m", 10, 3}};
    std::vector<float> values(5'000'000, 1.5f);
    size_t largest = 0;
    const StateFile file =
        write_state_file(system_calls(), folder.file(""), 3, slices, [&](size_t, uint64_t offset, size_t bytes) {
            largest = std::max(largest, bytes);
            return reinterpret_cast<const char*>(values.data()) + offset;
        });
    CHECK(largest == kChunkBytes);
    CHECK(file.name == "rank_00003.safetensors");
    CHECK(file.bytes == fs::file_size(folder.file(file.name)));
    CHECK(file.bytes == state_file_bytes(slices));
    const std::string bytes = read_bytes(folder.file(file.name));
    REQUIRE(file.checksums.size() == 3);
    for (size_t c = 0; c < 3; c++) {
        const std::string chunk = bytes.substr(c * kChunkBytes, kChunkBytes);
        CHECK(file.checksums[c] == checksum(chunk.data(), chunk.size()));
    }
}
