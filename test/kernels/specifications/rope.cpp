// RoPE, alone or with QK-norm.
#include "llmc/kernels/rope.h"

#include <array>

#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

// ---- reference -----------------------------------------------------------------------------------------------------

// Of FP32, relative to the magnitudes of the terms: two products and a sum; before them a norm, as layer norm's.
constexpr double kRotationError = 2 * 0x1.01p-24, kQkNormError = reference::kNormError + kRotationError;
// The error of the gains' gradients, relative to the magnitudes of all terms.
constexpr double kQkGainError = 1e-5;

// The layout of qkv's rows and their rotation: row n has position first + n % T.
struct RopeRows {
    AttentionHeads heads;
    int first, T;
    RopeValues table;

    // Calls f(0 for queries or 1 for keys, index of the head's first element, position) for all rotated heads.
    template <class F>
    void each_head(size_t elements, F&& f) const {
        const size_t row = static_cast<size_t>(heads.qkv_width()), HD = static_cast<size_t>(heads.HD);
        for (size_t n = 0; n * row < elements; n++)
            for (int h = 0; h < heads.NH + heads.NKV; h++)
                f(h < heads.NH ? 0 : 1, n * row + static_cast<size_t>(h) * HD, first + static_cast<int>(n) % T);
    }
    // Rotates a head in place, or back. `magnitude`: sum of the magnitudes of each result's terms.
    void rotate(double* head, double* magnitude, int position, bool back) const;
};

using QkNormGains = std::array<std::vector<double>, 2>;  // queries' and keys' gains; empty means 1

struct QkNormGradient {
    Bounded dqkv;
    QkNormGains dgains, dgains_bounds;
};

void RopeRows::rotate(double* head, double* magnitude, int position, bool back) const {
    const size_t half = static_cast<size_t>(heads.HD / 2);
    for (size_t i = 0; i < half; i++) {
        const size_t at = static_cast<size_t>(position) * half + i;
        const double c = table.cos[at], s = back ? -table.sin[at] : table.sin[at], x = head[i], y = head[i + half];
        head[i] = x * c - y * s;
        head[i + half] = y * c + x * s;
        magnitude[i] = std::fabs(x * c) + std::fabs(y * s);
        magnitude[i + half] = std::fabs(y * c) + std::fabs(x * s);
    }
}

void scale(std::vector<double>& values, double factor) {
    for (double& value : values) value *= factor;
}

// Bounds are 0 where values pass through.
Bounded rope_values_of(const RopeRows& rows, const std::vector<double>& qkv, bool back) {
    Bounded r(qkv, 0, 0);
    rows.each_head(qkv.size(),
                   [&](int, size_t at, int position) { rows.rotate(&r.values[at], &r.bounds[at], position, back); });
    scale(r.bounds, kRotationError);
    return r;
}

Bounded qk_norm_rope(const RopeRows& rows, const std::vector<double>& qkv, const QkNormGains& gains, double eps) {
    const int HD = rows.heads.HD;
    Bounded r(qkv, 0, 0);
    rows.each_head(qkv.size(), [&](int side, size_t at, int position) {
        const std::vector<double> head(&qkv[at], &qkv[at] + HD);
        const auto normed =
            reference::normed_rows(head, reference::rmsnorm_statistics(head, 1, HD, eps), gains[side], {});
        std::copy(normed.begin(), normed.end(), &r.values[at]);
        rows.rotate(&r.values[at], &r.bounds[at], position, false);
    });
    scale(r.bounds, kQkNormError);
    return r;
}

