// Layer norm and RMS norm, plain and quantizing.
#include "llmc/kernels/norm.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

using reference::rounding_error, reference::to_doubles;

constexpr float kEps = 0.01f;  // RMS norm's eps; large enough that a kernel without it is wrong

enum class Kind { layer, rms, rms_without_gains };

struct Shape {
    int N, C;
    Kind kind;
    bool add = true;       // backward: with the residual's gradient
    float bad = 0;         // if not 0: one element of the middle row has this value
    float scale = 100.0f;  // scales the output's E4M3 codes, so that some saturate
    bool once = false;     // backward: one pass alone

    size_t n() const { return size_t{1} * N * C; }
    bool centered() const { return kind == Kind::layer; }
    bool has_gains() const { return kind != Kind::rms_without_gains; }
    std::vector<Axis> elements() const { return matrix(N, C); }
    std::string text() const {
        return fmt::format(" N={} C={}{}{}", N, C, has_gains() ? "" : " without gains",
                           add ? "" : " without residual") +
               (bad != 0 ? fmt::format(" with {:g}", bad) : "");
    }
    std::string name() const { return centered() ? "layernorm" : "rmsnorm"; }
};

// Input rows. RMS norm also gets a row of zeros, one of 1e4, and one so small that eps decides.
template <class Real>
std::vector<Real> rows_of(Trial& t, const Shape& s, float deviation, float mean) {
    std::vector<Real> x = t.random<Real>(s.n(), deviation, mean);
    const size_t C = s.C;
    for (size_t i = 0; i < 3 * C && s.N > 8 && !s.centered(); i++)
        x[i] = to<Real>(i < C ? 0.0f : i < 2 * C ? (i % 3 ? 1e4f : -1e4f) : (i % 2 ? 1e-3f : -2e-3f));
    if (s.bad != 0) x[s.N / 2 * C + C / 2] = to<Real>(s.bad);
    return x;
}

template <class Real>
struct Gains {
    Input<Real> weight, shift;
    Gains() = default;
    Gains(Trial& t, const Shape& s) {
        if (s.has_gains()) weight = t.normal<Real>(s.C, 0.3f, 1.0f);
        if (s.centered()) shift = t.normal<Real>(s.C, 0.3f);
    }
    operator NormParameters<Real>() const {
        return shift ? NormParameters<Real>{weight, shift} : NormParameters<Real>{weight, nullptr, kEps};
    }
};

reference::RowStatistics statistics_of(const std::vector<double>& x, const Shape& s) {
    return s.centered() ? reference::layernorm_statistics(x, s.N, s.C)
                        : reference::rmsnorm_statistics(x, s.N, s.C, kEps);
}

// ---- forward -------------------------------------------------------------------------------------------------------

struct RowResults {
    float *mean, *rstd;
    RowResults(Trial& t, const Shape& s, const char* mean_name = "mean", const char* rstd_name = "rstd")
        : mean(s.centered() ? t.result<float>(mean_name, {{"n", s.N}}) : nullptr),
          rstd(t.result<float>(rstd_name, {{"n", s.N}})) {}
    RowResults() : mean(nullptr), rstd(nullptr) {}
    void equal(Trial& t, const Trial& other_trial, const RowResults& other) const {
        if (mean) t.equal(mean, other_trial.read(other.mean));
        t.equal(rstd, other_trial.read(other.rstd));
    }
};

template <class Real>
void forward(Trial& t, const Shape& s) {
    const auto inp = t.input(rows_of<Real>(t, s, 1.0f, 1.0f));
    const Gains<Real> gains(t, s);
    const RowResults rows(t, s), rows_in_place(t, s, "mean in place", "rstd in place");
    Real *normed = t.result<Real>("normed", s.elements()), *again = t.result<Real>("normed again", s.elements());
    Real* over = t.result("normed over inp", s.elements(), inp.values);
    const auto run = [&](Real* out, const RowResults& own, const Real* from) {
        norm_forward<Real>(gains, out, own.mean, own.rstd, from, s.N, s.C, t.stream());
    };
    t.run_twice([&] {
        run(normed, rows, inp);
        run(again, {}, inp);
        run(over, rows_in_place, over);
    });
    const auto x = to_doubles(inp.values);
    const auto expected = statistics_of(x, s);
    if (rows.mean) t.within(rows.mean, Bounded(expected.mean, reference::kMeanError, 1.0));
    t.within(rows.rstd, Bounded(expected.rstd, reference::kRstdError, 0.0));
    t.within(normed,
             Bounded(reference::normed_rows(x, expected, gains.weight.doubles(), gains.shift.doubles()),
                     rounding_error<Real>() + reference::kNormError, s.centered() ? reference::kNormedFloor : 0.0));
    t.equal(again, t.read(normed));
    t.equal(over, t.read(normed));
    rows_in_place.equal(t, t, rows);
}

