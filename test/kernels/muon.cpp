// Tests of Muon's kernels one by one, against FP64 or element by element; the whole step is in test/optim/muon.cpp.
#include "llmc/kernels/muon.h"

#include "test/kernels/updates.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE_TEMPLATE("muon_momentum is an average, with and without Nesterov's, and a skipped step leaves it", Real,
                   float, bf16) {
    for (const bool nesterov : {false, true})
        for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}}) {
            CAPTURE(nesterov);
            CAPTURE(n);
            OneMoment<Real> t(n);
            muon_momentum(t.device_m.get(), t.working.get(), t.device_grad.get(), n, {0.95}, nesterov, t.state.get(),
                          test_stream());
            std::vector<double> m, u;
            for (size_t i = 0; i < n; i++) {
                const double g = 0.25 * static_cast<double>(t.grad[i]);
                m.push_back(0.95 * static_cast<double>(t.m[i]) + 0.05 * g);
                u.push_back(nesterov ? 0.05 * g + 0.95 * m[i] : m[i]);
            }
            std::vector<Real> actual = t.working.download();
            for (size_t i = n; i < n + 16; i++) REQUIRE(to_float(actual[i]) != to_float(actual[i]));
            actual.resize(n);
            // Terms are below 0.1: three roundings of FP32, and one of Real.
            CHECK(max_relative_error(first(t.device_m.download(), n), m, 0.1) < 2e-7);
            CHECK(max_relative_error(actual, u, 0.1) < (sizeof(Real) == 4 ? 3e-7 : 0x1p-8));

            StepState skip = example_step();
            skip.skip = 1;
            t.state.upload({skip});
            const auto before = t.device_m.download();
            muon_momentum(t.device_m.get(), t.working.get(), t.device_grad.get(), n, {0.95}, nesterov, t.state.get(),
                          test_stream());
            CHECK(same_bits(t.device_m.download(), before));
        }
}

TEST_CASE("muon_momentum grows from 0.85 over the updates of its warm-up, by the count of those applied") {
    const size_t n = 2051;
    const auto relative_error = [&](const MuonMomentum& config, int64_t applied, double momentum) {
        OneMoment<float> t(n);
        StepState state = example_step();
        state.applied = applied;
        t.state.upload({state});
        muon_momentum(t.device_m.get(), t.working.get(), t.device_grad.get(), n, config, true, t.state.get(),
                      test_stream());
        std::vector<double> m;
        for (size_t i = 0; i < n; i++)
            m.push_back(momentum * static_cast<double>(t.m[i]) +
                        (1 - momentum) * 0.25 * static_cast<double>(t.grad[i]));
        return max_relative_error(first(t.device_m.download(), n), m, 0.1);
    };
    // The published schedules, by (it / N) with `it` from 0 on.
    const struct {
        MuonMomentum config;
        int64_t applied;
        double momentum;
    } cases[] = {
        {{0.95, 300}, 1, 0.85},   {{0.95, 300}, 151, 0.90},  {{0.95, 300}, 300, 0.85 * 1 / 300 + 0.95 * 299 / 300},
        {{0.95, 300}, 301, 0.95}, {{0.95, 300}, 5000, 0.95}, {{0.97, 400}, 101, 0.88},
        {{0.95, 0}, 1, 0.95},     {{0.95, 1}, 1, 0.85},      {{0.95, 1}, 2, 0.95}};
    for (const auto& [config, applied, momentum] : cases) {
        CAPTURE(applied);
        CHECK(std::fabs(momentum_at(config, applied - 1) - momentum) < 1e-15);
        CHECK(relative_error(config, applied, momentum) < 2e-7);
        CHECK(relative_error(config, applied + 1, momentum + 1e-4) > 2e-7);  // another momentum is seen
    }
}

namespace {

template <class Real>
void update(OneMoment<Real>& t, const DeviceArray<Real>& o, size_t count, size_t offset, Fp8State* fp8) {
    muon_update(t.device_master + offset, t.working + offset, fp8, o.get() + offset, count, {2.5, 0.1}, t.state.get(),
                test_stream());
}

}  // namespace

