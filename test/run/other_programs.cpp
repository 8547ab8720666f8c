// llm.c's flags are answered, ours are left alone.
#include "llmc/run/other_programs.h"

#include <doctest/doctest.h>

#include "llmc/run/flags.h"

using namespace llmc;

TEST_CASE("llm.c flags: each is answered by name") {
    for (const char* flag :
         {"-y", "-nk", "-nm", "-w", "-f", "-ge", "-a", "-sl", "-sg", "-lg", "-pn", "-pr", "-pg", "-pi", "-ps", "-pf"}) {
        CAPTURE(flag);
        const auto answer = answer_llmc_flag(flag, "1");
        REQUIRE(answer);
        CHECK(answer->find(flag) == 0);
        CHECK(answer->find("llm.c") != std::string::npos);
    }
    CHECK(answer_llmc_flag("-f", "1")->find("--tf32") != std::string::npos);
    CHECK(answer_llmc_flag("-sl", "5")->find("use --skip-spikes") != std::string::npos);
    CHECK(answer_llmc_flag("-sg", "5")->find("use --skip-spikes") != std::string::npos);
}

TEST_CASE("llm.c flags: an answer names only flags that there are") {
    for (char first = 'a'; first <= 'z'; first++)
        for (char second = 'a' - 1; second <= 'z'; second++) {  // a letter alone, then with each other
            const auto answer =
                answer_llmc_flag(std::string{'-', first} + (second < 'a' ? "" : std::string{second}), "1");
            if (!answer) continue;
            CAPTURE(*answer);
            for (size_t at = answer->find("--"); at != std::string::npos; at = answer->find("--", at + 2)) {
                const size_t end = answer->find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at + 2);
                CHECK(find_flag(answer->substr(at + 2, end - at - 2)) != nullptr);
            }
        }
}

TEST_CASE("llm.c flags: -h with a number is HellaSwag, alone it is help") {
    CHECK(answer_llmc_flag("-h", "1")->find("use --hellaswag FILE") != std::string::npos);
    CHECK(!answer_llmc_flag("-h", ""));
    CHECK(!answer_llmc_flag("-h", "-b"));
}

TEST_CASE("llm.c flags: shared ones are not answered") {
    for (const char* flag :
         {"-i", "-j", "-o", "-e", "-b", "-t", "-d", "-x", "-k", "-l", "-u", "-q", "-c", "-v", "-m", "-s", "-g", "-r"}) {
        CAPTURE(flag);
        CHECK(!answer_llmc_flag(flag, "1"));
    }
}
