// Sums and maxima of the ranks' pieces: exactly the order of a loop over the ranks.
#include "llmc/comm/rank_reduce.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Odd sizes take the element-wise path, multiples of eight the vectorised one.
const std::vector<size_t> kCounts = {1, 3, 8, 255, 2048, 4099, 16384};

template <class T>
void check_sum(int world, size_t count, bool accumulate) {
    CAPTURE(world);
    CAPTURE(accumulate);
    CAPTURE(count);
    const std::vector<T> pieces =
        random_normal<T>(static_cast<size_t>(world) * count, 100.0f, static_cast<uint32_t>(count) + 7);
    DeviceArray<T> inp(pieces);
    std::vector<float> expected = random_normal<float>(count, 100.0f, 3);
    DeviceArray<float> out(expected);
    sum_pieces<T>(out, inp, world, count, accumulate, test_stream());
    const std::vector<float> actual = out.download();
    for (size_t i = 0; i < count; i++)
        for (size_t r = 0; r < static_cast<size_t>(world); r++) {
            const float piece = to_float(pieces[r * count + i]);
            expected[i] = r == 0 && !accumulate ? piece : expected[i] + piece;
        }
    CHECK(std::memcmp(actual.data(), expected.data(), count * sizeof(float)) == 0);
}

template <class T>
void check_reduce(int world, size_t count) {
    std::mt19937 engine(static_cast<uint32_t>(count));
    std::vector<T> pieces(static_cast<size_t>(world) * count);
    for (T& v : pieces) v = static_cast<T>(engine() % 2'000'001) - static_cast<T>(std::is_signed_v<T> ? 1'000'000 : 0);
    DeviceArray<T> inp(pieces), out(count);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        std::vector<T> expected(pieces.begin(), pieces.begin() + static_cast<long>(count));
        for (size_t r = 1; r < static_cast<size_t>(world); r++)
            for (size_t i = 0; i < count; i++) {
                const T piece = pieces[r * count + i];
                expected[i] = op == ReduceOp::sum ? static_cast<T>(expected[i] + piece) : std::max(expected[i], piece);
            }
        reduce_pieces<T>(out, inp, world, count, op, test_stream());
        CHECK(out.download() == expected);
    }
}

}  // namespace

TEST_CASE("rank_reduce: sums of pieces have the bits of a loop over the ranks") {
    for (const int world : {1, 2, 3, 8})
        for (const size_t count : kCounts)
            for (const bool accumulate : {false, true}) {
                check_sum<float>(world, count, accumulate);
                check_sum<bf16>(world, count, accumulate);
            }
}

TEST_CASE("rank_reduce: sums and maxima of five types") {
    for (const int world : {1, 2, 5})
        for (const size_t count : kCounts) {
            check_reduce<float>(world, count);
            check_reduce<double>(world, count);
            check_reduce<int32_t>(world, count);
            check_reduce<uint32_t>(world, count);
            check_reduce<uint64_t>(world, count);
        }
}

TEST_CASE("rank_reduce: no elements, no launch") {
    sum_pieces<float>(nullptr, nullptr, 4, 0, false, test_stream());
    reduce_pieces<float>(nullptr, nullptr, 4, 0, ReduceOp::max, test_stream());
    synchronize(test_stream());
}
