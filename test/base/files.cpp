// Atomic files: a reader sees the old content or the new, never a part.
#include "llmc/base/files.h"

#include <doctest/doctest.h>

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
