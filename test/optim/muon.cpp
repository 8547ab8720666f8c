// Tests of Newton-Schulz and of Muon's whole step, against polynomials and the published algorithm in FP64.
#include "llmc/optim/muon.h"

#include <cmath>
#include <cstring>
#include <random>

#include "llmc/kernels/muon.h"
#include "llmc/model/architecture.h"
#include "llmc/model/config.h"
#include "llmc/optim/optimizer.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

struct Matrix {
    int rows, columns;
    std::vector<double> values;
    Matrix(int r, int c) : rows(r), columns(c), values(static_cast<size_t>(r) * c) {}
    double& at(int i, int j) { return values[static_cast<size_t>(i) * columns + j]; }
    double at(int i, int j) const { return values[static_cast<size_t>(i) * columns + j]; }
    double norm() const {
        double sum = 0;
        for (const double x : values) sum += x * x;
        return std::sqrt(sum);
    }
    template <class Real>
    Matrix(int r, int c, const std::vector<Real>& v) : Matrix(r, c) {
        values = to_doubles(v);
    }
};

struct Exact {
    double operator()(double x) const { return x; }
};

// Simulates FP32 by random rounding: a result becomes one of its two neighbours by chance (D. S. Parker, "Monte Carlo
// Arithmetic", 1997).
class FP32ByChance {
public:
    explicit FP32ByChance(uint32_t seed) : engine_(seed) {}
    double operator()(double x) {
        const float nearest = static_cast<float>(x);
        if (nearest == x || engine_() % 2 == 0) return nearest;
        return std::nextafter(nearest, nearest < x ? HUGE_VALF : -HUGE_VALF);
    }

private:
    std::minstd_rand engine_;
};

// `round`: every sum, term by term.
template <class Round = Exact>
Matrix product(const Matrix& a, const Matrix& b, Round&& round = {}) {
    Matrix result(a.rows, b.columns);
    for (int i = 0; i < a.rows; i++)
        for (int k = 0; k < a.columns; k++)
            for (int j = 0; j < b.columns; j++) result.at(i, j) = round(result.at(i, j) + a.at(i, k) * b.at(k, j));
    return result;
}
Matrix transposed(const Matrix& a) {
    Matrix result(a.columns, a.rows);
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < a.columns; j++) result.at(j, i) = a.at(i, j);
    return result;
}

// The definition, step by step. Coefficients are FP32 numbers, as products take them.
template <class Round = Exact>
Matrix newton_schulz(const Matrix& u, NewtonSchulzSteps set, Round&& round = {}) {
    if (u.rows > u.columns) return transposed(newton_schulz(transposed(u), set, round));
    for (NewtonSchulzStep& step : set.steps)
        for (double* c : {&step.a, &step.b, &step.c}) *c = static_cast<float>(*c);
    Matrix x = u;
    const double norm = std::max(set.safety * u.norm(), 1e-7);
    for (double& value : x.values) value = round(value * round(1 / norm));
    for (const NewtonSchulzStep& step : set.steps) {
        const Matrix a = product(x, transposed(x), round), aa = product(a, a, round);
        Matrix b(x.rows, x.rows);
        for (size_t i = 0; i < b.values.size(); i++)
            b.values[i] = round(round(step.b * a.values[i]) + step.c * aa.values[i]);
        Matrix next = product(b, x, round);
        for (size_t i = 0; i < next.values.size(); i++)
            next.values[i] = round(round(step.a * x.values[i]) + next.values[i]);
        x = next;
    }
    return x;
}

