// Suites of tests that scripts/test.sh leaves out if they take long and similar tests have shown the same:
//
//   TEST_CASE("name" * doctest::test_suite(kOnce)) { ... }
//
// dev/soak.sh runs all of them.
#pragma once

namespace llmc::test {

// All values or combinations of something, of which another test has the important ones: only in dev/soak.sh.
constexpr const char* kSoak = "soak";
// Long, and independent of the order of threads and streams: run once, only with --all, and under no sanitizer.
constexpr const char* kOnce = "once";
// Long under sanitizers, which see the same code in other tests.
constexpr const char* kNotUnderSanitizers = "not under sanitizers";

// Tests of test_ranks --training that only run with --all.
constexpr const char* kTrainingLong = "training, long";

}  // namespace llmc::test