QkNormGradient qk_norm_rope_gradient(const RopeRows& rows, const std::vector<double>& qkv,
                                     const std::vector<double>& dout, const QkNormGains& gains, double eps) {
    const int HD = rows.heads.HD;
    const size_t columns = static_cast<size_t>(HD);
    QkNormGradient r{Bounded(dout, 0, 0), {}, {}};
    for (auto* sums : {&r.dgains, &r.dgains_bounds}) sums->fill(std::vector<double>(columns));
    rows.each_head(qkv.size(), [&](int side, size_t at, int position) {
        const std::vector<double>& gain = gains[side];
        std::vector<double>&dgain = r.dgains[side], &dgain_size = r.dgains_bounds[side], terms(columns);
        rows.rotate(&r.dqkv.values[at], terms.data(), position, true);
        const std::vector<double> head(&qkv[at], &qkv[at] + HD), d(&r.dqkv.values[at], &r.dqkv.values[at] + HD);
        const reference::RowStatistics statistics = reference::rmsnorm_statistics(head, 1, HD, eps);
        const double rstd = statistics.rstd[0];
        const reference::NormGradient gradient = reference::norm_gradient(head, d, gain, statistics, false);
        double largest = 0;
        for (size_t c = 0; c < columns; c++) {
            largest = std::max(largest, std::fabs(d[c] * (gain.empty() ? 1.0 : gain[c])));
            dgain[c] += gradient.dweight[c];
            dgain_size[c] += (std::fabs(d[c]) + terms[c]) * std::fabs(head[c] * rstd);
        }
        std::copy(gradient.dinp.begin(), gradient.dinp.end(), &r.dqkv.values[at]);
        // dx = rstd (g - norm mean(g norm)): |norm| <= sqrt(HD), and the mean is at most the largest |g|.
        for (size_t c = 0; c < columns; c++) r.dqkv.bounds[at + c] = rstd * largest * (1 + std::fabs(head[c] * rstd));
    });
    scale(r.dqkv.bounds, kQkNormError);
    for (auto& sizes : r.dgains_bounds) scale(sizes, kQkGainError);
    return r;
}

// ---- specifications ------------------------------------------------------------------------------------------------

constexpr float kTheta = 10000.0f, kEps = 0.01f;  // large enough that a kernel without it is wrong

struct Shape {
    AttentionHeads heads;
    int N, T, first = 0;  // row n has position first + n % T
    bool gains = true;    // QK-norm has gains

    size_t elements() const { return size_t{1} * N * heads.qkv_width(); }
    std::vector<Axis> axes() const { return {{"n", N}, {"head", heads.rows()}, {"", heads.HD}}; }
    std::string text() const {
        return fmt::format(" {} N={} T={}{}", reference::text_of(heads), N, T, gains ? "" : " without gains");
    }
};

// Inputs, and the table of angles on the device. A head of zeros, a small one, and a large one in the last row.
template <class Real>
struct Inputs {
    RopeRows rows;
    std::vector<Real> qkv, dqkv;
    Input<float> cos, sin;
    RopeTable table;

    Inputs(Trial& t, const Shape& s)
        : rows{s.heads, s.first, s.T, rope_values(kTheta, {}, s.heads.HD, s.first + s.T)},
          qkv(t.random<Real>(s.elements(), 1.5f, 0.2f)),
          dqkv(t.random<Real>(s.elements(), 1.0f, 0.1f)),
          cos(t.input(rows.table.cos)),
          sin(t.input(rows.table.sin)),
          table{cos, sin, s.first + s.T} {
        const size_t HD = static_cast<size_t>(s.heads.HD), last = qkv.size() - static_cast<size_t>(s.heads.qkv_width());
        for (size_t c = 0; c < HD; c++) {
            Real &small = qkv[s.heads.NH * HD + c], &large = qkv[last + c];
            qkv[c] = to<Real>(0.0f);
            small = to<Real>(1e-3f * to_float(small));
            if (last > 0) large = to<Real>(1e4f * to_float(large));
        }
    }
};

// As stored; values that pass through keep their bits.
template <class Real>
Bounded stored(const Bounded& rotated) {
    Bounded result = rounded<Real>(rotated);
    for (size_t i = 0; i < result.bounds.size(); i++)
        if (rotated.bounds[i] == 0) result.bounds[i] = 0;
    return result;
}

template <class Real>
void rope(Trial& t, const Shape& s) {
    const Inputs<Real> inputs(t, s);
    Real *qkv = t.result("qkv", s.axes(), inputs.qkv), *dqkv = t.result("dqkv", s.axes(), inputs.dqkv);
    t.run_twice([&] {
        rope_forward<Real>(qkv, inputs.table, s.first, s.N, s.T, s.heads, t.stream());
        rope_backward<Real>(dqkv, inputs.table, s.first, s.N, s.T, s.heads, t.stream());
    });
    t.within(qkv, stored<Real>(rope_values_of(inputs.rows, reference::to_doubles(inputs.qkv), false)));
    t.within(dqkv, stored<Real>(rope_values_of(inputs.rows, reference::to_doubles(inputs.dqkv), true)));
}

