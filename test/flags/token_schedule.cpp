// Stages of --batch-schedule and --seq-schedule: the tokens of a step and of all steps so far, and invalid texts.
#include "llmc/flags/token_schedule.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("token schedule: tokens of a step, of all steps up to it, and steps that tokens suffice for") {
    for (const char* text : {"off", "3:2", "3:2,5:1,6:4"}) {
        CAPTURE(text);
        const TokenSchedule batches(batch_stages_from_text(text), 7);
        std::vector<int64_t> expected;
        for (const auto& [tokens, steps] : batches.stages()) expected.insert(expected.end(), steps, tokens);
        const size_t staged = expected.size();
        expected.resize(12, 7);
        int64_t until = 0;
        for (int64_t step = 1; step <= 12; step++) {
            CAPTURE(step);
            const int64_t tokens = expected[static_cast<size_t>(step) - 1];
            CHECK(batches.tokens_of(step) == tokens);
            CHECK(batches.tokens_until(step - 1) == until);
            CHECK(batches.grows_after(step - 1) == (static_cast<size_t>(step) <= staged));
            for (int64_t left = 0; left < tokens; left++) CHECK(batches.steps_within(until + left) == step - 1);
            until += tokens;
        }
    }
}

TEST_CASE("token schedule: texts that are none") {
    for (const char* text :
         {"", "on", "3", "3:", ":3", "3:2,", ",3:2", "3:2,3:1", "5:2,3:1", "0:2", "3:0", "-3:2", "3:2 ", "3:2x",
          "3:2:1", "3.5:2", "300000000:1", "1:300000000", "99999999999999999999:1"}) {
        CAPTURE(text);
        const std::string message = error_of([&] { batch_stages_from_text(text); }, ExitCode::bad_flags);
        CHECK(message.starts_with(std::string("--batch-schedule ") + text + ": "));
        CHECK_THROWS_AS(seq_stages_from_text(text), Error);
    }
}