// n orthonormal columns of length m (Gram and Schmidt, twice).
Matrix orthonormal(int m, int n, uint32_t seed) {
    Matrix q(m, n, random_normal<float>(static_cast<size_t>(m) * n, 1.0f, seed));
    for (int j = 0; j < n; j++)
        for (int pass = 0; pass < 2; pass++) {
            for (int k = 0; k < j; k++) {
                double dot = 0;
                for (int i = 0; i < m; i++) dot += q.at(i, j) * q.at(i, k);
                for (int i = 0; i < m; i++) q.at(i, j) -= dot * q.at(i, k);
            }
            double norm = 0;
            for (int i = 0; i < m; i++) norm += q.at(i, j) * q.at(i, j);
            for (int i = 0; i < m; i++) q.at(i, j) /= std::sqrt(norm);
        }
    return q;
}

// U diag(values) V^T, and the singular vectors.
struct Known {
    Matrix u, v, matrix;
    Known(int rows, int columns, const std::vector<double>& values, uint32_t seed)
        : u(orthonormal(rows, static_cast<int>(values.size()), seed)),
          v(orthonormal(columns, static_cast<int>(values.size()), seed + 1)),
          matrix(rows, columns) {
        Matrix scaled = u;
        for (int i = 0; i < rows; i++)
            for (size_t k = 0; k < values.size(); k++) scaled.at(i, static_cast<int>(k)) *= values[k];
        matrix = product(scaled, transposed(v));
    }
};

template <class Real>
std::vector<Real> rounded(const std::vector<double>& values) {
    std::vector<Real> result;
    for (const double x : values) result.push_back(to<Real>(static_cast<float>(x)));
    return result;
}

// Uses the kernels and products of Muon.
template <class Real>
std::vector<Real> orthogonalized(const std::vector<Real>& values, int rows, int columns, const NewtonSchulzSteps& set) {
    const int m = std::min(rows, columns), n = std::max(rows, columns);
    NewtonSchulz<Real> newton_schulz(set, {NewtonSchulz<Real>::shape(m, n)});
    Matmul matmul(false);
    test_stream();
    Arena arena(MemoryKind::workspace);
    newton_schulz.plan(arena);
    arena.allocate();
    matmul.reserve(NewtonSchulz<Real>::shape(m, n));
    DeviceArray<Real> u(values), o(values.size());
    DeviceArray<double> partials(muon_norm_blocks(values.size()));
    DeviceArray<float> inverse(1);
    muon_inverse_norm(inverse.get(), partials.get(), u.get(), values.size(), newton_schulz.safety(), test_stream());
    copy_matrix(newton_schulz.input(), u.get(), rows, columns, rows > columns, inverse, FactorOf::matrix,
                test_stream());
    const Real* const x = newton_schulz.run(matmul, m, n, test_stream());
    copy_matrix(o.get(), x, m, n, rows > columns, nullptr, FactorOf::none, test_stream());
    const std::vector<Real> result = o.download();
    synchronize(test_stream());
    return result;
}

constexpr MuonSteps kSets[] = {MuonSteps::k, MuonSteps::p};
const std::pair<int, int> kShapes[] = {{48, 48}, {96, 40}, {24, 72}, {1, 64}, {64, 1}};

}  // namespace

// The allowed distance of an FP32 result from FP64, for any order in which a library sums: four times that of the worse
// of two runs whose roundings are twice as large and random. Plain FP32 is up to 2e-6 (`p`) away, and 1e-5 for
// one row with `p`, whose first step is 8 - 22 + 16 there; NumPy's products are as far away as ours.
double rounding_bound(const Matrix& u, const NewtonSchulzSteps& steps) {
    const Matrix exact = newton_schulz(u, steps);
    double worst = 0;
    for (uint32_t seed = 1; seed <= 2; seed++)
        worst = std::max(worst, relative_norm_error(newton_schulz(u, steps, FP32ByChance(seed)).values, exact.values));
    return 4 * worst;
}

