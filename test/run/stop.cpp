// Signals ask for a stop; a second SIGINT ends the process. Each case runs in a child process.
// build: threads
#include "llmc/run/stop.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "llmc/base/clock.h"
#include "llmc/comm/comm.h"
#include "llmc/data/order.h"
#include "llmc/log/run_directory.h"
#include "llmc/train/config.h"
#include "test/helpers.h"

using namespace llmc;

namespace {

// The exit status of a child that runs `body` with handlers installed and a silent stderr; `body` returns the status.
template <class Body>
int in_child(Body body) {
    const pid_t child = fork();
    if (child == 0) {
        if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(99);
        install_signal_handlers();
        _exit(body());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// ThreadSanitizer delays signals until the next blocking call, so two in a row may arrive together.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSignalsAreLate = true;
#else
constexpr bool kSignalsAreLate = false;
#endif

}  // namespace

TEST_CASE("signals: the first one asks for a stop") {
    const int stopping[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    const std::string names[] = {"SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"};
    for (int i = 0; i < 5; i++) {
        CHECK(in_child([&] {
                  if (stop_requested() || stop_signal_name() != std::string("none")) return 1;
                  raise(stopping[i]);
                  if (!stop_requested()) return 2;
                  return stop_signal_name() == names[i] ? 0 : 3;
              }) == 0);
    }
}

TEST_CASE("signals: work stops before its next piece, and Ctrl-C names that piece") {
    const Comm comm = Comm::self();
    CHECK(in_child([&] {
              StopPoll poll(comm);
              for (int piece = 0; piece < 20; piece++)
                  if (poll()) return 1;
              raise(SIGTERM);
              return poll() ? 7 : 2;
          }) == 7);
    StopPoll late(comm, monotonic_seconds() - 1);
    CHECK(late());

    int ends[2];
    REQUIRE(pipe(ends) == 0);
    CHECK(in_child([&] {
              dup2(ends[1], STDERR_FILENO);
              const StopWaitsFor validation("this batch of the validation");
              { const StopWaitsFor inner("this token of the sample"); }
              raise(SIGINT);
              return 0;
          }) == 0);
    char text[200] = "";
    REQUIRE(read(ends[0], text, sizeof text - 1) > 0);
    CHECK(std::string(text) == "\nstopping after this batch of the validation (Ctrl-C again stops at once)\n");
    close(ends[0]);
    close(ends[1]);
}

TEST_CASE("signals: a second one ends the process, unless it may be the first again" * doctest::skip(kSignalsAreLate)) {
    CHECK(in_child([] {
              raise(SIGINT);
              raise(SIGINT);
              return 0;
          }) == 130);
    CHECK(in_child([] {
              raise(SIGTERM);
              raise(SIGTERM);
              raise(SIGINT);  // the first of its kind
              return stop_signal_name() == std::string("SIGTERM") ? 7 : 8;
          }) == 7);
    CHECK(in_child([] {
              raise(SIGUSR1);
              sleep(3);
              raise(SIGTERM);
              return 0;
          }) == 128 + SIGTERM);
}

TEST_CASE("signals: a pipe that nobody reads and a file that grows too large are errors of the call that writes") {
    CHECK(in_child([] {
              raise(SIGPIPE);
              raise(SIGXFSZ);
              return stop_requested() ? 1 : 7;
          }) == 7);
}

TEST_CASE("signals: SIGHUP stays ignored under nohup") {
    CHECK(in_child([] {
              signal(SIGHUP, SIG_IGN);
              install_signal_handlers();
              raise(SIGHUP);
              return stop_requested() ? 1 : 7;
          }) == 7);
}

// ---- "decay now" ----------------------------------------------------------------------------------------------------

TEST_CASE("decay file: what is a request, what is refused, and what is not touched") {
    const test::TemporaryDirectory base;
    const RunDirectory directory(base.path.string());
    const std::string path = base / "decay";
    TrainerConfig config;
    config.schedule.kind = ScheduleKind::wsd;
    config.schedule.steps = 100;
    const TrainSources one = sources_from_text("a"), early = sources_from_text("a:1@0;b:1@40%"),
                       late = sources_from_text("a:1@0;b:1@60%"), step = sources_from_text("a:1@0;b:1@60");
    struct Example {
        const char* text;
        const TrainSources& sources;
        int64_t first, second;  // answers of two looks after step 50
        bool stays;
    };
    constexpr int64_t kNone = DecayFile::kNone;
    for (const Example& example : {Example{"20\n", one, 20, 20, true},
                                   {"20", one, kNone, 20, true},  // it may have become 200
                                   {"20 \r\n", one, 20, 20, true},
                                   {"20\n", early, 20, 20, true},
                                   {"20\n", step, 20, 20, true},
                                   {"20\n", late, kNone, kNone, false},  // 60 % of another length
                                   {"0\n", one, kNone, kNone, false},
                                   {"51\n", one, kNone, kNone, false},
                                   {"51", one, kNone, kNone, false},
                                   {"soon\n", one, kNone, kNone, true},
                                   {"soon", one, kNone, kNone, true},
                                   {"20\n30\n", one, kNone, kNone, true},
                                   {"", one, kNone, kNone, true}}) {
        CAPTURE(example.text);
        test::make_file(path, example.text);
        DecayFile file(config, example.sources, directory, 0);
        CHECK(file.look(50) == example.first);
        if (example.first != kNone) continue;
        CHECK(file.look(50) == example.second);
        CHECK(std::filesystem::exists(path) == example.stays);
    }
    // Text that grows between two looks counts when it is complete. A link is no request.
    test::make_file(path, "2");
    DecayFile file(config, one, directory, 0);
    CHECK(file.look(50) == kNone);
    test::make_file(path, "20");
    CHECK(file.look(50) == kNone);
    CHECK(file.look(50) == 20);
    file.forget();
    CHECK(!std::filesystem::exists(path));
    std::filesystem::create_symlink(test::make_file(base / "elsewhere", "20\n"), path);
    DecayFile other(config, one, directory, 0);
    for (int i = 0; i < 2; i++) CHECK(other.look(50) == kNone);
    other.forget();
    CHECK(std::filesystem::is_symlink(path));
    CHECK(test::read_file(base / "elsewhere") == "20\n");
}
