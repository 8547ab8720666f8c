// Muon's kernels apart from its update (optimizers.cpp). Its matrix products are among the run's.
#include "llmc/kernels/muon.h"

#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

using reference::kUnit;

constexpr double kSafety = 1.02, kBeta2 = 0.9;

struct Momentum {
    size_t count;
    bool nesterov = true, skip = false;
    StateFormat gradients = StateFormat::fp32;
    // A quarter of the way from 0.85 to 0.95: of 400 updates, 100 have gone before this one.
    MuonMomentum config = {0.95, 400};
    int64_t applied = 101;
    double beta = 0.875;

    std::string text() const {
        return fmt::format("{} of {} n={} applied={}", nesterov ? "" : " without Nesterov", word_of(gradients), count,
                           applied);
    }
};

template <class Real>
void momentum(Trial& t, const Momentum& s) {
    const auto before = t.random<float>(s.count, 0.01f);
    auto gradients = t.random<float>(s.count, 0.2f);
    narrow(s.gradients, gradients);
    const StateArray grad = state_input(t, s.gradients, gradients);
    StepState step = example_state(s.skip);
    step.applied = s.applied;
    const auto state = t.input_of(step);
    float* m = t.result("m", s.count, before);
    Real* u = t.result<Real>("u", s.count);
    t.run_twice([&] { muon_momentum<Real>(m, u, grad, s.count, s.config, s.nesterov, state, t.stream()); });
    if (s.skip) return t.equal(m, before);
    const double rounding = sizeof(Real) == 2 ? 0x1p-8 : kUnit;
    Bounded average, direction;
    for (size_t i = 0; i < s.count; i++) {
        const double old = s.beta * before[i], g = double{step.grad_scale} * gradients[i];
        const double now = old + (1 - s.beta) * g, terms = std::fabs(old) + std::fabs(g);
        const double ahead = s.nesterov ? (1 - s.beta) * g + s.beta * now : now;
        average.push_back(now, 4 * kUnit * terms);
        direction.push_back(ahead, 8 * kUnit * terms + rounding * std::fabs(ahead));
    }
    t.within(m, average);
    t.within(u, direction);
}

struct Matrix {
    int rows = 72, columns = 209;
    float size = 1.0f;
    bool by_rows = false, skip = false;

    size_t count() const { return size_t{1} * rows * columns; }
    std::string text() const { return fmt::format(" {} x {} of {:g}", rows, columns, size); }
};

// The sums of squares of a matrix' rows, or of its columns.
std::vector<double> sums_of_squares(const std::vector<double>& x, const Matrix& s, bool by_rows) {
    std::vector<double> sums(by_rows ? s.rows : s.columns);
    for (size_t i = 0; i < x.size(); i++) sums[by_rows ? i / s.columns : i % s.columns] += x[i] * x[i];
    return sums;
}

double inverse_of(double square) { return 1 / std::max(kSafety * std::sqrt(square), 1e-7); }

template <class Real>
void inverse_norm(Trial& t, const Matrix& s) {
    const auto x = t.normal<Real>(s.count(), s.size);
    double* partials = t.scratch<double>(muon_norm_blocks(s.count()));
    float* inverse = t.result<float>("inverse norm", 1);
    t.run_twice([&] { muon_inverse_norm<Real>(inverse, partials, x, s.count(), kSafety, t.stream()); });
    double sum = 0;
    for (const double value : x.doubles()) sum += value * value;
    // The floor of 1e-7 is rounded to FP32, too.
    t.within(inverse, Bounded({inverse_of(sum)}, (sum > 0 ? 2 : 4) * kUnit, 0));
}

template <class Real>
void matrix_copies(Trial& t, const Matrix& s) {
    const auto copy = [&](Trial& trial, bool transpose, FactorOf of) {
        const auto x = trial.normal<Real>(s.count(), s.size);
        const auto factors = trial.normal<float>(std::max(s.rows, s.columns), 1.0f);
        Real* out = trial.result<Real>("copy", s.count());
        trial.run_twice([&] { copy_matrix<Real>(out, x, s.rows, s.columns, transpose, factors, of, t.stream()); });
        trial.equal(out, [&](size_t i) {
            const size_t row = transpose ? i % s.rows : i / s.columns, column = transpose ? i / s.rows : i % s.columns;
            const size_t place = of == FactorOf::row ? row : of == FactorOf::column ? column : 0;
            return to<Real>(x.at(row * s.columns + column) * (of == FactorOf::none ? 1 : factors.at(place)));
        });
    };
    for (const bool transpose : {false, true})
        for (const FactorOf of : {FactorOf::none, FactorOf::matrix, FactorOf::row, FactorOf::column})
            t.nested([&](Trial& trial) { copy(trial, transpose, of); });
}

