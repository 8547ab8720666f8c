// RoPE and QK-norm against FP64: tables, both directions, and what rotations promise.
#include "llmc/kernels/rope.h"

#include <array>

#include "llmc/check/reference_rms.h"
#include "llmc/check/reference_rope.h"
#include "test/kernels/row_shapes.h"

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

// A table here and on the device.
struct Table {
    int positions;
    RopeValues values;
    DeviceArray<float> cos, sin;

    Table(int positions_, RopeValues v) : positions(positions_), values(v), cos(v.cos), sin(v.sin) {}
    Table(int HD, int positions_, float theta = 1e4f) : Table(positions_, rope_values(theta, {}, HD, positions_)) {}
    RopeTable device() const { return {cos.get(), sin.get(), positions}; }
    reference::RopeRows rows(const AttentionHeads& heads, int first, int T) const { return {heads, first, T, values}; }
};

// The largest error in units of its bound, which one rounding to Real widens where something was computed; infinite if
// anything is NaN.
template <class Real>
double worst_error(const std::vector<Real>& actual, const reference::Rotated& expected) {
    REQUIRE(actual.size() == expected.values.size());
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double value = expected.values[i], exact = expected.bounds[i];
        const double rounding =
            sizeof(Real) == 2 && exact > 0 ? rounding_error<bf16>() * (std::fabs(value) + exact) : 0.0;
        const double error = std::fabs(static_cast<double>(to_float(actual[i])) - value) / (exact + rounding + 1e-30);
        if (!(error <= worst)) worst = error == error ? error : std::numeric_limits<double>::infinity();
    }
    return worst;
}

constexpr AttentionHeads kHeads[] = {{2, 2, 64}, {4, 2, 128}, {6, 1, 32}, {3, 3, 128}};

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

TEST_CASE_TEMPLATE("rope_forward and rope_backward turn queries and keys alone", Real, float, bf16) {
    for (const AttentionHeads& heads : kHeads)
        for (const auto& [N, T, first] : {std::array{1, 1, 0}, std::array{14, 7, 0}, std::array{33, 33, 5}}) {
            CAPTURE(heads.HD);
            CAPTURE(N);
            const Table table(heads.HD, 40);
            const size_t n = static_cast<size_t>(N) * heads.qkv_width();
            const auto x = random_normal<Real>(n, 1.0f, 3 * N + heads.HD);
            DeviceArray<Real> qkv(x), dqkv(x);
            rope_forward<Real>(qkv, table.device(), first, N, T, heads, test_stream());
            rope_backward<Real>(dqkv, table.device(), first, N, T, heads, test_stream());
            const reference::RopeRows rows = table.rows(heads, first, T);
            CHECK(worst_error(qkv.download(), reference::rope(rows, to_doubles(x), false)) <= 1);
            CHECK(worst_error(dqkv.download(), reference::rope(rows, to_doubles(x), true)) <= 1);

            // Back where it came from, but for the first result's rounding, which meets |cos| + |sin| <= 1.42, and the
            // second's.
            rope_backward<Real>(qkv, table.device(), first, N, T, heads, test_stream());
            const auto back = to_doubles(qkv.download()), before = to_doubles(x);
            const double tolerance = sizeof(Real) == 2 ? rounding_error<bf16>() : 5e-7;
            const int half = heads.HD / 2;
            double worst = 0;
            for (size_t i = 0; i < n; i++) {
                const size_t pair = static_cast<int>(i) % heads.HD < half ? i + half : i - half;
                const double size = std::fabs(before[i]) + std::fabs(before[pair]);
                worst = std::max(worst, std::fabs(back[i] - before[i]) / (2.42 * tolerance * size));
            }
            CHECK(worst <= 1);
        }
}

TEST_CASE("rope: scores depend on the distance of query and key alone") {
    const AttentionHeads heads{1, 1, 64};
    const int T = 60;
    const Table table(heads.HD, T);
    const auto row = random_normal<float>(3 * 64, 1.0f, 9);
    std::vector<float> all;
    for (int t = 0; t < T; t++) all.insert(all.end(), row.begin(), row.end());
    DeviceArray<float> qkv(all);
    rope_forward<float>(qkv, table.device(), 0, T, T, heads, test_stream());
    const auto y = qkv.download();
    const auto score = [&](int m, int n) {
        double sum = 0;
        for (int c = 0; c < 64; c++)
            sum += static_cast<double>(y[m * 192 + c]) * static_cast<double>(y[n * 192 + 64 + c]);
        return sum;
    };
    double size = 0, spread = 0;
    for (int c = 0; c < 64; c++) size += std::fabs(static_cast<double>(row[c]) * static_cast<double>(row[64 + c]));
    for (int distance : {0, 1, 7, 30})
        for (int n = 0; n + distance < T; n++) {
            CHECK(std::fabs(score(n + distance, n) - score(distance, 0)) < 1e-5 * size);
            spread = std::max(spread, std::fabs(score(n + distance, n) - score(0, 0)));
        }
    CHECK(spread > 0.1 * size);  // and do depend on it
}

