// Child processes: their ends, their files, signals and directory, and text in both directions within a time limit.
#include "llmc/base/child.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "llmc/base/clock.h"
#include "llmc/base/text.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

static Child shell(const std::string& script, Child::Pipes pipes = Child::Pipes::both) {
    return Child({"/bin/sh", "-c", script}, pipes);
}

static constexpr double kLong = 60;  // seconds; more than a busy machine needs
static double soon() { return monotonic_seconds() + kLong; }
static double now() { return monotonic_seconds(); }

TEST_CASE("child: how it ends") {
    CHECK(shell("exit 0", Child::Pipes::none).wait(kLong) == "");
    CHECK(shell("exit 3", Child::Pipes::none).wait(kLong) == "failed with exit code 3");
    CHECK(shell("kill -9 $$", Child::Pipes::none).wait(kLong) == "was killed by signal 9");
    Child none({"no-such-program"}, Child::Pipes::none);
    CHECK(none.start_error() == ENOENT);
    CHECK(none.result() == "cannot be started: No such file or directory");
    Child endless = shell("sleep 1000 & wait");
    CHECK(endless.wait(0) == std::nullopt);
    endless.kill();
    CHECK(endless.result() == "was killed by signal 9");
    CHECK(endless.result() == "was killed by signal 9");  // as often as somebody asks
    std::string rest;
    CHECK(endless.read_all(rest, soon()));  // the whole group is gone, and nothing holds the pipe
}

TEST_CASE("child: a conversation") {
    Child cat({"cat"}, Child::Pipes::both);
    std::string line;
    CHECK(!cat.read_line(line, now()));
    const std::string large(1 << 20, 'x');  // more than a pipe holds
    for (const std::string& text : {std::string("one"), std::string("two\nthree"), std::string("\xff")}) {
        CHECK(cat.write(text + "\n", soon()));
        for (const std::string& expected : split(text, '\n')) {
            CHECK(cat.read_line(line, soon()));
            CHECK(line == expected);
        }
    }
    CHECK(!cat.write(large + large, now() + 0.01));  // nobody reads what cat writes
    CHECK(!cat.read_line(line, now() + 0.01));       // it still waits for the end of the line
    cat.close_pipes();
    CHECK(cat.wait(kLong).has_value());

    Child talker = shell("printf 'a\\nb\\nrest'");
    CHECK(talker.read_line(line, soon()));
    std::string rest;
    CHECK(talker.read_all(rest, soon()));
    CHECK(rest == "b\nrest");
    CHECK(!talker.read_line(line, soon()));
    CHECK(!talker.write(large, soon()));  // an error, not a SIGPIPE
    CHECK(shell("head -c 300000 /dev/zero").read_all(rest, soon()));
    CHECK(rest.size() == 300000);
}

TEST_CASE("child: files, signals and directory") {
    TemporaryDirectory folder;
    std::string text;
    Child where({"pwd"}, Child::Pipes::both, folder / "");
    CHECK(where.read_line(text, soon()));
    CHECK(std::filesystem::equivalent(text, folder / ""));

    const int open_here = ::open("/dev/null", O_RDONLY);
    CHECK(shell("exec ls /proc/self/fd").read_all(text, soon()));
    CHECK(text == "0\n1\n2\n3\n");  // 3 is the directory that ls reads
    ::close(open_here);

    struct sigaction ignore {
    }, before{};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, &before);
    CHECK(shell("kill -PIPE $$; exit 5", Child::Pipes::none).wait(kLong) == "was killed by signal 13");
    ::sigaction(SIGPIPE, &before, nullptr);

    Child reader = shell("cat; exit 4");
    CHECK(reader.wait(0) == std::nullopt);
    reader.close_pipes();
    CHECK(reader.wait(kLong) == "failed with exit code 4");
}

TEST_CASE("child: files that are packaged with the program") {
    CHECK(std::filesystem::is_regular_file(find_packaged("scripts/follow.py")));
    CHECK(std::filesystem::is_directory(find_packaged("data/prepare")));
    CHECK(find_packaged("scripts/none.py").empty());
}
