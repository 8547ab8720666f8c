// The rule for requesting shared memory, on cards with 99 and 227 KB per block.
#include "llmc/device/shared_memory.h"

#include <doctest/doctest.h>

using namespace llmc;

namespace {

constexpr size_t KB = 1024;

SharedMemory fresh_kernel(size_t static_bytes, size_t block_limit) {
    return {static_bytes, kSharedWithoutAsking - static_bytes, block_limit};
}

}  // namespace

TEST_CASE("shared memory: static arrays count towards the 48 KB that need no request") {
    const SharedMemory plain = fresh_kernel(0, 227 * KB), with_arrays = fresh_kernel(8 * KB, 227 * KB);
    CHECK(!plain.must_ask(48 * KB));
    CHECK(!with_arrays.must_ask(40 * KB));
    CHECK(plain.must_ask(48 * KB + 16));
    CHECK(with_arrays.must_ask(40 * KB + 16));
}

TEST_CASE("shared memory: a limit is raised, never lowered") {
    const SharedMemory granted_before{KB, 150 * KB, 227 * KB};  // granted to an earlier launch
    for (const size_t bytes : {10 * KB, 149 * KB, 150 * KB}) CHECK(!granted_before.must_ask(bytes));
    CHECK(granted_before.must_ask(150 * KB + 16));
}

TEST_CASE("shared memory: static and dynamic bytes together must fit the card") {
    CHECK(fresh_kernel(8 * KB, 99 * KB).fits(91 * KB));
    CHECK(!fresh_kernel(8 * KB, 99 * KB).fits(91 * KB + 1));
    CHECK(fresh_kernel(8 * KB, 227 * KB).fits(219 * KB));
    CHECK(!fresh_kernel(0, 227 * KB).fits(227 * KB + 1));
}
