// The command of --after-checkpoint: what the shell makes of it, and how commands follow each other.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "llmc/run/checkpoint_command.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const auto kUntilItEnds = [](bool runs) { return runs; };

// Runs the command for a checkpoint with this path. Returns the text that it wrote into `log`, which is $LOG.
std::string outcome(const std::string& command, const std::string& path, const std::string& log,
                    const std::string& expected) {
    std::filesystem::remove(log);
    CheckpointCommand run("export LOG=" + log + "; " + command);
    run.start(7, path);
    run.wait(kUntilItEnds);
    // A command in the background may write after the shell has ended.
    for (int i = 0; i < 1000 && read_file(log) != expected; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return read_file(log);
}

}  // namespace

TEST_CASE("--after-checkpoint: the path is the last argument of any command, and nothing else") {
    const TemporaryDirectory base;
    const std::string log = base / "log";
    const std::string path = make_file(base / "a 'b' $(touch c) \";#", "#!/bin/sh\necho run >> $LOG\n");
    std::filesystem::permissions(path, std::filesystem::perms::all);  // a path that is run by mistake would say so
    const std::string line = path + "\n";
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"echo > $LOG", line},
        {"echo a b >> $LOG  ", "a b " + line},
        {"echo > $LOG &", line},
        {"echo > $LOG & ", line},
        {"true &", ""},
        {"echo > $LOG # note", line},
        {"echo > $LOG # it's a \"note\" &", line},
        {"# a note\necho > $LOG", line},
        {"echo > $LOG\n# a note\n", line},
        {"echo > $LOG;", line},
        {"echo > $LOG\n\n", line},
        {"cd / && echo > $LOG", line},
        {"false || echo > $LOG", line},
        {"echo a'#'b \"# c\" \\# d#e > $LOG", "a#b # c # d#e " + line},
        {"echo 'a;' > $LOG", "a; " + line},
        {"echo a\\; > $LOG", "a; " + line},
        {"echo \"$#\" > $LOG", "1 " + line},
        {"f() { echo \"$1\" > $LOG; }; f", line},
        {"printf '%s\\n' \"$1\" > $LOG; true", line},
        {"cp -r -t " + (base.path / "there").string(), ""},
    };
    std::filesystem::create_directory(base / "there");
    for (const auto& [command, expected] : cases) {
        CAPTURE(command);
        CHECK(outcome(command, path, log, expected) == expected);
    }
    CHECK(std::filesystem::exists(base.path / "there" / std::filesystem::path(path).filename()));
    CHECK(!std::filesystem::exists("c"));
}

TEST_CASE("--after-checkpoint: one command at a time, and the newest checkpoint waits") {
    const TemporaryDirectory base;
    const std::string log = base / "log";
    CheckpointCommand run("f() { echo \"begin $1\" >> " + log + "; until [ -e " + (base / "go") +
                          " ]; do sleep 0.01; done; echo \"end $1\" >> " + log + "; }; f");
    using Steps = std::vector<int64_t>;
    CHECK(run.steps() == Steps{});
    run.start(1, "one");
    CHECK(run.steps() == Steps{1});
    run.start(2, "two");
    CHECK(run.steps() == Steps{1, 2});
    run.start(3, "three");
    CHECK(run.steps() == Steps{1, 3});
    while (read_file(log).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(read_file(log) == "begin one\n");
    make_file(base / "go", "");
    run.wait(kUntilItEnds);
    CHECK(read_file(log) == "begin one\nend one\nbegin three\nend three\n");
    CHECK(run.steps() == Steps{});
    run.start(4, "four");  // a command that has ended makes way
    run.wait(kUntilItEnds);
    CHECK(contains(read_file(log), "end four\n"));
}
