// The targets under libFuzzer: build/fuzz/fuzz TARGET CORPUS [libFuzzer's flags]. The corpus begins with files as they
// should be.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "test/fuzz/targets.h"

static const llmc::test::FuzzTarget* target = nullptr;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
    for (const auto& candidate : llmc::test::fuzz_targets())
        if (*argc >= 3 && std::string((*argv)[1]) == candidate.name) target = &candidate;
    if (!target) {
        std::fprintf(stderr, "usage: %s TARGET CORPUS [FLAGS]; targets:", (*argv)[0]);
        for (const auto& candidate : llmc::test::fuzz_targets()) std::fprintf(stderr, " %s", candidate.name);
        std::fprintf(stderr, "\n");
        std::exit(2);
    }
    const std::filesystem::path corpus = (*argv)[2];
    std::filesystem::create_directories(corpus);
    int number = 0;
    for (const std::string& seed : target->seeds())
        std::ofstream(corpus / ("seed" + std::to_string(number++)), std::ios::binary) << seed;
    (*argv)[1] = (*argv)[0];  // libFuzzer sees the rest
    ++*argv, --*argc;
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    target->run({reinterpret_cast<const char*>(data), size});
    return 0;
}