TEST_CASE_TEMPLATE("muon_update takes the scaled direction and decays, as all updates do", Real, float, bf16) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}}) {
        CAPTURE(n);
        OneMoment<Real> t(n), pieces(n), skipped(n);
        const std::vector<Real> direction = random_normal<Real>(n + 16, 0.3f, 6);
        const DeviceArray<Real> o(direction);
        DeviceArray<Fp8State> fp8(std::vector<Fp8State>(1));
        update(t, o, n, 0, fp8);
        std::vector<double> expected;
        float largest = 0;
        const std::vector<float> master = first(t.device_master.download(), n);
        for (size_t i = 0; i < n; i++) {
            const double p = t.master[i];
            expected.push_back(p * (1 - 2e-3 * 0.1) - 2e-3 * 2.5 * static_cast<double>(to_float(direction[i])));
            largest = std::max(largest, std::fabs(master[i]));
        }
        CHECK(max_relative_error(master, expected, reference::kMasterFloor) < reference::kAdamWError);
        CHECK(fp8.download()[0].amax_now == largest);
        const std::vector<Real> working = t.working.download();
        for (size_t i = 0; i < n; i++) REQUIRE(to_float(working[i]) == to_float(to<Real>(master[i])));
        for (size_t i = n; i < n + 16; i++) REQUIRE(to_float(working[i]) != to_float(working[i]));

        const size_t cut = n / 2 / 8 * 8;
        update(pieces, o, cut, 0, nullptr);
        update(pieces, o, n - cut, cut, nullptr);
        CHECK(same_bits(first(pieces.device_master.download(), n), master));

        StepState skip = example_step();
        skip.skip = 1;
        skipped.state.upload({skip});
        update(skipped, o, n, 0, nullptr);
        CHECK(same_bits(first(skipped.device_master.download(), n), skipped.master));
    }
}

TEST_CASE_TEMPLATE("muon_update, cautious: what moves away from 0 does not decay", Real, float, bf16) {
    // Small ones too, whose product is 0 in FP32.
    const std::vector<float> weights = {2, 2, -2, -2, 0, 2, -2, 1e-30f, -1e-30f, 3},
                             directions = {1, -1, 1, -1, 1, 0, 0, -0x1p-100f, 0x1p-100f, 0.5f};
    const std::vector<bool> decays = {true, false, false, true, true, true, true, false, false, true};
    const size_t n = weights.size();
    std::vector<Real> rounded;
    for (const float x : directions) rounded.push_back(to<Real>(x));
    const DeviceArray<Real> o(rounded);
    const DeviceArray<StepState> state(std::vector<StepState>{example_step()});
    for (const bool cautious : {false, true}) {
        DeviceArray<float> master(weights);
        muon_update<Real>(master.get(), nullptr, nullptr, o.get(), n, {0.5, 100, cautious}, state.get(), test_stream());
        const std::vector<float> after = master.download();
        for (size_t i = 0; i < n; i++) {
            CAPTURE(i);
            const double p = weights[i], decay = !cautious || decays[i] ? 100 : 0;
            const double expected = p * (1 - 2e-3 * decay) - 2e-3 * 0.5 * static_cast<double>(directions[i]);
            // FP32's roundings: of the rate, which takes a fifth of p, of the sum of both, and of the result.
            CHECK(std::fabs(static_cast<double>(after[i]) - expected) <=
                  4 * 0x1p-24 * (std::fabs(p) + 2e-3 * std::fabs(static_cast<double>(directions[i]))));
        }
    }
}

