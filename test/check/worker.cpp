// The card check's supervisor, with shell scripts as workers.
#include "llmc/check/card_check.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The findings of workers that run these commands.
Findings findings_of(const std::string& commands, double item_seconds = 20) {
    const TemporaryDirectory directory;
    const std::string program = directory.path.string() + "/worker";
    std::ofstream(program) << "#!/bin/sh\ncat > $0.request\n" << commands;
    chmod(program.c_str(), 0700);
    CheckRequest request;
    request.item_seconds = item_seconds;
    return supervise(request, program, [] {});
}
// The error of a check whose items have a limit of 0.4 s.
std::string supervised(const std::string& commands) {
    return error_of([&] { findings_of(commands, 0.4); });
}

std::string say(const std::string& line) { return "echo '" + line + "'\n"; }
const std::string kReady = say(R"({"ready":"x"})"), kDone = say(R"({"done":true})");

}  // namespace

TEST_CASE("a worker may take longer to start than for an item") {
    CHECK(supervised(kReady + kDone) == "");
    CHECK(supervised("sleep 0.8\n" + kReady + kDone) == "");
    CHECK(supervised("sleep 8\n" + kReady + kDone).find("did not end within 2 s before its first check") !=
          std::string::npos);
    CHECK(supervised(kReady + "sleep 0.8\n" + kDone).find("did not end within 0.4 s") != std::string::npos);
}

TEST_CASE("what a library prints in the worker is no report") {
    const Findings findings =
        findings_of(kReady + say("onednn_verbose,info,cpu") + say("") + say(R"({"begin":"copy"})") +
                    say(R"({"end":"copy","finding":{"family":"","problem":"wrong"}})") + kDone);
    CHECK(findings.at("copy").problem == "wrong");
}

TEST_CASE("an item or a trial that ends its worker is wrong, and the next worker goes on after it") {
    // The second worker's request has the problem of the first one, and then it is done.
    const auto lost = [](const std::string& line) {
        const std::string second = "if grep -q 'by signal 9' $0.request; then\n" + kDone + "exit\nfi\n";
        return findings_of(second + kReady + say(R"({"begin":"a"})") + line + "kill -9 $$\n").at("a");
    };
    CHECK(contains(lost("").problem, "ended its process by signal 9"));
    const Finding finding = lost(say(R"({"begin":"a","way":{"algorithm":"00ff"}})"));
    CHECK(finding.problem == "");
    REQUIRE(finding.trials.size() == 1);
    CHECK(finding.trials[0].way.algorithm == "00ff");
    CHECK(contains(finding.trials[0].problem, "ended its process by signal 9"));
}
