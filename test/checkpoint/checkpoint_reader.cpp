// Checkpoints on disk: any range is read from any number of files, and every changed byte is noticed.
#include "llmc/checkpoint/checkpoint_reader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>

#include "state_fixture.h"

using namespace llmc;
using namespace llmc::test;
namespace fs = std::filesystem;

TEST_CASE("checkpoint: reads any range of any tensor, whatever the number of ranks that wrote it") {
    for (const int world : {1, 2, 3, 5, 8}) {
        CAPTURE(world);
        TemporaryDirectory folder;
        const CheckpointReader reader(write_checkpoint(folder / "c", 7, world));
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
        CHECK(
            contains(checkpoint_error([&] { reader.read("wte", "m", 30, 6, nullptr); }), "holds no elements 30 to 36"));
        CHECK(contains(checkpoint_error([&] { reader.read("wte", "w", 0, 1, nullptr); }), "wte.w"));
        CHECK(contains(checkpoint_error([&] { reader.read("what", "m", 0, 1, nullptr); }), "no tensor what"));
    }
}

TEST_CASE("checkpoint: a slice has the type in the manifest, FP32 if there is none") {
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 1);
    Manifest manifest = CheckpointReader(path).manifest();
    const std::string text = manifest_text(manifest);
    CHECK(text.find("\"dtype\": \"BF16\"") == text.rfind("\"dtype\""));
    std::vector<StateSlice>& slices = manifest.files[0].slices;
    CHECK(slices.back().name() == "wte.v");  // after wider types
    CHECK(slices.back().bytes() == 70);
    for (StateSlice& slice : slices) slice.dtype = "F32";
    const CheckpointReader other(path, manifest_text(manifest));
    CHECK(contains(checkpoint_error([&] { other.verify(Verify::full); }),
                   "wte.v is BF16 (35), the manifest lists 35 values in F32"));
    slices[0].dtype = "F16";
    CHECK(contains(checkpoint_error([&] { CheckpointReader(path, manifest_text(manifest)); }),
                   "rank_00000.safetensors holds wte.master in F16, where F32 or BF16 belongs"));
}

TEST_CASE("checkpoint: ranks check each other's files") {
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 4);
    std::string bytes = read_file(path + "/" + state_file_name(2));
    bytes.back() ^= 1;
    make_file(path + "/" + state_file_name(2), bytes);
    const CheckpointReader reader(path);
    for (size_t rank = 0; rank < 3; rank++) {
        const std::string said = checkpoint_error([&] { reader.verify(Verify::full, rank, 3); });
        CHECK((rank == 2) == contains(said, "rank_00002.safetensors: is damaged between bytes 0 and "));
        CHECK((rank == 2) == contains(said, "wte.v"));
    }
    CHECK_NOTHROW(reader.verify(Verify::size));
}

TEST_CASE("checkpoint: the error names the first of several damaged chunks, whichever thread checks it") {
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 1), file = path + "/" + state_file_name(0);
    const std::string bytes = read_file(file);
    Manifest manifest = CheckpointReader(path).manifest();
    manifest.chunk_bytes = 8;
    StateFile& entry = manifest.files[0];
    entry.checksums.clear();
    for (size_t at = 0; at < bytes.size(); at += 8)
        entry.checksums.push_back(checksum(&bytes[at], std::min<size_t>(8, bytes.size() - at)));
    const CheckpointReader reader(path, manifest_text(manifest));
    int signs = 0;
    reader.verify(Verify::full, 0, 1, [&, caller = std::this_thread::get_id()] {
        signs++;
        CHECK(std::this_thread::get_id() == caller);
    });
    CHECK(signs <= std::ssize(entry.checksums));
    // Ranks share the chunks of a single file: each is checked by one of them, and all have about as many.
    for (const size_t ranks : {size_t{3}, size_t{7}, 2 * entry.checksums.size()}) {
        std::vector<size_t> found(ranks);
        for (size_t c = 0; c < entry.checksums.size(); c++) {
            std::string changed = bytes;
            changed[8 * c] ^= 1;
            make_file(file, changed);
            for (size_t rank = 0; rank < ranks; rank++)
                found[rank] += !checkpoint_error([&] { reader.verify(Verify::full, rank, ranks); }).empty();
        }
        const auto [least, most] = std::minmax_element(found.begin(), found.end());
        CHECK(std::accumulate(found.begin(), found.end(), size_t{0}) == entry.checksums.size());
        CHECK(*most - *least <= 1);
    }
    for (size_t first = 0; first < entry.checksums.size(); first++) {
        std::string changed = bytes;
        for (size_t at = 8 * first; at < bytes.size(); at += 8) changed[at] ^= 1;
        make_file(file, changed);
        const auto late = [&] {  // the other threads fail first
            if (first == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        };
        CHECK(contains(checkpoint_error([&] { reader.verify(Verify::full, 0, 1, late); }),
                       fmt::format("damaged between bytes {} and", 8 * first)));
    }
}

