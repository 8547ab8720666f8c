// Atomic files: a reader sees the old content or the new, never a part.
#include "llmc/base/files.h"

#include <doctest/doctest.h>

#include "test/checkpoint/checkpoint_test_util.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("files: the old content stays until the new file is whole") {
    TemporaryFolder folder;
    const std::string path = folder.file("x");
    write_synced(system_calls(), path, "first");
    {
        AtomicFile file(system_calls(), path);
        file.append("sec", 3);
        CHECK(read_bytes(path) == "first");
        CHECK(read_bytes(path + ".tmp") == "sec");
    }
    CHECK(read_bytes(path) == "first");
    CHECK(!std::filesystem::exists(path + ".tmp"));
    write_synced(system_calls(), path, "second");
    CHECK(read_bytes(path) == "second");
    CHECK(!std::filesystem::exists(path + ".tmp"));
    CHECK(mentions(error_of([&] { write_synced(system_calls(), folder.file("none/x"), ""); }),
                   "none/x.tmp: cannot create it: No such"));
}
