// The sample order: a permutation for every n, different for every epoch and seed, and without visible structure.
#include "llmc/data/loader.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <vector>

#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

static bool is_permutation_of(uint64_t n, uint64_t key) {
    std::vector<bool> seen(n, false);
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t value = permute(i, n, key);
        if (value >= n || seen[value]) return false;
        seen[value] = true;
    }
    return true;
}

TEST_CASE("permute is a bijection of [0, n)") {
    for (uint64_t n = 1; n <= 300; ++n)
        for (uint64_t epoch = 0; epoch < 5; ++epoch) {
            CAPTURE(n);
            CHECK(is_permutation_of(n, order_key(1337, epoch)));
        }
    for (uint64_t n : {1023u, 1024u, 1025u, 4095u, 4096u, 4097u, 65537u, 300007u}) {
        CAPTURE(n);
        CHECK(is_permutation_of(n, order_key(7, 3)));
    }
}

TEST_CASE("permute stays in range and distinct for huge n") {
    for (uint64_t n : {uint64_t{1} << 32, (uint64_t{1} << 40) + 1, (uint64_t{1} << 63) + 5, ~uint64_t{0}}) {
        std::set<uint64_t> values;
        for (uint64_t i = 0; i < 2000; ++i) values.insert(permute(i < 1000 ? i : n - 1 - i, n, order_key(1, 1)));
        CHECK(values.size() == 2000);
        CHECK(*values.rbegin() < n);
        CHECK(*values.rbegin() > n / 10 * 9);  // the whole range is used
        CHECK(*values.begin() < n / 10);
    }
}

TEST_CASE("the order differs by epoch and seed") {
    const uint64_t n = 200;
    std::set<std::vector<uint64_t>> orders;
    std::set<uint64_t> keys;
    for (uint64_t seed = 0; seed < 10; ++seed)
        for (uint64_t epoch = 0; epoch < 100; ++epoch) {
            keys.insert(order_key(seed, epoch));
            std::vector<uint64_t> order;
            for (uint64_t i = 0; i < n; ++i) order.push_back(sample_at(epoch * n + i, n, seed));
            orders.insert(order);
        }
    CHECK(keys.size() == 1000);
    CHECK(orders.size() == 1000);
}

TEST_CASE("every place gets every sample equally often over many epochs" * doctest::test_suite(kOnce)) {
    // Chi-square of place x sample counts. Its mean is the degrees of freedom and its standard deviation sqrt(2 *
    // that). The orders are fixed, so this test is deterministic.
    for (const int n : {5, 10, 33, 100}) {
        const int epochs = 400 * n;
        std::vector<double> counts(static_cast<size_t>(n) * n);
        for (int epoch = 0; epoch < epochs; ++epoch)
            for (int i = 0; i < n; ++i) ++counts[i * n + permute(i, n, order_key(1337, epoch))];
        double chi_square = 0;
        for (double count : counts) chi_square += (count - 400) * (count - 400) / 400;
        const double freedom = (n - 1.0) * (n - 1.0);
        CAPTURE(n);
        CAPTURE(chi_square);
        CHECK(std::abs(chi_square - freedom) < 4 * std::sqrt(2 * freedom));
    }
}

TEST_CASE("neighbours in the order are not neighbours in the data") {
    const uint64_t n = 100003, key = order_key(1337, 0);
    int close = 0;
    double distance = 0;
    for (uint64_t i = 0; i + 1 < n; ++i) {
        const double step =
            std::abs(static_cast<double>(permute(i, n, key)) - static_cast<double>(permute(i + 1, n, key)));
        distance += step / static_cast<double>(n);
        close += step < 2;
    }
    CHECK(close < 20);  // 2 expected
    CHECK(distance / static_cast<double>(n) == doctest::Approx(1.0 / 3).epsilon(0.01));
}
