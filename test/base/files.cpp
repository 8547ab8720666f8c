// Atomic files: a reader sees the old content or the new, never a part. Input files: only regular files of a sensible
// size are opened; everything else is refused at once and by name.
#include "llmc/base/files.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("files: the old content stays until the new file is whole") {
    TemporaryDirectory folder;
    const std::string path = folder / "x";
    write_synced(system_calls(), path, "first");
    {
        AtomicFile file(system_calls(), path);
        file.append("sec", 3);
        CHECK(read_file(path) == "first");
        CHECK(read_file(path + ".tmp") == "sec");
    }
    CHECK(read_file(path) == "first");
    CHECK(!std::filesystem::exists(path + ".tmp"));
    write_synced(system_calls(), path, "second");
    CHECK(read_file(path) == "second");
    CHECK(!std::filesystem::exists(path + ".tmp"));
    CHECK(contains(checkpoint_error([&] { write_synced(system_calls(), folder / "none/x", ""); }),
                   "none/x.tmp: cannot create it: No such"));
}

TEST_CASE("files: a pipe or device at PATH stays") {
    const TemporaryDirectory folder;
    const std::string path = folder / "pipe";
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(checkpoint_error([&] { write_synced(system_calls(), path, "text"); }) ==
          path + ": cannot write to it: it is a pipe, not a regular file");
    CHECK(std::filesystem::is_fifo(path));
    CHECK(!std::filesystem::exists(path + ".tmp"));
}

TEST_CASE("files: a symbolic link at PATH or PATH.tmp is replaced, not followed") {
    TemporaryDirectory folder;
    write_synced(system_calls(), folder / "thesis", "mine");
    for (const char* link : {"x.tmp", "x"}) {
        std::filesystem::create_symlink("thesis", folder / link);
        write_synced(system_calls(), folder / "x", "new");
        CHECK(read_file(folder / "thesis") == "mine");
        CHECK(read_file(folder / "x") == "new");
        CHECK(!std::filesystem::is_symlink(folder / "x"));
        std::filesystem::remove(folder / "x");
    }
}

namespace {

constexpr InputKind kKind = {"recipe", "a recipe of at most 1 MiB", ExitCode::bad_data, 1};

std::string refusal(const std::string& path) {
    return error_of([&] { read_input(path, kKind); }, ExitCode::bad_data);
}

}  // namespace

TEST_CASE("input files: a regular file is read whole") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a", text("x\0\ny", 4);
    std::ofstream(path, std::ios::binary) << text;
    std::filesystem::create_symlink(path, directory / "link");
    CHECK(read_input(path, kKind) == text);
    CHECK(read_input(directory / "link", kKind) == text);

    const InputFile file(path, kKind);
    char bytes[8] = {};
    CHECK(file.bytes() == 4);
    CHECK(file.read_at(3, bytes, sizeof bytes) == 1);
    CHECK(bytes[0] == 'y');
    CHECK(file.read_at(9, bytes, sizeof bytes) == 0);
}

TEST_CASE("input files: pipes, directories, devices and files that are too large are refused") {
    const TemporaryDirectory directory;
    const std::string pipe = directory / "pipe", large = directory / "large";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::ofstream(large).put('x');
    std::filesystem::resize_file(large, 1 << 20);
    const std::string hint = "; give a recipe of at most 1 MiB";
    CHECK(refusal(large) == "");
    std::filesystem::resize_file(large, (1 << 20) + 1);

    CHECK(refusal(pipe) == "cannot open the recipe " + pipe + ": it is a pipe, not a regular file" + hint);
    CHECK(refusal(directory.path) ==
          "cannot open the recipe " + directory.path.string() + ": it is a directory, not a regular file" + hint);
    CHECK(refusal("/dev/zero") == "cannot open the recipe /dev/zero: it is a device, not a regular file" + hint);
    CHECK(refusal(directory / "none") ==
          "cannot open the recipe " + (directory / "none") + ": No such file or directory" + hint);
    CHECK(refusal(large) ==
          "cannot open the recipe " + large + ": it has 1048577 bytes, and the limit is 1 MiB" + hint);
}

TEST_CASE("files: at the limit of open files, the message names the limit") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a", limit = ": Too many open files; raise this shell's limit (ulimit -n)";
    std::ofstream(path).put('x');
    const auto error = [](const auto& call) {
        const NoMoreFiles no_more_files;
        return error_of(call, ExitCode::no_resources);
    };
    CHECK(error([&] { read_input(path, kKind); }) == "cannot open the recipe " + path + limit);
    CHECK(error([&] { write_synced(system_calls(), path, "y"); }) == path + ".tmp: cannot create it" + limit);
    CHECK(error([&] { names_in(directory.path); }) == "cannot list " + directory.path.string() + limit);
    CHECK(refusal(path) == "");
    CHECK(reason_of(ENFILE) == "Too many open files in system; raise this machine's limit (sysctl fs.file-max)");
}

TEST_CASE("input files: a Git LFS pointer is refused and named") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a", first = "version https://git-lfs.github.com/spec/v1";
    const struct {
        const char* what;
        std::string content;
        bool pointer;
    } table[] = {
        {"a pointer", first + "\noid sha256:" + std::string(64, '0') + "\nsize 548105171\n", true},
        {"lines end with CRLF", first + "\r\nsize 1\r\n", true},
        {"only the first line", first, true},
        {"another version of the specification", "version https://git-lfs.github.com/spec/v2\nsize 1\n", false},
        {"text that quotes one", "> " + first + "\n", false},
        {"cut off", first.substr(0, first.size() - 1), false},
        {"empty", "", false},
    };
    for (const auto& row : table) {
        CAPTURE(row.what);
        std::ofstream(path, std::ios::binary) << row.content;
        CHECK(refusal(path) == (row.pointer ? "cannot open the recipe " + path +
                                                  ": it is a Git LFS pointer, not the file itself; fetch the file with "
                                                  "`git lfs pull`; give a recipe of at most 1 MiB"
                                            : ""));
    }
}