TEST_CASE("Newton-Schulz in FP32 is the polynomial in FP64, of every shape and set") {
    for (const MuonSteps set : kSets)
        for (const auto& [rows, columns] : kShapes) {
            CAPTURE(word_of(set));
            CAPTURE(rows);
            const NewtonSchulzSteps steps = newton_schulz_steps(set);
            const auto u = random_normal<float>(static_cast<size_t>(rows) * columns, 3.0f, 11);
            const auto o = orthogonalized(u, rows, columns, steps);
            const Matrix in(rows, columns, u);
            const double bound = rounding_bound(in, steps);
            CHECK(relative_norm_error(o, newton_schulz(in, steps).values) < bound);
            // Shows that another polynomial is noticed.
            NewtonSchulzSteps other = steps;
            other.steps.back().c *= 1.001;
            CHECK(relative_norm_error(o, newton_schulz(in, other).values) > bound);
        }
}

TEST_CASE("Newton-Schulz in BF16 is near the polynomial, and singular values land in each set's band") {
    const struct {
        MuonSteps set;
        double low, high;
    } bands[] = {{MuonSteps::k, 0.68, 1.13}, {MuonSteps::p, 0.86, 1.14}};
    std::vector<double> values;
    for (int i = 0; i < 32; i++) values.push_back(std::pow(10.0, -1.2 * i / 31));
    const Known known(64, 32, values, 5);
    REQUIRE(values.back() > 1e-2 * known.matrix.norm());
    const std::vector<bf16> u = rounded<bf16>(known.matrix.values);
    for (const auto& [set, low, high] : bands) {
        CAPTURE(word_of(set));
        const auto o = orthogonalized(u, 64, 32, newton_schulz_steps(set));
        CHECK(relative_norm_error(o, newton_schulz(Matrix(64, 32, u), newton_schulz_steps(set)).values) < 0.03);
        const Matrix result(64, 32, o);
        const Matrix inner = product(transposed(known.u), product(result, known.v));  // about diagonal
        for (int i = 0; i < 32; i++) {
            CHECK(inner.at(i, i) > low - 0.03);
            CHECK(inner.at(i, i) < high + 0.03);
        }
    }
    // Results of `k` are outside the band of `p`, so the bands tell them apart.
    const Matrix k(64, 32, orthogonalized(u, 64, 32, newton_schulz_steps(MuonSteps::k)));
    const Matrix inner = product(transposed(known.u), product(k, known.v));
    double least = 1;
    for (int i = 0; i < 32; i++) least = std::min(least, inner.at(i, i));
    CHECK(least < 0.86 - 0.03);
}

TEST_CASE_TEMPLATE("Newton-Schulz: zeros stay zeros, powers of two change no bit, rank one gives p(1)", Real, float,
                   bf16) {
    const int rows = 40, columns = 24;
    const size_t n = static_cast<size_t>(rows) * columns;
    for (const MuonSteps set : kSets) {
        CAPTURE(word_of(set));
        const NewtonSchulzSteps steps = newton_schulz_steps(set);
        for (const Real x : orthogonalized(std::vector<Real>(n, to<Real>(0.0f)), rows, columns, steps))
            REQUIRE(to_float(x) == 0.0f);

        const auto u = random_normal<Real>(n, 1.0f, 7);
        const auto o = orthogonalized(u, rows, columns, steps);
        for (const float factor : {0x1p-12f, 0x1p9f, 3.0f}) {
            std::vector<Real> scaled;
            for (const Real x : u) scaled.push_back(to<Real>(to_float(x) * factor));
            const auto other = orthogonalized(scaled, rows, columns, steps);
            CHECK((std::memcmp(other.data(), o.data(), n * sizeof(Real)) == 0) == (factor != 3.0f));
        }

        if (sizeof(Real) == 2) continue;          // where terms cancel at 1, BF16 leaves nothing to compare
        Matrix left(rows, 1), right(1, columns);  // of powers of two: the matrix is of rank one to the bit
        for (int i = 0; i < rows; i++) left.values[i] = std::ldexp(i % 3 ? 1 : -1, i % 4);
        for (int i = 0; i < columns; i++) right.values[i] = std::ldexp(i % 5 ? -1 : 1, i % 3);
        const Matrix one = product(left, right);
        Matrix expected = one;  // p(1) uv^T
        double p = 1 / steps.safety;
        for (const NewtonSchulzStep& s : steps.steps) p = s.a * p + s.b * p * p * p + s.c * p * p * p * p * p;
        for (double& x : expected.values) x *= p / one.norm();
        CHECK(relative_norm_error(orthogonalized(rounded<Real>(one.values), rows, columns, steps), expected.values) <
              rounding_bound(one, steps));
    }
}