// Meta's pairs are neighbours: with a head's channels in the order 0, 2, 4, .. 1, 3, 5, .. the results are its own. And
// rotation by -theta is rotation with the halves exchanged.
TEST_CASE("rope: interleaved pairs are permuted channels, and -theta is exchanged halves") {
    const AttentionHeads heads{4, 2, 32};
    const int N = 20, HD = heads.HD, half = HD / 2, width = heads.qkv_width();
    const Table table(HD, N);
    const auto interleaved = random_normal<float>(static_cast<size_t>(N) * width, 1.0f, 15);
    const auto permuted = [&](const std::vector<float>& x, auto&& source) {
        std::vector<float> y(x.size());
        for (size_t i = 0; i < x.size(); i++) {
            const int c = static_cast<int>(i % HD);
            y[i] = x[i - c + source(c)];
        }
        return y;
    };
    const auto rotated = [&](const std::vector<float>& x, const RopeTable& by) {
        DeviceArray<float> qkv(x);
        rope_forward<float>(qkv, by, 0, N, N, heads, test_stream());
        return qkv.download();
    };
    const auto halves = permuted(interleaved, [=](int c) { return c < half ? 2 * c : 2 * (c - half) + 1; });
    const auto y = rotated(halves, table.device());
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

    RopeValues reversed = table.values;
    for (float& s : reversed.sin) s = -s;
    const Table back(N, reversed);
    const auto exchange = [=](int c) { return (c + half) % HD; };
    const auto exchanged = permuted(rotated(permuted(halves, exchange), table.device()), exchange);
    // A GPU fuses another product of the two with the sum.
    CHECK(max_relative_error(rotated(halves, back.device()), to_doubles(exchanged), 1.0) < 1e-6);
}

// ---- QK-norm -------------------------------------------------------------------------------------------------------

namespace {

constexpr float kEps = 1e-6f;

template <class Real>
struct QkNorm {
    AttentionHeads heads;
    int N, T, first;
    Table table;
    std::vector<Real> x;
    DeviceArray<Real> qkv, out, query_gain, key_gain;
    reference::QkNormGains gains;  // empty: none

    QkNorm(const AttentionHeads& h, int N_, int T_, int first_, bool with_gains)
        : heads(h),
          N(N_),
          T(T_),
          first(first_),
          table(h.HD, 64),
          x(random_normal<Real>(static_cast<size_t>(N) * h.qkv_width(), 1.5f, 5 * N + h.HD, 0.2f)),
          qkv(x.size()),
          out(x.size()),
          query_gain(static_cast<size_t>(h.HD)),
          key_gain(static_cast<size_t>(h.HD)) {
        // A head of zeros, a large one and a small one.
        for (int c = 0; c < h.HD; c++) {
            x[c] = to<Real>(0.0f);
            x[x.size() - h.qkv_width() + c] = to<Real>(1e4f * to_float(x[x.size() - h.qkv_width() + c]));
            x[h.NH * h.HD + c] = to<Real>(1e-3f * to_float(x[h.NH * h.HD + c]));
        }
        qkv.upload(x);
        for (int side = 0; side < 2 && with_gains; side++) {
            auto gain = random_normal<Real>(static_cast<size_t>(h.HD), 1.0f, 40 + side, 0.5f);  // of both signs
            gain[3] = gain[h.HD - 1] = to<Real>(0.0f);
            (side == 0 ? query_gain : key_gain).upload(gain);
            gains[side] = to_doubles(gain);
        }
    }
    bool weighted() const { return !gains[0].empty(); }
    QkGains<const Real> device_gains() const {
        return {weighted() ? query_gain.get() : nullptr, weighted() ? key_gain.get() : nullptr};
    }
    void forward(Real* to, const Real* from) {
        qk_norm_rope_forward<Real>(to, from, device_gains(), table.device(), first, N, T, heads, kEps, test_stream());
    }
    reference::RopeRows rows() const { return table.rows(heads, first, T); }
};

}  // namespace

TEST_CASE_TEMPLATE("qk_norm_rope_forward, with and without gains", Real, float, bf16) {
    for (const AttentionHeads& heads : kHeads)
        for (const bool with_gains : {true, false}) {
            CAPTURE(heads.HD);
            CAPTURE(with_gains);
            QkNorm<Real> q(heads, 22, 11, 3, with_gains);
            q.forward(q.out, q.qkv);
            const auto x = to_doubles(q.x);
            reference::Rotated expected = reference::qk_norm_rope(q.rows(), x, q.gains, static_cast<double>(kEps));
            const auto y = q.out.download();
            CHECK(worst_error(y, expected) <= 1);
            if (!with_gains) {  // nanochat's order: rotated first
                const reference::RopeRows rows = q.rows();
                expected.values = x;
                rows.each_head(x.size(), [&](int, size_t at, int position) {
                    std::vector<double> head(&x[at], &x[at] + heads.HD), unused(head.size());
                    rows.rotate(head.data(), unused.data(), position, false);
                    const auto rstd = reference::rms_rstd(head, 1, heads.HD, static_cast<double>(kEps));
                    const auto normed = reference::rms_rows(head, rstd, {}, heads.HD);
                    std::copy(normed.begin(), normed.end(), &expected.values[at]);
                    // The table's cos^2 + sin^2 is 1 to FP32 alone.
                    const double more = 1 + 1e-6 / reference::kQkNormError;
                    for (size_t c = at; c < at + head.size(); c++)
                        expected.bounds[c] = more * (expected.bounds[c] + 1e-5 * reference::kQkNormError);
                });
                CHECK(worst_error(y, expected) <= 1);
            }
            q.forward(q.qkv, q.qkv);  // in place
            CHECK(same_bits(q.qkv.download(), y));
        }
}

