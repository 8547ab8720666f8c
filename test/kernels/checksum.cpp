// checksum() (llmc/kernels/elementwise.h): its definition, and that every bit and every place counts.
#include "llmc/kernels/elementwise.h"

#include <cstring>
#include <random>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

uint64_t plain_checksum(const std::vector<uint8_t>& data) {
    uint64_t sum = 0;
    for (size_t at = 0; at < data.size(); at += 8) {
        uint64_t word = 0;
        std::memcpy(&word, data.data() + at, std::min<size_t>(8, data.size() - at));
        uint64_t x = word + (at / 8 + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        sum += x ^ (x >> 31);
    }
    return sum;
}

std::vector<uint8_t> random_bytes(size_t count) {
    std::mt19937 engine(static_cast<uint32_t>(count) + 1);
    std::vector<uint8_t> bytes(count);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(engine());
    return bytes;
}

uint64_t checksum_of(const std::vector<uint8_t>& data, uint64_t begin = 0) {
    DeviceArray<uint8_t> device(data);
    DeviceArray<uint64_t> sum(std::vector<uint64_t>{begin, 7});
    checksum(sum, device.get(), data.size(), test_stream());
    CHECK(sum.download()[1] == 7);
    return sum.download()[0];
}

}  // namespace

TEST_CASE("checksum: as defined, at any size, and added to the sum so far") {
    // One block; several, whose threads take some strides; more bytes than the largest number of blocks has threads.
    for (const size_t n : {0, 1, 7, 8, 9, 2048, 70001, 300000, 35000003}) {
        CAPTURE(n);
        const std::vector<uint8_t> data = random_bytes(n);
        const uint64_t expected = plain_checksum(data);
        CHECK(checksum_of(data) == expected);
        CHECK(checksum_of(data, ~uint64_t{0} - 2) == expected - 3);
    }
}

TEST_CASE("checksum: every bit, the order of words and additional zeros change it") {
    std::vector<uint8_t> data = random_bytes(20);
    const uint64_t sum = checksum_of(data);
    for (size_t bit = 0; bit < data.size() * 8; bit++) {
        data[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        CHECK(checksum_of(data) != sum);
        data[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
    std::vector<uint8_t> moved = data;
    std::swap_ranges(moved.begin(), moved.begin() + 8, moved.begin() + 8);
    CHECK(checksum_of(moved) != sum);
    const std::vector<uint8_t> zeros(8, 0), more(16, 0);
    CHECK(checksum_of(zeros) != checksum_of(more));
    CHECK(checksum_of(zeros) != 0);
}

TEST_CASE("checksum: words have to be aligned") {
    DeviceArray<uint8_t> data(64);
    DeviceArray<uint64_t> sum(1);
    CHECK(contains(error_of([&] { checksum(sum, data.get() + 4, 8, test_stream()); }), "not 8-byte aligned"));
}
