// RoPE and QK-norm: their specifications at many shapes, tables of angles, and pairs of neighbours.
#include "llmc/kernels/rope.h"

#include "test/kernels/check_specifications.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr RopeScaling kLlama31{8.0f, 1.0f, 4.0f, 8192};

// theta^(-2i / HD) in FP64, with Llama 3.1's scaling.
double exact_frequency(double theta, const RopeScaling& s, int HD, int i) {
    const double f = std::pow(theta, -2.0 * i / HD), wavelength = 2 * 3.14159265358979323846 / f;
    if (s.factor == 0 || wavelength < s.old_context / static_cast<double>(s.high_freq)) return f;
    if (wavelength > s.old_context / static_cast<double>(s.low_freq)) return f / static_cast<double>(s.factor);
    const double smooth = (s.old_context / wavelength - static_cast<double>(s.low_freq)) /
                          (static_cast<double>(s.high_freq) - static_cast<double>(s.low_freq));
    return (1 - smooth) * f / static_cast<double>(s.factor) + smooth * f;
}

// A table on the host and on the device.
struct Table {
    int positions;
    RopeValues values;
    DeviceArray<float> cos, sin;

    Table(int positions_, RopeValues v) : positions(positions_), values(v), cos(v.cos), sin(v.sin) {}
    Table(int HD, int positions_, float theta = 1e4f) : Table(positions_, rope_values(theta, {}, HD, positions_)) {}
    RopeTable device() const { return {cos.get(), sin.get(), positions}; }
};

}  // namespace

TEST_CASE("rope: frequencies and tables are FP32's, in Hugging Face's order of operations") {
    for (const float theta : {1e4f, 5e5f, 1e6f})
        for (const int HD : {32, 64, 128})
            for (const RopeScaling& scaling : {RopeScaling{}, kLlama31}) {
                CAPTURE(theta);
                CAPTURE(HD);
                const auto plain = rope_frequencies(theta, {}, HD), f = rope_frequencies(theta, scaling, HD);
                REQUIRE(f.size() == static_cast<size_t>(HD / 2));
                for (int i = 0; i < HD / 2; i++) {
                    const double exact = exact_frequency(static_cast<double>(theta), scaling, HD, i);
                    CHECK(std::fabs(f[i] - exact) <= 1e-6 * exact);  // some ten roundings
                    if (scaling.factor == 0) CHECK(std::fabs(f[i] - exact) <= 1.5 * 0x1p-23 * exact);
                    const bool slow = 2 * 3.141592653589793 / exact_frequency(theta, {}, HD, i) > 8192 * 1.001;
                    if (scaling.factor != 0 && slow) CHECK(f[i] == plain[i] / 8);
                }
                CHECK(f[0] == 1.0f);
            }
    const int HD = 32, positions = 131072;
    for (const RopeScaling& scaling : {RopeScaling{}, kLlama31}) {
        const auto f = rope_frequencies(5e5f, scaling, HD);
        const RopeValues table = rope_values(5e5f, scaling, HD, positions);
        REQUIRE(table.cos.size() == static_cast<size_t>(positions) * (HD / 2));
        double worst = 0, worst_exact = 0;
        for (int position = 0; position < positions; position += position < 5000 ? 1 : 997)
            for (int i = 0; i < HD / 2; i++) {
                const size_t at = static_cast<size_t>(position) * (HD / 2) + i;
                const float angle = static_cast<float>(static_cast<double>(position) * static_cast<double>(f[i]));
                const auto error = [&](double a) {
                    return std::max(std::fabs(static_cast<double>(table.cos[at]) - std::cos(a)),
                                    std::fabs(static_cast<double>(table.sin[at]) - std::sin(a)));
                };
                worst = std::max(worst, error(static_cast<double>(angle)));
                if (position < 4096)
                    worst_exact = std::max(worst_exact, error(position * exact_frequency(5e5, scaling, HD, i)));
            }
        CHECK(worst < 2e-6);
        CHECK(worst_exact < 5e-4);
    }
}

TEST_CASE("RoPE and QK-norm meet their specifications") { check_specifications(check::add_rope_tests); }

// Meta's pairs are neighbours: with a head's channels in the order 0, 2, 4, .. 1, 3, 5, .. the results are its own.
TEST_CASE("rope: interleaved pairs are permuted channels") {
    const AttentionHeads heads{4, 2, 32};
    const int N = 20, HD = heads.HD, half = HD / 2, width = heads.qkv_width();
    const Table table(HD, N);
    const auto interleaved = random_normal<float>(static_cast<size_t>(N) * width, 1.0f, 15);
    std::vector<float> halves(interleaved.size());
    for (size_t i = 0; i < halves.size(); i++) {
        const int c = static_cast<int>(i % HD);
        halves[i] = interleaved[i - c + (c < half ? 2 * c : 2 * (c - half) + 1)];
    }
    DeviceArray<float> qkv(halves);
    rope_forward<float>(qkv, table.device(), 0, N, N, heads, test_stream());
    const std::vector<float> y = qkv.download();
    double worst = 0;
    for (int n = 0; n < N; n++)
        for (int head = 0; head < heads.NH + heads.NKV; head++)
            for (int i = 0; i < half; i++) {
                const size_t at = static_cast<size_t>(n * width + head * HD);
                const double angle = n * std::pow(1e4, -2.0 * i / HD);
                const double a = interleaved[at + 2 * i], b = interleaved[at + 2 * i + 1];
                worst = std::max(worst, std::fabs(y[at + i] - (a * std::cos(angle) - b * std::sin(angle))));
                worst = std::max(worst, std::fabs(y[at + half + i] - (a * std::sin(angle) + b * std::cos(angle))));
            }
    CHECK(worst < 1e-5);
}

TEST_CASE("rope refuses unsupported arguments") {
    const Table table(32, 8);
    DeviceArray<float> x(8 * 3 * 64);
    const auto forward = [&](int first, int N, int T, const AttentionHeads& heads) {
        rope_forward<float>(x, table.device(), first, N, T, heads, test_stream());
    };
    CHECK_NOTHROW(forward(0, 8, 8, {1, 1, 32}));
    CHECK(contains(error_of([&] { forward(1, 8, 8, {1, 1, 32}); }), "a table of 8 positions"));
    CHECK_THROWS_AS(forward(-1, 4, 4, {1, 1, 32}), Error);
    CHECK_THROWS_AS(forward(0, 0, 4, {1, 1, 32}), Error);
    CHECK(contains(error_of([&] { forward(0, 1, 1, {1, 1, 48}); }), "head dimension 48"));
    CHECK(contains(error_of([&] { forward(0, 1, 1, {3, 2, 32}); }), "cannot share"));
    CHECK_THROWS_AS(qk_norm_rope_backward<float>(x, {x, x}, nullptr, x, {x, x}, table.device(), 0, 1, 1, {1, 1, 32},
                                                 1e-6f, false, test_stream()),
                    Error);
    CHECK_THROWS_AS(qk_norm_rope_backward<float>(x, {nullptr, nullptr}, x, x, {nullptr, nullptr}, table.device(), 0, 1,
                                                 1, {1, 1, 32}, 1e-6f, false, test_stream()),
                    Error);
}