// NorMuon: the factors give all lines about the same norm, and leave the norm of the matrix unchanged.
template <class Real>
void line_factors(Trial& t, const Matrix& s) {
    const auto x = t.normal<Real>(s.count(), s.size);
    const auto state = t.input_of(example_state(s.skip));
    const int lines = s.by_rows ? s.rows : s.columns, length = s.by_rows ? s.columns : s.rows;
    const std::vector<float> before(lines, 0.5f);
    float *factors = s.skip ? t.scratch<float>(lines) : t.result<float>("factors", lines),
          *squares = t.scratch<float>(lines), *second = t.result("second moment", lines, before);
    t.run_twice([&] {
        normuon_factors<Real>(factors, second, squares, x, s.rows, s.columns, s.by_rows, kBeta2, state, t.stream());
    });
    if (s.skip) return t.equal(second, before);
    std::vector<double> averages, expected;
    double sum = 0, weighted = 0;
    for (const double of_line : sums_of_squares(x.doubles(), s, s.by_rows)) {
        averages.push_back(kBeta2 * 0.5 + (1 - kBeta2) * of_line / length);
        sum += of_line;
        weighted += of_line / averages.back();
    }
    for (const double average : averages) expected.push_back(std::sqrt(sum / weighted / average));
    t.within(second, Bounded(averages, (length + 8) * kUnit, 0));
    t.within(factors, Bounded(expected, 2 * (length + 8) * kUnit, 0));
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_momentum(Items& items, const Momentum& s) {
    add_kernel<Real>(items, "muon_momentum", momentum<Real>, s);
}
template <class Real>
void add_matrix(Items& items, const Matrix& s) {
    add_kernel<Real>(items, "muon_inverse_norm", inverse_norm<Real>, s);
    if (s.size != 1) return;
    add_kernel<Real>(items, "muon copy_matrix", matrix_copies<Real>, s);
    for (const char* skipped : {"", ", skipped step,"})
        for (const char* lines : {"columns", "rows"})
            add_kernel<Real>(items, fmt::format("muon normuon_factors of {}{}", lines, skipped), line_factors<Real>,
                             {s.rows, s.columns, s.size, *lines == 'r', *skipped != 0});
}

template <class Real>
void add_tests(Items& items) {
    for (const size_t count : {1, 7, 2048, 4101})
        for (const bool nesterov : {false, true})
            for (const bool skip : {false, true})
                for (const StateFormat gradients : {StateFormat::fp32, StateFormat::bf16})
                    add_momentum<Real>(items, {count, nesterov, skip, gradients});
    // The published schedules, by (it / N) with `it` from 0 on.
    for (const auto& [config, applied, beta] : {std::tuple{MuonMomentum{0.95, 300}, 1, 0.85},
                                                {{0.95, 300}, 151, 0.90},
                                                {{0.95, 300}, 300, 0.85 * 1 / 300 + 0.95 * 299 / 300},
                                                {{0.95, 300}, 301, 0.95},
                                                {{0.95, 300}, 5000, 0.95},
                                                {{0.97, 400}, 101, 0.88},
                                                {{0.95, 0}, 1, 0.95},
                                                {{0.95, 1}, 1, 0.85},
                                                {{0.95, 1}, 2, 0.95}})
        add_momentum<Real>(items, {2051, true, false, StateFormat::fp32, config, applied, beta});
    for (const auto& [rows, columns] : {std::pair{1, 1}, {33, 31}, {64, 96}, {5, 200}, {24, 70}})
        add_matrix<Real>(items, {rows, columns});
    for (const int columns : {1, 700, 40000})
        for (const float size : {1e-6f, 1e4f, 0.0f}) add_matrix<Real>(items, {1, columns, size});
}

}  // namespace

void add_muon(Items& items, const KernelUse& use) {
    if (!is_muon(use.optimizer.kind)) return;
    with_type<bf16, float>(use.bf16, [&]<class Real>(Real) {
        add_momentum<Real>(items, {15048, use.optimizer.uses_nesterov(), false, use.gradients});
        add_matrix<Real>(items, {});
    });
}

void add_muon_tests(Items& items) {
    each_type<float, bf16>([&]<class Real>(Real) { add_tests<Real>(items); });
}

}  // namespace llmc::check
