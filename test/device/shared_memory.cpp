// The rule for requesting shared memory, on cards with 99 and 227 KB per block.
#include "llmc/device/shared_memory.h"

#include <doctest/doctest.h>

#include <vector>

using namespace llmc;

namespace {

constexpr size_t KB = 1024;

SharedMemory fresh_kernel(size_t static_bytes, size_t block_limit) {
    return {static_bytes, kSharedWithoutAsking - static_bytes, block_limit};
}

}  // namespace

TEST_CASE("shared memory: static arrays count towards the 48 KB that need no request") {
    std::vector<size_t> asked;
    const auto ask = [&](size_t bytes) { asked.push_back(bytes); };
    SharedMemory plain = fresh_kernel(0, 227 * KB), with_arrays = fresh_kernel(8 * KB, 227 * KB);
    plain.provide(48 * KB, ask);
    with_arrays.provide(40 * KB, ask);
    CHECK(asked.empty());
    plain.provide(48 * KB + 16, ask);
    with_arrays.provide(40 * KB + 16, ask);
    CHECK(asked == std::vector<size_t>{48 * KB + 16, 40 * KB + 16});
}

TEST_CASE("shared memory: a limit is raised, never lowered") {
    std::vector<size_t> asked;
    const auto ask = [&](size_t bytes) { asked.push_back(bytes); };
    SharedMemory kernel = fresh_kernel(KB, 227 * KB);
    for (const size_t bytes : {100 * KB, 60 * KB, 100 * KB, 10 * KB, 120 * KB}) kernel.provide(bytes, ask);
    CHECK(asked == std::vector<size_t>{100 * KB, 120 * KB});
    SharedMemory granted_before{KB, 150 * KB, 227 * KB};  // granted to an earlier launch
    granted_before.provide(149 * KB, ask);
    CHECK(asked.size() == 2);
}

TEST_CASE("shared memory: static and dynamic bytes together must fit the card") {
    CHECK(fresh_kernel(8 * KB, 99 * KB).fits(91 * KB));
    CHECK(!fresh_kernel(8 * KB, 99 * KB).fits(91 * KB + 1));
    CHECK(fresh_kernel(8 * KB, 227 * KB).fits(219 * KB));
    CHECK(!fresh_kernel(0, 227 * KB).fits(227 * KB + 1));
}