TEST_CASE_TEMPLATE("qk_norm_rope_backward, with and without gains", Real, float, bf16) {
    for (const AttentionHeads& heads : kHeads)
        for (const bool with_gains : {true, false}) {
            CAPTURE(heads.HD);
            CAPTURE(with_gains);
            const int N = heads.HD == 32 ? 180 : 22;  // several turns of a block
            QkNorm<Real> q(heads, N, 11, 3, with_gains);
            const auto g = random_normal<Real>(q.x.size(), 1.0f, 77, 0.1f);
            DeviceArray<Real> dqkv(g);
            DeviceArray<float> dquery(static_cast<size_t>(heads.HD)), dkey(static_cast<size_t>(heads.HD)),
                scratch(qk_norm_backward_scratch(N, heads));
            const auto run = [&](bool accumulate) {
                const QkGains<float> dgains{with_gains ? dquery.get() : nullptr, with_gains ? dkey.get() : nullptr};
                qk_norm_rope_backward<Real>(dqkv, dgains, with_gains ? scratch.get() : nullptr, q.qkv, q.device_gains(),
                                            q.table.device(), q.first, N, q.T, heads, kEps, accumulate, test_stream());
            };
            run(false);

            const auto expected = reference::qk_norm_rope_gradient(q.rows(), to_doubles(q.x), to_doubles(g), q.gains,
                                                                   static_cast<double>(kEps));
            const auto y = dqkv.download();
            CHECK(worst_error(y, expected.dqkv) <= 1);
            const auto check_gains = [&](const std::vector<float>& before) {
                const auto both = {dquery.download(), dkey.download()};
                for (int side = 0; side < 2; side++)
                    for (int c = 0; c < heads.HD; c++) {
                        const double sum = expected.dgains[side][c] + before[c];
                        CHECK(std::fabs(both.begin()[side][c] - sum) <=
                              expected.dgains_bounds[side][c] + 1e-6 * std::fabs(before[c]));
                    }
            };
            if (!with_gains) continue;
            check_gains(std::vector<float>(static_cast<size_t>(heads.HD)));
            const auto once = dquery.download(), once_key = dkey.download();
            dqkv.upload(g);
            run(false);
            CHECK(same_bits(dqkv.download(), y));
            CHECK(same_bits(dquery.download(), once));
            CHECK(same_bits(dkey.download(), once_key));
            const auto before = random_normal<float>(static_cast<size_t>(heads.HD), 10.0f, 6);
            dquery.upload(before), dkey.upload(before), dqkv.upload(g);
            run(true);
            check_gains(before);
        }
}

TEST_CASE("rope refuses what it cannot do") {
    const Table table(32, 8);
    DeviceArray<float> x(8 * 3 * 64);
    const auto forward = [&](int first, int N, int T, const AttentionHeads& heads) {
        rope_forward<float>(x, table.device(), first, N, T, heads, test_stream());
    };
    CHECK_NOTHROW(forward(0, 8, 8, {1, 1, 32}));
    CHECK_THROWS_WITH_AS(forward(1, 8, 8, {1, 1, 32}), doctest::Contains("a table of 8 positions"), Error);
    CHECK_THROWS_AS(forward(-1, 4, 4, {1, 1, 32}), Error);
    CHECK_THROWS_AS(forward(0, 0, 4, {1, 1, 32}), Error);
    CHECK_THROWS_WITH_AS(forward(0, 1, 1, {1, 1, 48}), doctest::Contains("head dimension 48"), Error);
    CHECK_THROWS_WITH_AS(forward(0, 1, 1, {3, 2, 32}), doctest::Contains("cannot share"), Error);
    CHECK_THROWS_AS(qk_norm_rope_backward<float>(x, {x, x}, nullptr, x, {x, x}, table.device(), 0, 1, 1, {1, 1, 32},
                                                 kEps, false, test_stream()),
                    Error);
    CHECK_THROWS_AS(qk_norm_rope_backward<float>(x, {nullptr, nullptr}, x, x, {nullptr, nullptr}, table.device(), 0, 1,
                                                 1, {1, 1, 32}, kEps, false, test_stream()),
                    Error);
}
