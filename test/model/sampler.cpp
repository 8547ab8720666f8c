// Sampling: temperature, top-k, top-p and seeds.
#include "llmc/model/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

using namespace llmc;

TEST_CASE("sampler: temperature 0 takes the most likely token, ties go to the lower id") {
    CHECK(sample_token({0.f, 3.f, 1.f, 3.f}, {.temperature = 0}, 0) == 1);
}

TEST_CASE("sampler: frequencies follow the softmax at the given temperature") {
    const std::vector<float> logits = {0.f, 1.f, 2.f, -1.f};
    const double temperature = 1.5;
    const int draws = 20000;
    std::vector<int> seen(4, 0);
    for (int i = 0; i < draws; i++) seen[sample_token(logits, {.temperature = temperature, .seed = 7}, i)]++;
    double total = 0;
    for (float l : logits) total += std::exp(l / temperature);
    for (int k = 0; k < 4; k++) {
        const double p = std::exp(logits[k] / temperature) / total;
        const double deviation = std::sqrt(p * (1 - p) / draws);
        CHECK(std::fabs(seen[k] / double(draws) - p) < 5 * deviation);
    }
}

TEST_CASE("sampler: top-k and top-p leave only the most likely tokens") {
    const std::vector<float> logits = {0.f, 1.f, 2.f, 3.f};  // probabilities 0.03 0.09 0.24 0.64
    bool seen_third = false;
    for (int i = 0; i < 500; i++) {
        CHECK(sample_token(logits, {.top_k = 2, .seed = 1}, i) >= 2);
        CHECK(sample_token(logits, {.top_p = 0.6, .seed = 1}, i) == 3);
        const int token = sample_token(logits, {.top_p = 0.8, .seed = 1}, i);
        CHECK(token >= 2);
        seen_third |= token == 2;
    }
    CHECK(seen_third);
}

TEST_CASE("sampler: the same seed and position repeat, NaN is never chosen") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> logits = {nan, 1.f, 1.f, nan};
    bool differs = false;
    for (int i = 0; i < 100; i++) {
        const int token = sample_token(logits, {.seed = 3}, i);
        CHECK((token == 1 || token == 2));
        CHECK(token == sample_token(logits, {.seed = 3}, i));
        differs |= token != sample_token(logits, {.seed = 4}, i);
    }
    CHECK(differs);
    CHECK(sample_token({nan, nan}, {}, 0) == 0);
}

TEST_CASE("sampler: a full window loses its older half") {
    for (const int longest : {1, 2, 7, 64}) {
        int before = 0;
        for (int length = 1; length < 5 * longest; length++) {
            const int begin = window_begin(length, longest), half = std::max(longest / 2, 1);
            CHECK(length - begin <= longest);
            if (length > longest) CHECK(length - begin > longest - half);
            CHECK((begin == before || begin == before + half));
            if (length <= longest) CHECK(begin == 0);
            before = begin;
        }
    }
}