// ---- whole steps ---------------------------------------------------------------------------------------------------

namespace {

// An embedding, two blocks with a fused tensor and matrices of all orientations, and a norm with a head.
std::vector<Unit> units_of(bool fused) {
    std::vector<Unit> units(4);
    units[0] = {"embedding", {{"wte", {32, 16}, true}}};
    for (const size_t u : {1u, 2u}) {
        units[u].name = "block";
        if (fused) {
            units[u].tensors.push_back({"qkv", {48, 16}, true, 0, {16, 16, 16}});
            units[u].tensors.push_back({"gate_up", {64, 16}, true, 0, {24, 40}});
        } else {
            for (const char* name : {"q", "k", "v"}) units[u].tensors.push_back({name, {16, 16}, true});
            units[u].tensors.push_back({"gate", {24, 16}, true});
            units[u].tensors.push_back({"up", {40, 16}, true});
        }
        units[u].tensors.push_back({"down", {16, 40}, true});
        units[u].tensors.push_back({"norm", {16}, false});
    }
    units[3] = {"final", {{"head", {32, 16}, true}, {"last", {16}, false}}};
    return units;
}

struct StepOptions {
    OptimizerConfig optimizer = {.kind = OptimizerKind::muon, .adamw_weight_decay = 0.2};
    bool fused = true;
    int steps = 4;
};
const ScheduleConfig kMuonSchedule{ScheduleKind::linear, 2e-2, 2, 10, 0.1};
const AdamWConfig kMuonAdamW = StepOptions().optimizer.adamw();

std::vector<float> gradient_of(int step, size_t unit, size_t count) {
    return random_normal<float>(count, 0.3f, static_cast<uint32_t>(100 * step + 7 * static_cast<int>(unit) + 1));
}

// The masters of all units after some steps. Tensors lie without gaps here, so that both tables have one layout.
template <class Real>
std::vector<std::vector<float>> weights_after(const StepOptions& o) {
    const stream_t stream = test_stream();
    const ParameterTable table(units_of(o.fused), 1);
    const ShardLayout layout(table, Comm::self());
    Weights<Real> weights(layout);
    Gradients gradients(layout);
    Matmul matmul(false);
    const OptimizerSetup setup{.schedule = kMuonSchedule, .optimizer = o.optimizer};
    Optimizer<Real> optimizer(setup, weights, gradients, &matmul);
    weights.allocate(stream);
    gradients.allocate(stream);
    optimizer.allocate(stream);
    for (size_t u = 0; u < 4; u++) {
        const auto start = random_normal<float>(table.unit(u).count, 0.5f, static_cast<uint32_t>(u) + 50);
        for (const ParameterTensor& tensor : table.unit(u).tensors)
            weights.set_master(u, tensor.offset, start.data() + tensor.offset, tensor.count(), stream);
    }
    DeviceArray<double> loss(std::vector<double>{1.0});
    for (int step = 0; step < o.steps; step++) {
        gradients.begin_micro_step(true, true);
        for (size_t u = 0; u < 4; u++) {
            gradients.acquire(u, stream);
            const auto values = gradient_of(step, u, table.unit(u).count);
            for (size_t t = 0; t < table.unit(u).tensors.size(); t++) {
                const ParameterTensor& tensor = table.unit(u).tensors[t];
                write_through(gradients.gradient(u, t), values.data() + tensor.offset, tensor.count(), stream);
            }
            gradients.reduce(u, stream);
        }
        optimizer.update(loss, nullptr, stream);
    }
    std::vector<std::vector<float>> after;
    for (size_t u = 0; u < 4; u++)
        after.push_back(read_back(weights.slice(u).master.template as<float>(), table.unit(u).count, stream));
    return after;
}

// Muon as published, matrix by matrix, with NorMuon's lines.
void simulate_matrix(const MuonMatrix& m, const StepOptions& o, std::vector<double>& unit) {
    Matrix momentum(m.rows, m.columns);
    const bool by_rows = m.rows >= m.columns;
    std::vector<double> second(static_cast<size_t>(m.larger()), 0.0);
    for (int step = 0; step < o.steps; step++) {
        const auto grads = gradient_of(step, m.unit, unit.size());
        const MuonMomentum warmup = o.optimizer.muon_momentum();
        const double part = warmup.warmup > 0 ? std::min(1.0, static_cast<double>(step) / warmup.warmup) : 1;
        const double rate = learning_rate(kMuonSchedule, step), mu = (1 - part) * 0.85 + part * warmup.momentum;
        Matrix u(m.rows, m.columns);
        for (size_t i = 0; i < m.count(); i++) {
            const double g = grads[m.begin + i];
            momentum.values[i] = mu * momentum.values[i] + (1 - mu) * g;
            u.values[i] = o.optimizer.uses_nesterov() ? (1 - mu) * g + mu * momentum.values[i] : momentum.values[i];
        }
        Matrix direction = newton_schulz(u, newton_schulz_steps(o.optimizer.muon_ns));
        if (o.optimizer.kind == OptimizerKind::normuon) {
            const double norm = direction.norm();
            const int lines = by_rows ? m.rows : m.columns, length = by_rows ? m.columns : m.rows;
            for (int line = 0; line < lines; line++) {
                double squares = 0;
                for (int i = 0; i < length; i++)
                    squares += std::pow(by_rows ? direction.at(line, i) : direction.at(i, line), 2) / length;
                double& average = second[line];
                average = o.optimizer.normuon_beta2 * average + (1 - o.optimizer.normuon_beta2) * squares;
                for (int i = 0; i < length; i++)
                    (by_rows ? direction.at(line, i) : direction.at(i, line)) /= std::sqrt(average);
            }
            const double now = direction.norm();
            for (double& x : direction.values) x *= norm / now;
        }
        for (size_t i = 0; i < m.count(); i++) {
            double& p = unit[m.begin + i];
            const double agreement = direction.values[i] * p;
            if (o.optimizer.cautious_decay) REQUIRE(std::fabs(agreement) > 1e-7);  // no sign depends on a rounding
            const double decay = o.optimizer.cautious_decay && agreement < 0 ? 0 : o.optimizer.weight_decay;
            p = p * (1 - rate * decay) -
                rate * muon_scale(o.optimizer.muon_scale, m.rows, m.columns) * direction.values[i];
        }
    }
}

void simulate_adamw(size_t unit_index, size_t begin, size_t end, double factor, double decay, int steps,
                    std::vector<double>& unit) {
    std::vector<double> m(unit.size()), v(unit.size());
    for (int step = 0; step < steps; step++) {
        const auto grads = gradient_of(step, unit_index, unit.size());
        const double rate = learning_rate(kMuonSchedule, step) * factor;
        for (size_t i = begin; i < end; i++) {
            const double g = grads[i];
            m[i] = kMuonAdamW.beta1 * m[i] + (1 - kMuonAdamW.beta1) * g;
            v[i] = kMuonAdamW.beta2 * v[i] + (1 - kMuonAdamW.beta2) * g * g;
            const double m_hat = m[i] / (1 - std::pow(kMuonAdamW.beta1, step + 1)),
                         v_hat = v[i] / (1 - std::pow(kMuonAdamW.beta2, step + 1));
            unit[i] = unit[i] * (1 - rate * decay) - rate * m_hat / (std::sqrt(v_hat) + kMuonAdamW.eps);
        }
    }
}

std::vector<std::vector<double>> simulated(const StepOptions& o) {
    const ParameterTable table(units_of(o.fused), 1);
    std::vector<std::vector<double>> units;
    for (size_t u = 0; u < 4; u++)
        units.push_back(to_doubles(random_normal<float>(table.unit(u).count, 0.5f, static_cast<uint32_t>(u) + 50)));
    for (const MuonMatrix& m : plan_muon(table, 1)) simulate_matrix(m, o, units[m.unit]);
    for (size_t u = 0; u < 4; u++)
        for (const ParameterTensor& t : table.unit(u).tensors) {
            const bool block = u == 1 || u == 2;
            if (block && t.decay) continue;
            const double factor = o.optimizer.rates(kMuonSchedule.lr).of[!t.decay ? 2 : u == 0 ? 0 : 1];
            simulate_adamw(u, t.offset, t.offset + t.count(), factor, t.decay ? kMuonAdamW.weight_decay : 0, o.steps,
                           units[u]);
        }
    return units;
}

// The largest of the units' errors. Ignores padding.
double step_error(const StepOptions& run, const StepOptions& reference) {
    const auto after = weights_after<float>(run);
    const auto expected = simulated(reference);
    const ParameterTable table(units_of(run.fused), 1);
    double worst = 0;
    for (size_t u = 0; u < 4; u++) {
        const ParameterTensor& last = table.unit(u).tensors.back();
        const size_t n = last.offset + last.count();
        const double error =
            relative_norm_error(std::vector<float>(after[u].begin(), after[u].begin() + static_cast<long>(n)),
                                std::vector<double>(expected[u].begin(), expected[u].begin() + static_cast<long>(n)));
        worst = error > worst || error != error ? error : worst;
    }
    return worst;
}

}  // namespace

