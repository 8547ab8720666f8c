// Suites for tests that scripts/test.sh leaves out where they take long and others of their kind have shown the same:
//
//   TEST_CASE("name" * doctest::test_suite(kOnce)) { ... }
//
// dev/soak.sh leaves out none.
#pragma once

namespace llmc::test {

// Long, and no order of threads or streams changes anything: in one way alone, and under no sanitizer.
constexpr const char* kOnce = "once";
// Long under sanitizers, which see the same code in other tests.
constexpr const char* kNotUnderSanitizers = "not under sanitizers";
// Too long under ThreadSanitizer: training, on one thread of the host.
constexpr const char* kNotUnderTsan = "not under ThreadSanitizer";

// Of test_ranks --training: left out without --all.
constexpr const char* kTrainingLong = "training, long";

}  // namespace llmc::test
