// Rules of sm_90's instructions, broken once: as in ptx_checks.cpp, {{a||b}} in a snippet is a in the broken version
// and b in the one where the rule is kept; there may be several.
#pragma once
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "test/virtual_gpu/ptx_program.h"

namespace virtual_gpu::test {

struct HopperRule {
    std::string snippet;
    std::vector<std::string> message;
    Shape shape = {};
};
const Shape kOneThread{{1, 1, 1}, {1, 1, 1}};

inline std::string version(std::string snippet, bool kept) {
    for (size_t open; (open = snippet.find("{{")) != std::string::npos;) {
        const size_t bar = snippet.find("||", open), close = snippet.find("}}", bar);
        REQUIRE(close != std::string::npos);
        const std::string chosen =
            kept ? snippet.substr(bar + 2, close - bar - 2) : snippet.substr(open + 2, bar - open - 2);
        snippet = snippet.substr(0, open) + chosen + snippet.substr(close + 2);
    }
    return snippet;
}

inline void check(const std::vector<HopperRule>& rules, const std::string& declarations,
                  const std::vector<uint64_t>& parameters = {}) {
    for (const HopperRule& rule : rules) {
        const auto message = [&](bool kept) {
            return fault_of([&] { run_snippet(version(rule.snippet, kept), parameters, rule.shape, declarations); });
        };
        const std::string broken = message(false);
        INFO(rule.snippet, "\nsays: ", broken);
        CHECK(!broken.empty());
        for (const std::string& part : rule.message) CHECK_MESSAGE(contains(broken, part), part);
        CHECK(message(true) == "");
    }
}

}  // namespace virtual_gpu::test