TEST_CASE("Muon's whole step is the published algorithm, with every setting") {
    std::vector<StepOptions> all(1);
    const auto add = [&](auto&& change) {
        StepOptions o;
        change(o);
        all.push_back(o);
    };
    add([](StepOptions& o) { o.optimizer.momentum = 0.5; });
    add([](StepOptions& o) { o.optimizer.muon_momentum_warmup = 3; });
    add([](StepOptions& o) { o.optimizer.cautious_decay = true; });
    add([](StepOptions& o) { o.optimizer.nesterov = Nesterov::off; });
    add([](StepOptions& o) { o.optimizer.muon_scale = MuonScale::spectral; });
    add([](StepOptions& o) { o.optimizer.weight_decay = 10; });
    add([](StepOptions& o) { o.optimizer.muon_ns = MuonSteps::p; });
    add([](StepOptions& o) { o.optimizer.embedding_lr = 3 * kMuonSchedule.lr; });
    add([](StepOptions& o) { o.optimizer.head_lr = 0.25 * kMuonSchedule.lr; });
    add([](StepOptions& o) { o.optimizer.vector_lr = 2 * kMuonSchedule.lr; });
    add([](StepOptions& o) { o.optimizer.kind = OptimizerKind::normuon; });
    add([](StepOptions& o) { o.optimizer.kind = OptimizerKind::normuon, o.optimizer.normuon_beta2 = 0.5; });
    for (size_t i = 0; i < all.size(); i++) {
        CAPTURE(i);
        CHECK(step_error(all[i], all[i]) < 1e-6);
        // Every setting matters.
        if (i > 0) CHECK(step_error(all[i], i == all.size() - 1 ? all[i - 1] : all[0]) > 1e-4);
    }
}

