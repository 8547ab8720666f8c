// The table of what a resume may change names every flag and every fact about the data, each once.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/text.h"
#include "llmc/flags/flags.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"

using namespace llmc;

TEST_CASE("resume: every flag of a configuration and every fact about the data has one rule") {
    std::map<std::string, int> rules;
    for (const ResumeRule& rule : kResumeRules)
        for (const std::string& name : words_in(rule.names)) rules[name]++;
    std::vector<std::string> compared = words_in("fingerprint tokens end_token tokenizer_hash validation");
    for (const Flag& flag : all_flags())
        if (!flag.command_line_only) compared.push_back(flag.long_name);
    for (const std::string& name : compared) {
        CAPTURE(name);
        CHECK(rules[name] == 1);
        CHECK_NOTHROW(resume_rule(name));
    }
    CHECK(rules.size() == compared.size());  // and nothing else
}

TEST_CASE("resume: kernels of an earlier run, and of earlier versions") {
    CHECK(kernels_in_use("hopper") == "hopper");
    CHECK(kernels_in_use({"gelu_fp8", "hopper_attention"}) == "hopper");
    CHECK(kernels_in_use({"layernorm_fp8", "host_norm"}) == "loops");
    CHECK(kernels_in_use({"layernorm_fp8", "gelu_fp8"}) == "portable");
    CHECK(kernels_in_use(nlohmann::ordered_json::array()) == "portable");
    CHECK(kernels_in_use(nullptr) == "");
}
