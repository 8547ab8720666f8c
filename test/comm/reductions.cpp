// Pieces of gradients that ranks exchange: the specifications of their sums and casts at many sizes, every kind of
// value in FP8, and what error feedback promises.
#include "llmc/comm/reductions.h"

#include <cmath>

#include "test/kernels/check_specifications.h"
#include "test/kernels/specifications/reference_quantize.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const float kInfinity = float_from_bits(kFloatInfinityBits), kNaN = float_from_bits(0x7fc00001u);

// Equal bits, except that the NaN of a sum depends on the processor.
bool same_sums(const std::vector<float>& a, const std::vector<float>& b) {
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); i++)
        same = float_bits(a[i]) == float_bits(b[i]) || (std::isnan(a[i]) && std::isnan(b[i]));
    return same;
}

// Memory on the device of a rank that sends one piece.
struct Sender {
    DeviceArray<float> in;
    DeviceArray<bf16> residual;
    DeviceArray<float> loss_scale{std::vector<float>{1.0f}};
    DeviceArray<int32_t> skips{std::vector<int32_t>{0}};
    DeviceArray<uint8_t> pieces;
    size_t count;

    explicit Sender(size_t n) : in(n), residual(std::vector<bf16>(n)), pieces(Fp8Piece{n}.bytes()), count(n) {}
    void cast() { cast_pieces(pieces, in, 1, count, {residual, loss_scale, skips}, test_stream()); }
};

// One rank's cast of any values, and their sum.
void check_cast(const std::vector<float>& values, const std::vector<bf16>& owed, float loss_scale) {
    const size_t count = values.size();
    Sender sender(count);
    sender.in.upload(values), sender.residual.upload(owed), sender.loss_scale.upload({loss_scale});
    const reference::CastPieces expected = reference::cast_pieces(values, owed, 1, count, loss_scale);
    sender.cast();
    CHECK(sender.pieces.download() == expected.pieces);
    CHECK(same_bits(sender.residual.download(), expected.residual));
    DeviceArray<float> sum(count);
    sum_fp8_pieces(sum, sender.pieces, 1, count, false, test_stream());
    CHECK(same_sums(sum.download(), reference::sum_fp8_pieces(expected.pieces, 1, count, {})));
}

// Sends one block with the same gradient in every step. Returns, after `steps` steps, the ratio of the received to the
// sent sum for each element.
std::vector<double> arrived(const std::vector<float>& gradient, int steps, bool with_feedback) {
    Sender sender(gradient.size());
    sender.in.upload(gradient);
    DeviceArray<float> sum(std::vector<float>(gradient.size()));
    std::vector<double> total(gradient.size());
    for (int i = 0; i < steps; i++) {
        cast_pieces(sender.pieces, sender.in, 1, gradient.size(), {with_feedback ? sender.residual.get() : nullptr},
                    test_stream());
        sum_fp8_pieces(sum, sender.pieces, 1, gradient.size(), false, test_stream());
        const std::vector<float> step = sum.download();
        for (size_t k = 0; k < step.size(); k++) total[k] += static_cast<double>(step[k]);
    }
    for (size_t k = 0; k < total.size(); k++) total[k] /= steps * static_cast<double>(gradient[k]);
    return total;
}

}  // namespace

TEST_CASE("sums and casts of ranks' pieces meet their specifications") { check_specifications(check::add_piece_tests); }

TEST_CASE("pieces in FP8: every place in a binade, zeros, subnormals, the largest, and non-finite values") {
    std::vector<float> values;
    for (int i = 0; i < 128; i++) values.push_back(448.0f * (1.0f - static_cast<float>(i) / 128));  // one block
    for (int i = 0; i < 128; i++) values.push_back((i % 2 ? -1.0f : 1.0f) * std::ldexp(1.0f + i / 128.0f, -i / 4));
    for (int i = 0; i < 128; i++) values.push_back(i % 3 ? 0.0f : -0.0f);
    for (int i = 0; i < 128; i++) values.push_back(std::ldexp(1.0f, -149) * static_cast<float>(i));
    for (int i = 0; i < 128; i++) values.push_back(std::ldexp(1.9999f, 127) * (i == 0 ? 1.0f : std::ldexp(1.0f, -i)));
    for (const float special : {kInfinity, -kInfinity, kNaN, -kNaN})
        for (int i = 0; i < 128; i++) values.push_back(i == 77 ? special : static_cast<float>(i));
    for (int i = 0; i < 128; i++) values.push_back(kNaN);
    for (int i = 0; i < 5; i++) values.push_back(448.0f + static_cast<float>(i) * 16);  // where scales change
    check_cast(values, std::vector<bf16>(values.size()), 1.0f);
    check_cast(values, std::vector<bf16>(values.size(), to_bf16(0.01f)), 2.0f);
    // An element that overflows together with its residual is noticed, too.
    std::vector<bf16> large(values.size(), to_bf16(std::ldexp(1.0f, 127)));
    check_cast(values, large, 1.0f);
}

