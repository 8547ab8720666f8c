// Readers of files that anyone may have written, as functions of bytes: whatever the bytes are, they return, or throw
// the Error of their kind, and take no more memory than the bytes can account for. test/fuzz/mutations.cpp gives them
// broken files in every test run; `make fuzz` lets libFuzzer look for better ones.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc::test {

struct FuzzTarget {
    const char* name;
    void (*run)(const std::string& bytes);
    std::vector<std::string> (*seeds)();  // files as they should be
};
const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace llmc::test
