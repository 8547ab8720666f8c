// Runs a family's specifications (specifications/specifications.h) at the shapes of its tests.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "test/kernel_test.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::test {

// Those whose names `chosen` accepts. LLMC_SPECIFICATION=NAME: of these, the one of that name; =list: prints the names.
void check_specifications(void (*add_tests)(check::Items&), bool (*chosen)(const std::string& name) = nullptr);
// True if no test had the specification that LLMC_SPECIFICATION asks for.
bool specification_is_missing();

template <class Real>
bool all_nan(const std::vector<Real>& values, size_t begin, size_t end) {
    return std::all_of(values.begin() + static_cast<std::ptrdiff_t>(begin),
                       values.begin() + static_cast<std::ptrdiff_t>(end),
                       [](Real x) { return std::isnan(to_float(x)); });
}

}  // namespace llmc::test
