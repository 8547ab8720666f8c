// Runs snippets that break or keep a rule of sm_90's instructions.
#pragma once
#include "dev/virtual_gpu/test/rules.h"

namespace virtual_gpu::test {

const Shape kOneThread{{1, 1, 1}, {1, 1, 1}};

// Waits for a phase of the mbarrier `bar`.
inline std::string wait(const std::string& parity) {
    return ptx("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], $1, 1000; @!p bra W; } ", parity);
}

inline void check(const std::vector<Rule>& rules, const std::string& declarations,
                  const std::vector<uint64_t>& parameters = {}, const Shape& usual = {}) {
    const auto run = [&](const std::string& snippet, const Shape& shape) {
        return fault_of([&] { run_snippet(snippet, parameters, shape, declarations); });
    };
    check_rules(rules, run, usual);
}

}  // namespace virtual_gpu::test
