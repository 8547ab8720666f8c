// The card check's supervisor, with shell scripts as workers.
#include "llmc/check/card_check.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include "llmc/model/architecture.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Returns the error that supervise() throws for a worker that runs these commands, with a limit of 0.4 s per item.
std::string supervised(const std::string& commands) {
    const TemporaryDirectory directory;
    const std::string program = directory.path.string() + "/worker";
    std::ofstream(program) << "#!/bin/sh\ncat > /dev/null\n" << commands;
    chmod(program.c_str(), 0700);
    ModelConfig model;
    model.architecture = &kGpt2;
    model.layers = 2, model.channels = 64, model.heads = model.kv_heads = 2, model.vocab = 509, model.context = 64;
    CheckRequest request;
    request.use.set_model(model);
    request.item_seconds = 0.4;
    return error_of([&] { supervise(request, program, [] {}); });
}

const std::string kReady = "echo '{\"ready\":\"x\"}'\n", kDone = "echo '{\"done\":true}'\n";

}  // namespace

TEST_CASE("a worker may take longer to start than for an item") {
    CHECK(supervised(kReady + kDone) == "");
    CHECK(supervised("sleep 0.8\n" + kReady + kDone) == "");
    CHECK(supervised("sleep 8\n" + kReady + kDone).find("did not end within 2 s before its first check") !=
          std::string::npos);
    CHECK(supervised(kReady + "sleep 0.8\n" + kDone).find("did not end within 0.4 s") != std::string::npos);
}