TEST_CASE_TEMPLATE("Q, K and V, gate and up are updated as if they were separate tensors", Real, float, bf16) {
    for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon}) {
        StepOptions fused, apart;
        fused.optimizer.kind = apart.optimizer.kind = kind;
        apart.fused = false;
        const auto a = weights_after<Real>(fused), b = weights_after<Real>(apart);
        for (size_t u = 0; u < 4; u++)
            CHECK((a[u].size() == b[u].size() && std::memcmp(a[u].data(), b[u].data(), a[u].size() * 4) == 0));
        CHECK(plan_muon(ParameterTable(units_of(true), 1), 1).size() == 12);
    }
}

TEST_CASE("fused tensors are split in every architecture, and every matrix of the blocks is there") {
    for (const auto& [name, matrices] : {std::pair{"gpt2", 6u}, {"llama3.2-1b", 7u}}) {
        CAPTURE(name);
        ModelConfig config = find_model(name);
        config.vocab = 512;
        const ParameterTable table(parameter_units(config), 1);
        const std::vector<MuonMatrix> plan = plan_muon(table, 1);
        CHECK(plan.size() == matrices * static_cast<size_t>(config.layers));
        size_t elements = 0;
        for (const MuonMatrix& m : plan) elements += m.unit == 1 ? m.count() : 0;
        CHECK(elements == static_cast<size_t>(config.table().block_matrix_parameters()));
    }
}

