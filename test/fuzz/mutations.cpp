// Files with bytes changed at random, in every test run and under AddressSanitizer. What is looked for is a crash, a
// hang, a wild allocation, or an exception that is no Error; FUZZ_CASES says how many files of each kind.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "test/fuzz/targets.h"

using namespace llmc::test;

namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return random() % n; }

// In one of the ways in which files break, mostly near the beginning, where headers are; or, for text, in a way that
// leaves it a text.
std::string broken(std::string bytes, Random& random) {
    static const char* const words[] = {"-1",   "0",   "18446744073709551615", "1e999", "null", "{}", "[]",
                                        "\"\"", "../", "99999999999"};
    for (size_t changes = 1 + below(random, 4); changes > 0 && !bytes.empty(); changes--) {
        const size_t at = below(random, below(random, 4) == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 64));
        const size_t any = below(random, bytes.size()), length = std::min(bytes.size() - any, 1 + below(random, 40));
        switch (below(random, 8)) {
            case 0:
                bytes[at] = static_cast<char>(random());
                break;
            case 1:
                bytes[any] = static_cast<char>(bytes[any] ^ (1 << below(random, 8)));
                break;
            case 2:
                bytes.erase(any, length);
                break;
            case 3:
                bytes.insert(any, bytes.substr(below(random, bytes.size()), length));
                break;
            case 4:
                bytes.resize(any);
                break;
            case 5:
                bytes.insert(any, words[below(random, std::size(words))]);
                break;
            case 6:
                bytes.replace(any, length, words[below(random, std::size(words))]);
                break;
            default:
                bytes.append(length, static_cast<char>(random()));
                break;
        }
    }
    return bytes;
}

}  // namespace

TEST_CASE("fuzz: broken files end in no more than an Error") {
    const char* const wanted = std::getenv("FUZZ_CASES");
    const int cases = wanted ? std::atoi(wanted) : 400;
    for (const FuzzTarget& target : fuzz_targets()) {
        CAPTURE(target.name);
        Random random(20240520);
        for (const std::string& seed : target.seeds()) {
            target.run(seed);
            for (int i = 0; i < cases; i++) {
                const std::string bytes = broken(seed, random);
                CAPTURE(i);
                CHECK_NOTHROW(target.run(bytes));
            }
        }
    }
}