template <class Real>
void qk_norm(Trial& t, const Shape& s) {
    const size_t HD = static_cast<size_t>(s.heads.HD);
    const Inputs<Real> inputs(t, s);
    const auto inp = t.input(inputs.qkv);
    Real *out = t.result<Real>("out", s.axes()), *over = t.result("out in place", s.axes(), inputs.qkv),
         *dqkv = t.result("dqkv", s.axes(), inputs.dqkv), *again = t.result("dqkv again", s.axes(), inputs.dqkv);
    QkNormGains host_gains;
    Input<Real> gains[2];  // both signs, and two zeros
    float *dgains[2] = {}, *accumulated[2] = {}, *scratch = nullptr;
    const auto before = t.random<float>(HD, 10.0f);
    for (const int side : {0, 1}) {
        if (!s.gains) break;
        auto gain = t.random<Real>(HD, 1.0f, 0.5f);
        gain[3] = gain[HD - 1] = to<Real>(0.0f);
        host_gains[side] = reference::to_doubles(gain);
        gains[side] = t.input(gain);
        dgains[side] = t.result<float>(side == 0 ? "dgain of queries" : "dgain of keys", HD);
        accumulated[side] =
            t.result(side == 0 ? "accumulated dgain of queries" : "accumulated dgain of keys", HD, before);
        if (!scratch) scratch = t.scratch<float>(qk_norm_backward_scratch(s.N, s.heads));
    }
    const QkGains<const Real> both{gains[0], gains[1]};
    const auto forward = [&](Real* to, const Real* from) {
        qk_norm_rope_forward<Real>(to, from, both, inputs.table, s.first, s.N, s.T, s.heads, kEps, t.stream());
    };
    const auto backward = [&](Real* to, float* const* sums, bool accumulate) {
        qk_norm_rope_backward<Real>(to, {sums[0], sums[1]}, scratch, inp, both, inputs.table, s.first, s.N, s.T,
                                    s.heads, kEps, accumulate, t.stream());
    };
    t.run_twice([&] {
        forward(out, inp);
        forward(over, over);
        backward(dqkv, dgains, false);
        backward(again, accumulated, true);
    });
    const auto x = reference::to_doubles(inputs.qkv);
    t.within(out, stored<Real>(qk_norm_rope(inputs.rows, x, host_gains, kEps)));
    t.equal(over, t.read(out));
    const auto gradient = qk_norm_rope_gradient(inputs.rows, x, reference::to_doubles(inputs.dqkv), host_gains, kEps);
    t.within(dqkv, stored<Real>(gradient.dqkv));
    t.equal(again, t.read(dqkv));
    for (const size_t side : {0, 1}) {
        if (!s.gains) break;
        Bounded expected(gradient.dgains[side], gradient.dgains_bounds[side]);
        t.within(dgains[side], expected);
        for (size_t c = 0; c < HD; c++) {
            expected.values[c] += before[c];
            expected.bounds[c] += 1e-6 * std::fabs(before[c]);
        }
        t.within(accumulated[side], expected);
    }
}

template <class Real>
void add(Items& items, const Shape& s, bool norm) {
    add_kernel<Real>(items, norm ? "qk_norm_rope" : "rope", norm ? qk_norm<Real> : rope<Real>, s);
}

}  // namespace

void add_rope(Items& items, const KernelUse& use) {
    if (use.position_embedding) return;
    const Shape s{few_heads(use), 2 * 149, 149, 0, use.qk_gains || !use.qk_norm};
    with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add<Real>(items, s, use.qk_norm); });
}

void add_rope_tests(Items& items) {
    for (const AttentionHeads& heads :
         {AttentionHeads{2, 2, 64}, {4, 2, 128}, {6, 1, 32}, {3, 3, 128}, {3, 1, 80}, {2, 2, 96}, {2, 1, 256}}) {
        const int N = heads.HD == 32 ? 180 : 22;  // several turns of a block
        each_type<float, bf16>([&]<class Real>(Real) {
            for (const Shape& s : {Shape{heads, 1, 1}, {heads, 14, 7}, {heads, 33, 33, 5}}) add<Real>(items, s, false);
            for (const bool gains : {true, false}) add<Real>(items, {heads, N, 11, 3, gains}, true);
        });
    }
}

}  // namespace llmc::check
