// Checked rules, broken once and kept once: {{a||b}} in a snippet is a in the broken version and b in the version that
// keeps the rule. A snippet may contain several.
#pragma once
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {

struct Rule {
    std::string snippet;
    std::vector<std::string> message;  // required in the broken version's message
    std::optional<Shape> shape = {};   // instead of the table's
};

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

// `run` takes a snippet and its shape, and returns the message of its fault.
template <class Run>
void check_rules(const std::vector<Rule>& rules, Run run, const Shape& usual = {}) {
    for (const Rule& rule : rules) {
        const Shape shape = rule.shape.value_or(usual);
        const std::string broken = run(version(rule.snippet, false), shape);
        INFO(rule.snippet, "\nsays: ", broken);
        CHECK(!broken.empty());
        for (const std::string& part : rule.message) CHECK_MESSAGE(contains(broken, part), part);
        CHECK(run(version(rule.snippet, true), shape) == "");
    }
}

}  // namespace virtual_gpu::test
