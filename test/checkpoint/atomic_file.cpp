#include "llmc/checkpoint/atomic_file.h"

#include <doctest/doctest.h>

#include "test/checkpoint/checkpoint_test_util.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("atomic_file: what was there stays until the new file is whole") {
    TemporaryFolder folder;
    const std::string path = folder.file("x");
    write_atomically(path, "first");
    {
        AtomicFile file(path);
        file.write("sec", 3);
        CHECK(read_bytes(path) == "first");
        CHECK(read_bytes(path + ".tmp") == "sec");
    }
    CHECK(read_bytes(path) == "first");
    CHECK(!std::filesystem::exists(path + ".tmp"));
    write_atomically(path, "second");
    CHECK(read_bytes(path) == "second");
    CHECK(!std::filesystem::exists(path + ".tmp"));
    CHECK(
        mentions(error_of([&] { write_atomically(folder.file("none/x"), ""); }), "none/x: cannot create it: No such"));
}
