// A handle has one owner at a time, which releases it once; a stream ends after its work.
#include "llmc/device/owned.h"

#include <doctest/doctest.h>

#include <vector>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::vector<const int*> released;
void release(const int* handle) { released.push_back(handle); }
using Handle = Owned<const int*, release>;

}  // namespace

TEST_CASE("owned: the last owner releases a handle, once") {
    const int a = 1, b = 2;
    released.clear();
    {
        Handle first = &a, none;
        CHECK(*first == 1);
        CHECK(!none);
        Handle second = std::move(first);
        CHECK((!first && second == &a));
        second = &b;
        CHECK(released == std::vector{&a});
        std::vector<Handle> many;
        many.push_back(std::move(second));
        many.reserve(100);
        CHECK(many[0] == &b);
    }
    CHECK(released == std::vector{&a, &b});
}

TEST_CASE("owned: a stream's work is done before the memory behind it ends") {
    DeviceArray<int> device(std::vector<int>{1, 2, 3});
    const Pinned<int> host = pinned<int>(3);
    {
        const OwnedStream stream = create_stream();
        copy_to_host(host, device, 3 * sizeof(int), stream);
    }
    CHECK(host[2] == 3);
}