TEST_CASE("checkpoint: every flipped byte of every file is detected") {
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 2);
    for (const char* name : {"manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"}) {
        const std::string file = path + "/" + name, bytes = read_file(file);
        for (size_t i = 0; i < bytes.size(); i++) {
            std::string changed = bytes;
            changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
            make_file(file, changed);
            const std::string said = checkpoint_error([&] { CheckpointReader(path).verify(Verify::full); });
            if (!contains(said, file + ": ")) FAIL(name << ": byte " << i << " was changed: " << said);
        }
        make_file(file, bytes);
    }
    CHECK_NOTHROW(CheckpointReader(path).verify(Verify::full));
}

TEST_CASE("checkpoint: files that are missing, cut, longer, or something else") {
    for (const Verify how : {Verify::size, Verify::full}) {
        TemporaryDirectory folder;
        const std::string path = write_checkpoint(folder / "c", 7, 2), file = path + "/" + state_file_name(1);
        const std::string bytes = read_file(file);
        const auto said = [&] { return checkpoint_error([&] { CheckpointReader(path).verify(how); }); };
        make_file(file, bytes.substr(0, bytes.size() - 1));
        CHECK(contains(said(), "rank_00001.safetensors: has "));
        make_file(file, bytes + "x");
        CHECK(contains(said(), "rank_00001.safetensors: has "));
        make_file(file, "");
        CHECK(contains(said(), "has 0 bytes"));
        fs::remove(file);
        CHECK(contains(said(), "is missing"));
        make_file(path + "/elsewhere", bytes);
        fs::create_symlink("elsewhere", file);
        CHECK(contains(said(), "is not a regular file"));
        fs::remove(file);
        fs::create_directory(file);
        CHECK(contains(said(), "is not a regular file"));
    }
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 1);
    fs::rename(path + "/manifest.json", path + "/m");
    const auto said = [&] { return checkpoint_error([&] { CheckpointReader reader(path); }); };
    CHECK(contains(said(), "cannot open the manifest " + path + "/manifest.json: No such file or directory"));
    fs::create_symlink("m", path + "/manifest.json");
    CHECK(contains(said(), "cannot open the manifest " + path + "/manifest.json: Too many levels of symbolic links"));
}

TEST_CASE("checkpoint: a directory holds the step that its name says") {
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 1), wrong = folder / "c/step_00000099";
    fs::rename(path, wrong);
    CHECK(checkpoint_error([&] { CheckpointReader reader(wrong); }) ==
          wrong + ": holds step 7, which its name does not say; rename it to step_00000007");
    fs::rename(wrong, folder / "c/best");
    CHECK(CheckpointReader(folder / "c/best").manifest().step == 7);
}

TEST_CASE("checkpoint: a file of another manifest is not read, even unchecked") {
    TemporaryDirectory folder;
    const std::string path = write_checkpoint(folder / "c", 7, 2);
    fs::copy_file(path + "/" + state_file_name(0), path + "/" + state_file_name(1),
                  fs::copy_options::overwrite_existing);
    float value;
    const CheckpointReader reader(path);
    CHECK(contains(checkpoint_error([&] { reader.read("wte", "m", 34, 1, &value); }), "the manifest lists"));
}

TEST_CASE("state files: large slices come in pieces, and chunks have their own checksums") {
    TemporaryDirectory folder;
    const std::vector<StateSlice> slices = {{"a", "m", 0, 5'000'000}, {"b", "m", 10, 3}};
    std::vector<float> values(5'000'000, 1.5f);
    size_t largest = 0;
    const StateFile file =
        write_state_file(system_calls(), folder / "", 3, slices, [&](size_t, uint64_t offset, size_t bytes) {
            largest = std::max(largest, bytes);
            return reinterpret_cast<const char*>(values.data()) + offset;
        });
    CHECK(largest == kChunkBytes);
    CHECK(file.name == "rank_00003.safetensors");
    CHECK(file.bytes == fs::file_size(folder / file.name));
    const std::string bytes = read_file(folder / file.name);
    REQUIRE(file.checksums.size() == 3);
    for (size_t c = 0; c < 3; c++) {
        const std::string chunk = bytes.substr(c * kChunkBytes, kChunkBytes);
        CHECK(file.checksums[c] == checksum(chunk.data(), chunk.size()));
    }
}