// The statistics are the plain kernel's, byte by byte. RMS norm's codes are quantize() of the plain kernel's output;
// layer norm's are of values in FP32, so any code between the bounds' is right.
void forward_fp8(Trial& t, const Shape& s) {
    const auto inp = t.input(rows_of<bf16>(t, s, 1.0f, 0.5f));
    const Gains<bf16> gains(t, s);
    const RowResults rows(t, s);
    bf16* normed = s.centered() ? t.scratch<bf16>(s.n()) : t.result<bf16>("normed", s.elements());
    t.run_twice([&] { norm_forward<bf16>(gains, normed, rows.mean, rows.rstd, inp, s.N, s.C, t.stream()); });
    const auto x = to_doubles(inp.values);
    const CodeRanges<e4m3> expected(
        Bounded(reference::normed_rows(x, statistics_of(x, s), gains.weight.doubles(), gains.shift.doubles()),
                reference::kNormError, reference::kNormedFloor),
        s.scale);
    each_pass<e4m3>(t, kAllPasses, s.N, s.C, s.scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const RowResults own(trial, s);
        trial.run_twice(
            [&] { norm_forward_fp8(gains, to.target(), own.mean, own.rstd, inp, s.N, s.C, pass, t.stream()); });
        own.equal(trial, t, rows);
        if (s.centered())
            to.compare(expected, {pass});
        else
            to.compare_with_cast(normed, nullptr, pass);
    });
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Inputs of the backward pass, and the FP64 gradients: dinp of the norm alone, and with the residual's added.
template <class Real>
struct Gradient {
    Input<Real> inp, dout, dresidual;
    Gains<Real> gains;
    Input<float> mean, rstd;
    reference::NormGradient expected;
    std::vector<double> total;

    Gradient(Trial& t, const Shape& s)
        : inp(t.normal<Real>(s.n(), 2.0f, 0.5f)), dout(t.normal<Real>(s.n(), 1.0f, 0.2f)) {
        auto residual_gradient = t.random<Real>(s.n(), 1.0f, 0.3f);
        if (s.bad != 0) {
            residual_gradient[5] = to<Real>(s.bad);
            residual_gradient[s.n() / 2] = to<Real>(NAN);
        }
        dresidual = t.input(residual_gradient);
        gains = Gains<Real>(t, s);
        const auto statistics = statistics_of(inp.doubles(), s);
        if (s.centered()) mean = t.input(std::vector<float>(statistics.mean.begin(), statistics.mean.end()));
        rstd = t.input(std::vector<float>(statistics.rstd.begin(), statistics.rstd.end()));
        expected =
            reference::norm_gradient(inp.doubles(), dout.doubles(), gains.weight.doubles(), statistics, s.centered());
        total = plus(expected.dinp, reference::to_floats(residual_gradient));
    }
};

// Gradients of gains and shift, over the rows and times `count`, on top of `before`.
struct Sums {
    float *dweight = nullptr, *dshift = nullptr;

    Sums(Trial& t, const Shape& s, const char* weight_name, const char* shift_name,
         const std::vector<float>& before = {}) {
        if (s.has_gains()) dweight = t.result(weight_name, s.C, before);
        if (s.centered()) dshift = t.result(shift_name, s.C, before);
    }
    void within(Trial& t, const Shape& s, const reference::NormGradient& expected,
                const std::vector<float>& before = {}) const {
        const double floor = 1.0 + s.N + (before.empty() ? 0 : 10);
        const auto compare = [&](const float* array, const std::vector<double>& sums) {
            if (array) t.within(array, Bounded(plus(sums, before), reference::kNormSumError, floor));
        };
        compare(dweight, expected.dweight);
        compare(dshift, expected.dshift);
    }
    void equal(Trial& t, const Sums& other) const {
        if (dweight) t.equal(dweight, t.read(other.dweight));
        if (dshift) t.equal(dshift, t.read(other.dshift));
    }
};