TEST_CASE_TEMPLATE("copy_matrix: both ways round, with every kind of factor", Real, float, bf16) {
    for (const auto& [rows, columns] : {std::pair{1, 1}, {33, 31}, {64, 96}, {5, 200}}) {
        const size_t n = static_cast<size_t>(rows) * columns;
        const std::vector<Real> values = random_normal<Real>(n, 1.0f, 3);
        const std::vector<float> factors = random_normal<float>(200, 1.0f, 4);
        const DeviceArray<Real> in(values);
        const DeviceArray<float> device_factors(factors);
        for (const bool transpose : {false, true})
            for (const FactorOf of : {FactorOf::none, FactorOf::matrix, FactorOf::row, FactorOf::column}) {
                CAPTURE(rows);
                CAPTURE(transpose);
                DeviceArray<Real> out(n);
                copy_matrix(out.get(), in.get(), rows, columns, transpose, device_factors.get(), of, test_stream());
                std::vector<Real> expected(n);
                for (int r = 0; r < rows; r++)
                    for (int c = 0; c < columns; c++) {
                        const int factor = of == FactorOf::row ? r : of == FactorOf::column ? c : 0;
                        const size_t at = static_cast<size_t>(r) * columns + c;
                        const float x = to_float(values[at]);
                        expected[transpose ? static_cast<size_t>(c) * rows + r : at] =
                            to<Real>(of == FactorOf::none ? x : x * factors[static_cast<size_t>(factor)]);
                    }
                CHECK(same_bits(out.download(), expected));
            }
    }
}

TEST_CASE_TEMPLATE("muon_inverse_norm: large, tiny and zero matrices", Real, float, bf16) {
    for (const size_t n : {size_t{1}, size_t{700}, size_t{40000}})
        for (const float size : {1.0f, 1e-6f, 1e4f, 0.0f}) {
            CAPTURE(n);
            CAPTURE(size);
            const std::vector<Real> values = random_normal<Real>(n, size, 5);
            double sum = 0;
            for (const double x : to_doubles(values)) sum += x * x;
            DeviceArray<Real> x(values);
            DeviceArray<double> partials(muon_norm_blocks(n));
            DeviceArray<float> inverse(1);
            muon_inverse_norm(inverse.get(), partials.get(), x.get(), n, 1.02, test_stream());
            CHECK(inverse.download()[0] == doctest::Approx(1 / std::max(1.02 * std::sqrt(sum), 1e-7)).epsilon(1e-6));
        }
}

TEST_CASE_TEMPLATE("normuon_factors: lines become alike, the norm stays, and so does a skipped step's average", Real,
                   float, bf16) {
    for (const bool by_rows : {true, false}) {
        CAPTURE(by_rows);
        const int rows = 24, columns = 70, lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
        std::vector<Real> values = random_normal<Real>(static_cast<size_t>(rows) * columns, 1.0f, 8);
        for (int c = 0; c < columns; c++)
            values[static_cast<size_t>(c)] = to<Real>(10 * to_float(values[static_cast<size_t>(c)]));
        const DeviceArray<Real> x(values);
        DeviceArray<float> factors(static_cast<size_t>(lines)), squares(static_cast<size_t>(lines)),
            second(std::vector<float>(static_cast<size_t>(lines), 0.5f));
        const DeviceArray<StepState> state(std::vector<StepState>{example_step()});
        normuon_factors(factors.get(), second.get(), squares.get(), x.get(), rows, columns, by_rows, 0.9, state.get(),
                        test_stream());
        std::vector<double> average, expected;
        double before = 0, after = 0;
        for (int line = 0; line < lines; line++) {
            double sum = 0;
            for (int i = 0; i < length; i++) {
                const size_t at =
                    by_rows ? static_cast<size_t>(line) * columns + i : static_cast<size_t>(i) * columns + line;
                sum += std::pow(static_cast<double>(to_float(values[at])), 2);
            }
            average.push_back(0.9 * 0.5 + 0.1 * sum / length);
            expected.push_back(1 / std::sqrt(average.back()));
            before += sum, after += sum / average.back();
        }
        for (double& factor : expected) factor *= std::sqrt(before / after);
        // Sums of at most 70 positive terms in FP32.
        CHECK(max_relative_error(second.download(), average, 0) < 1e-5);
        CHECK(max_relative_error(factors.download(), expected, 0) < 1e-5);

        StepState skip = example_step();
        skip.skip = 1;
        const DeviceArray<StepState> skipped(std::vector<StepState>{skip});
        const auto kept = second.download();
        normuon_factors(factors.get(), second.get(), squares.get(), x.get(), rows, columns, by_rows, 0.9, skipped.get(),
                        test_stream());
        CHECK(same_bits(second.download(), kept));
    }
}
