// Products whose library refuses algorithms: the order of attempts, the choice that is kept, and emulation as the last.
#include "llmc/linear/product_support.h"

#include <doctest/doctest.h>

#include <set>
#include <stdexcept>
#include <vector>

using namespace llmc;

namespace {

// A library that refuses some of its algorithms, and a count of products made by other means.
struct Library {
    std::set<int> refused;
    std::vector<int> asked;
    int emulated = 0;

    bool make(ProductWay& way) {
        return way.make(
            [&](int i) {
                asked.push_back(i);
                return !refused.contains(i);
            },
            [&] { emulated++; });
    }
};

}  // namespace

TEST_CASE("product way: the first algorithm that runs is kept") {
    ProductWay way(8, true);
    Library library{{0, 1, 2}, {}};
    CHECK(library.make(way));
    CHECK(library.asked == std::vector<int>{0, 1, 2, 3});
    CHECK(way.algorithm() == 3);
    library.refused.clear();  // a refused algorithm is not tried again, because its bits would differ
    library.asked.clear();
    CHECK(library.make(way));
    CHECK(library.asked == std::vector<int>{3});
    CHECK_FALSE(way.emulated());
    CHECK(library.emulated == 0);
}

TEST_CASE("product way: emulation comes after the last algorithm, and stays") {
    for (const int proposed : {0, 1, 8}) {
        CAPTURE(proposed);
        ProductWay way(proposed, true);
        Library library{{0, 1, 2, 3, 4, 5, 6, 7}, {}};
        CHECK(library.make(way));
        CHECK(library.asked.size() == static_cast<size_t>(proposed));
        CHECK(way.emulated());
        CHECK(library.emulated == 1);
        CHECK(library.make(way));
        CHECK(library.asked.size() == static_cast<size_t>(proposed));
        CHECK(library.emulated == 2);
    }
}

TEST_CASE("product way: without emulation there is an end") {
    ProductWay way(2, false);
    Library library{{0, 1}, {}};
    CHECK_FALSE(library.make(way));
    CHECK(library.asked == std::vector<int>{0, 1});
    CHECK_FALSE(way.emulated());
    CHECK(library.emulated == 0);
    ProductWay none;
    CHECK_FALSE(library.make(none));
}

TEST_CASE("product way: an algorithm that ran and is refused later is not replaced by one with other bits") {
    ProductWay way(4, true);
    Library library{{0}, {}};
    CHECK(library.make(way));
    library.refused = {0, 1};
    library.asked.clear();
    CHECK_FALSE(library.make(way));
    CHECK(library.asked == std::vector<int>{1});
    CHECK_FALSE(way.emulated());
    CHECK(library.emulated == 0);
}

TEST_CASE("product way: an error is not a refusal") {
    ProductWay way(4, true);
    CHECK_THROWS_AS(way.make([](int) -> bool { throw std::runtime_error("the device is lost"); }, [] {}),
                    std::runtime_error);
    CHECK(way.algorithm() == 0);
    CHECK_FALSE(way.emulated());
}