template <class Real>
void backward(Trial& t, const Shape& s) {
    const Gradient<Real> g(t, s);
    const auto before = t.random<float>(s.C, 10.0f);
    Real *alone = t.result<Real>("dinp without dresidual", s.elements()), *dinp = t.result<Real>("dinp", s.elements());
    Real *over_residual = t.result("dinp over dresidual", s.elements(), g.dresidual.values),
         *over_dout = t.result("dinp over dout", s.elements(), g.dout.values);
    const Sums sums(t, s, "dweight", "dshift"), again(t, s, "dweight again", "dshift again"),
        accumulated(t, s, "accumulated dweight", "accumulated dshift", before),
        of_dout(t, s, "dweight over dout", "dshift over dout");
    const NormParameters<Real> norm = g.gains;
    float* scratch = s.has_gains() ? t.scratch<float>(norm_backward_scratch(norm.kind(), s.N, s.C)) : nullptr;
    const auto run = [&](Real* to, const Real* residual_gradient, const Sums& into, const Real* from, bool accumulate) {
        norm_backward<Real>(norm, {into.dweight, into.dshift, scratch, accumulate}, to, residual_gradient, from, g.inp,
                            g.mean, g.rstd, s.N, s.C, t.stream());
    };
    t.run_twice([&] {
        run(alone, nullptr, sums, g.dout, false);
        run(dinp, g.dresidual, again, g.dout, false);
        run(over_residual, over_residual, accumulated, g.dout, true);
        run(over_dout, nullptr, of_dout, over_dout, false);
    });
    const double relative = rounding_error<Real>() + reference::kNormError;
    t.within(alone, Bounded(g.expected.dinp, relative, reference::kNormGradientFloor));
    t.within(dinp, Bounded(g.total, relative, reference::kNormedFloor));
    t.equal(over_residual, t.read(dinp));
    t.equal(over_dout, t.read(alone));
    sums.within(t, s, g.expected);
    again.equal(t, sums);
    of_dout.equal(t, sums);
    accumulated.within(t, s, g.expected, before);
}

// The gradient is held to FP64; codes, counts and the bias gradient of the layer before follow from its BF16 values.
void backward_fp8(Trial& t, const Shape& s) {
    const Gradient<bf16> g(t, s);
    const float scale = 30000.0f;  // some saturate
    const auto before = t.random<float>(s.C, 10.0f);
    const auto try_pass = [&](Trial& trial, const QuantizedResults<e5m2>& to, QuantizePass pass, bool in_place) {
        const std::vector<float> start = in_place ? before : std::vector<float>();
        const Sums sums(trial, s, "dweight", "dshift", start);
        bf16* dinp = in_place ? trial.result("dinp in place", s.elements(), (s.add ? g.dresidual : g.dout).values)
                              : trial.result<bf16>("dinp", s.elements());
        const bf16* const from = in_place && !s.add ? dinp : g.dout;
        const bf16* const added = !s.add ? nullptr : in_place ? dinp : g.dresidual;
        float *parts = nullptr, *dbias = nullptr, *scratch = nullptr;
        if (s.centered()) {
            parts = trial.scratch<float>(norm_backward_fp8_bias_parts(s.N, s.C));
            dbias = trial.result("dbias", s.C, before);
        }
        const NormParameters<bf16> norm = g.gains;
        if (s.has_gains()) scratch = trial.scratch<float>(norm_backward_fp8_scratch(norm.kind(), s.N, s.C));
        const bool writes = pass != QuantizePass::measure;
        trial.run_twice([&] {
            norm_backward_fp8(norm, {sums.dweight, sums.dshift, scratch, in_place}, to.target(), parts, dinp, added,
                              from, g.inp, g.mean, g.rstd, s.N, s.C, pass, t.stream());
            if (writes && dbias) finish_bias_gradient(dbias, parts, s.N, s.C, in_place, t.stream());
        });
        trial.within(dinp, Bounded(s.add ? g.total : g.expected.dinp, rounding_error<bf16>() + reference::kNormError,
                                   reference::kNormedFloor));
        sums.within(trial, s, g.expected, start);
        to.compare_with_cast(dinp, nullptr, pass);
        if (!dbias || s.bad != 0) return;
        if (!writes) return trial.equal(dbias, before);
        const auto columns = reference::column_sums(reference::to_floats(trial.read(dinp)), s.C);
        trial.within(dbias, Bounded(plus(columns, start), reference::kColumnSumError, (in_place ? 10 : 1) + 0.3 * s.N));
    };
    if (s.once)
        return t.nested([&](Trial& trial) { try_pass(trial, {trial, s.N, s.C, scale}, QuantizePass::train, false); });
    each_pass<e5m2>(t, kTrainingPasses, s.N, s.C, scale,
                    [&](Trial& trial, const auto& to, QuantizePass pass) { try_pass(trial, to, pass, false); });
    t.nested([&](Trial& trial) { try_pass(trial, {trial, s.N, s.C, scale}, QuantizePass::train, true); });
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_plain(Items& items, const Shape& s) {
    add_kernel<Real>(items, s.name() + "_forward", forward<Real>, s);
    if (s.bad == 0) add_kernel<Real>(items, s.name() + "_backward", backward<Real>, s);
}
void add_forward_fp8(Items& items, const Shape& s) { add_kernel(items, s.name() + "_forward_fp8", forward_fp8, s); }
void add_backward_fp8(Items& items, const Shape& s) {
    add_kernel<e5m2>(items, s.name() + "_backward_fp8", backward_fp8, s);
}

using Sizes = std::vector<std::pair<int, int>>;  // N, C

// The kernels without gains are those with gains, with one product less.
void add_tests_without_gains(Items& items) {
    for (const auto& [N, C] : Sizes{{1, 8}, {33, 192}, {9, 1024}, {6, 2056}, {3, 12288}})
        each_type<float, bf16>([&]<class Real>(Real) { add_plain<Real>(items, {N, C, Kind::rms_without_gains}); });
    for (const auto& [N, C] : Sizes{{48, 64}, {16, 1600}, {16, 4112}}) {
        Shape s{.N = N, .C = C, .kind = Kind::rms_without_gains, .add = false, .scale = 0.01f};
        add_forward_fp8(items, s);
        if (C <= kWidestFusedGradient) add_backward_fp8(items, s);
    }
}

void add_tests(Items& items, Kind kind) {
    // Less and more than a block's worth of rows; rows narrower than a warp, of whole and odd vectors a thread, of
    // every number of warps, and the widest.
    for (const auto& [N, C] : Sizes{{1, 8},    {33, 8},   {250, 8},  {7, 64},   {33, 64},   {250, 192}, {33, 128},
                                    {33, 192}, {1, 768},  {33, 768}, {7, 1600}, {33, 1600}, {9, 256},   {9, 512},
                                    {9, 1024}, {6, 2048}, {6, 2056}, {5, 4096}, {5, 5000},  {3, 12288}})
        each_type<float, bf16>([&]<class Real>(Real) { add_plain<Real>(items, {N, C, kind}); });
    for (const int C : {64, 768, 2304}) add_plain<bf16>(items, {.N = 9, .C = C, .kind = kind, .bad = NAN});
    // Whole blocks of rows and not. The last widths need 48 KB of shared memory with the static arrays alone.
    const Sizes forward_sizes = {{16, 16},   {48, 64},   {80, 144},  {32, 512},  {48, 768},  {16, 1600},
                                 {272, 144}, {32, 256},  {16, 1024}, {16, 2048}, {16, 2064}, {16, 4112},
                                 {16, 8208}, {16, 1296}, {16, 1536}, {16, 2576}, {16, 3072}};
    for (const auto& [N, C] : forward_sizes)
        add_forward_fp8(items, {.N = N, .C = C, .kind = kind, .scale = N * C <= 40000 ? 250.0f : 64.0f});
    for (const auto& [N, C] : Sizes{{48, 768}, {16, 2064}})
        add_forward_fp8(items, {.N = N, .C = C, .kind = kind, .scale = 0.01f});
    for (const int C : {144, 2064}) add_forward_fp8(items, {.N = 48, .C = C, .kind = kind, .bad = INFINITY});
    const Sizes backward_sizes = {{16, 16},   {48, 64},   {80, 144},  {64, 256},  {48, 272}, {112, 768},
                                  {16, 1600}, {48, 2064}, {16, 4096}, {16, 2320}, {16, 2432}};
    for (const auto& [N, C] : backward_sizes)
        for (const bool add : {true, false}) add_backward_fp8(items, {N, C, kind, add});
    add_backward_fp8(items, {.N = 48, .C = 144, .kind = kind, .bad = INFINITY});
}

}  // namespace