TEST_CASE("moments: a unit without tensors needs no memory") {
    std::vector<Unit> units = units_of(true);
    units.push_back({"empty", {}});
    const ParameterTable table(units, 1);
    REQUIRE(table.unit(4).count == 0);
    OptimizerMoments moments{ShardLayout(table, Comm::self())};
    moments.add_everywhere("m");
    CHECK(moments.bytes() >= table.count() * sizeof(float));
}

TEST_CASE("Muon's plan: every rank has work, at most its share plus one matrix, and bad tables are refused") {
    std::vector<Unit> units(14);
    units[0] = {"embedding", {{"wte", {64, 64}, true}}};
    units[13] = {"final", {{"norm", {64}, false}}};
    for (size_t u = 1; u < 13; u++)
        units[u] = {"block",
                    {{"qkv", {192, 64}, true, 0, {64, 64, 64}},
                     {"proj", {64, 64}, true},
                     {"fc", {256, 64}, true},
                     {"fc_proj", {64, 256}, true},
                     {"norm", {64}, false}}};
    for (const int ranks : {1, 2, 3, 5, 8}) {
        CAPTURE(ranks);
        const std::vector<MuonMatrix> plan = plan_muon(ParameterTable(units, ranks), ranks);
        REQUIRE(plan.size() == 72);
        const size_t blocks = static_cast<size_t>(ranks + 1) / 2;
        for (size_t round = 0; round <= plan.back().round; round++) {
            std::vector<double> load(static_cast<size_t>(ranks));
            double all = 0, largest = 0;
            size_t units_in_round = 0, last = 0;
            for (const MuonMatrix& m : plan) {
                if (m.round != round) continue;
                units_in_round += m.unit != last, last = m.unit;
                load[m.owner] += m.flops_of_a_step();
                all += m.flops_of_a_step(), largest = std::max(largest, m.flops_of_a_step());
            }
            CHECK(units_in_round <= blocks);
            for (const double work : load) {
                CHECK(work <= all / ranks + largest);  // the promise of this distribution of work
                CHECK(work > 0);
            }
        }
    }
    units[5].tensors[0].matrix_rows = {64, 64};
    CHECK_THROWS_AS(plan_muon(ParameterTable(units, 1), 1), Error);
    units[5].tensors[0] = {"odd", {5, 3}, true, 0, {1, 4}};
    CHECK_THROWS_WITH_AS(plan_muon(ParameterTable(units, 1), 1),
                         "--optimizer muon: odd has a matrix of 4 rows that begins at element 3, which is not a "
                         "multiple of 8",
                         Error);
}