TEST_CASE("pieces in FP8: memory that is not aligned") {
    const size_t count = 260;
    DeviceArray<float> in(random_normal<float>(count + 1, 1.0f, 3)), sum(count + 1);
    DeviceArray<bf16> residual(std::vector<bf16>(count + 1));
    DeviceArray<uint8_t> pieces(Fp8Piece{count}.bytes() + 1);
    const std::vector<float> all = in.download(), values(all.begin() + 1, all.end());
    cast_pieces(pieces, in + 1, 1, count, {residual + 1}, test_stream());
    const reference::CastPieces expected = reference::cast_pieces(values, std::vector<bf16>(count), 1, count, 1);
    std::vector<uint8_t> bytes = pieces.download();
    bytes.pop_back();
    CHECK(bytes == expected.pieces);
    std::vector<bf16> owed = residual.download();
    owed.erase(owed.begin());
    CHECK(same_bits(owed, expected.residual));
    sum_fp8_pieces(sum + 1, pieces, 1, count, false, test_stream());
    std::vector<float> sums = sum.download();
    sums.erase(sums.begin());
    CHECK(same_bits(sums, reference::sum_fp8_pieces(expected.pieces, 1, count, {})));
    CHECK_THROWS_AS(cast_pieces(pieces + 1, in, 1, count, {}, test_stream()), Error);
}

TEST_CASE("pieces: no elements, no launch") {
    sum_pieces<float>(nullptr, nullptr, 4, 0, false, test_stream());
    reduce_pieces<float>(nullptr, nullptr, 4, 0, ReduceOp::max, test_stream());
    cast_pieces(nullptr, nullptr, 3, 0, {}, test_stream());
    sum_fp8_pieces(nullptr, nullptr, 3, 0, false, test_stream());
    synchronize(test_stream());
}

// In a block with a largest value of 1, the smallest step is 2^-8 * 2^-9 = 2^-17, and less than half of it is cast to
// 0. After n steps the missing part is the residual: at most half a step of the code, plus 2^-9 of it per step from
// rounding to BF16.
TEST_CASE("pieces in FP8: values below their block's smallest step arrive only with error feedback") {
    std::vector<float> gradient(128, std::ldexp(1.3f, -21));
    gradient[0] = 1.0f, gradient[1] = -std::ldexp(1.0f, -20), gradient[2] = 0.3f;
    const int steps = 400;
    const std::vector<double> with = arrived(gradient, steps, true), without = arrived(gradient, steps, false);
    for (size_t i = 0; i < gradient.size(); i++) {
        CAPTURE(i);
        const double g = std::fabs(static_cast<double>(gradient[i]));
        const double half_step = i == 2 ? std::ldexp(1.0, -6) : std::ldexp(1.0, -18);
        CHECK(std::fabs(with[i] - 1) <= half_step * (1 + steps * std::ldexp(1.0, -9)) / (steps * g));
        if (i > 2 || i == 1) CHECK(without[i] == 0);
    }
    CHECK(without[0] == 1);
    CHECK(std::fabs(without[2] - 1) > 0.01);  // 0.3125 every time
}

TEST_CASE("pieces in FP8: a change of the loss scale leaves residuals unchanged") {
    const size_t count = 300;
    const std::vector<float> values = random_normal<float>(count, 1.0f, 4);
    Sender one(count), other(count);
    one.in.upload(values), other.in.upload(values);
    one.cast(), other.cast();
    std::vector<float> scaled = values;
    for (float& value : scaled) value *= 64.0f;
    other.in.upload(scaled), other.loss_scale.upload({64.0f});
    one.cast(), other.cast();
    CHECK(same_bits(one.residual.download(), other.residual.download()));
    const std::vector<uint8_t> a = one.pieces.download(), b = other.pieces.download();
    const Fp8Piece piece{count};
    for (size_t i = 0; i < count; i++) CHECK(a[i] == b[i]);
    for (size_t i = 0; i < piece.blocks(); i++) CHECK(a[piece.scales_begin() + i] + 6 == b[piece.scales_begin() + i]);
}

TEST_CASE("pieces in FP8: a skipped step leaves no residuals") {
    const size_t count = 300;
    const std::vector<float> values = random_normal<float>(count, 1.0f, 4);
    std::vector<float> overflown = values;
    for (size_t i = 0; i < count; i++) overflown[i] = i % 50 == 7 ? kInfinity : 1e30f * values[i];
    Sender fresh(count), skipped(count);
    skipped.in.upload(overflown);
    skipped.cast();
    for (const bf16 owed : skipped.residual.download()) CHECK(is_finite(to_float(owed)));
    skipped.skips.upload({2});
    fresh.in.upload(values), skipped.in.upload(values);
    fresh.cast(), skipped.cast();
    CHECK(fresh.pieces.download() == skipped.pieces.download());
    CHECK(same_bits(fresh.residual.download(), skipped.residual.download()));
}
