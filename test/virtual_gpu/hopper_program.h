// Runs snippets that break or keep a rule of sm_90's instructions.
#pragma once
#include "test/virtual_gpu/rules.h"

namespace virtual_gpu::test {

const Shape kOneThread{{1, 1, 1}, {1, 1, 1}};

inline void check(const std::vector<Rule>& rules, const std::string& declarations,
                  const std::vector<uint64_t>& parameters = {}) {
    check_rules(rules, [&](const std::string& snippet, const Shape& shape) {
        return fault_of([&] { run_snippet(snippet, parameters, shape, declarations); });
    });
}

}  // namespace virtual_gpu::test