void add_norms(Items& items, const KernelUse& use) {
    for (const auto& [kind, used] : {std::pair{Kind::layer, use.layer_norm},
                                     {Kind::rms, use.rms_norm},
                                     {Kind::rms_without_gains, use.rms_norm_without_gains}}) {
        if (!used) continue;
        const Shape s{149, use.channels, kind}, whole_tiles{144, use.channels, kind};
        with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add_plain<Real>(items, s); });
        if (!use.fp8 || use.scaling != Fp8Scaling::tensor) continue;
        add_forward_fp8(items, whole_tiles);
        if (use.channels <= kWidestFusedGradient && !use.e4m3_gradients) add_backward_fp8(items, whole_tiles);
    }
}

void add_norm_tests(Items& items) {
    add_tests(items, Kind::layer);
    add_tests(items, Kind::rms);
    add_tests_without_gains(items);
    // A block with a second tile must not write its codes before the first tile's have been read. One warp with tiles
    // of 32 rows has the most blocks, nine with tiles of 16 the fewest.
    for (const auto& [rows, C] : Sizes{{32, 16}, {16, 2064}}) {
        const int blocks = static_cast<int>(norm_backward_fp8_scratch(NormKind::rms, 1 << 20, C) / C);
        add_backward_fp8(
            items, {.N = rows * blocks + 16, .C = C, .kind = Kind::layer, .add = false, .scale = 0, .once = true});
    }
}

}  // namespace llmc::check
