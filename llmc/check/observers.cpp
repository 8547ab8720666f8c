// Kernels that observe or scale FP8 tensors: records of outliers, probes of products, and --fp8-smooth.
#include "llmc/check/specifications.h"
#include "llmc/kernels/outliers.h"

namespace llmc::check {
namespace {

// ---- outliers and probes -------------------------------------------------------------------------------------------

// n terms of one sign in FP64 in any order: at most n roundings of each.
Bounded sums_of_terms(const std::vector<double>& sums) { return Bounded(sums, 2 * (sums[0] + 8) * 0x1p-53, 0); }

// n, the sum of x^2 and the sum of x^4, over two micro-batches; codes have a scale of their own in each.
template <class T>
void moments(Trial& t, size_t n) {
    const bool codes = sizeof(T) == 1;
    const auto values = t.normal<T>(n, 20.0f);
    std::vector<Input<Fp8State>> states;
    std::vector<double> expected = {0, 0, 0};
    for (const float scale_inv : {0.375f, 0x1p-20f}) {
        Fp8State state{};
        state.scale_inv = scale_inv;
        states.push_back(codes ? t.input_of(state) : Input<Fp8State>());
        expected[0] += n;
        for (const double value : values.doubles()) {
            const double x = value * (codes ? scale_inv : 1.0f);
            expected[1] += x * x;
            expected[2] += x * x * x * x;
        }
    }
    double* parts = t.scratch<double>(moment_parts(n));
    double* sums = t.result("sums", 3, std::vector<double>(3, 0.0));
    t.run_twice([&] {
        for (const auto& state : states) add_moments<T>(sums, parts, values, n, state, t.stream());
    });
    t.within(sums, sums_of_terms(expected));
}

// n, the sum of (actual - expected)^2 and the sum of expected^2, over two products of different sizes.
template <class T>
void differences(Trial& t, size_t n) {
    std::vector<Input<T>> pairs;
    std::vector<double> sums = {0, 0, 0};
    for (const float size : {1.0f, 0x1p-20f}) {
        pairs.push_back(t.normal<T>(n, 1.5f * size));
        pairs.push_back(t.normal<T>(n, size));
        const auto actual = pairs[pairs.size() - 2].doubles(), expected = pairs.back().doubles();
        sums[0] += n;
        for (size_t i = 0; i < n; i++) {
            sums[1] += (actual[i] - expected[i]) * (actual[i] - expected[i]);
            sums[2] += expected[i] * expected[i];
        }
    }
    double* parts = t.scratch<double>(moment_parts(n));
    double* to = t.result("sums", 3, std::vector<double>(3, 0.0));
    t.run_twice([&] {
        for (const size_t i : {0, 2}) add_differences<T>(to, parts, pairs[i], pairs[i + 1], n, t.stream());
    });
    t.within(to, sums_of_terms(sums));
}

struct Gates {
    int F, C;
    std::string text() const { return fmt::format(" F={} C={}", F, C); }
};

// Mean and largest of |cos(gate, up)|, weight (2F, C). A lane adds C / 32 products and a few more (8 at a time), then
// come 5 sums of two: that many roundings u of a dot product are at most as many u |gate| |up|, and of the norms as
// much again; u each of two roots, a product and a quotient.
template <class T>
void alignment(Trial& t, const Gates& s) {
    const size_t F = static_cast<size_t>(s.F), C = static_cast<size_t>(s.C);
    std::vector<T> values;
    const auto numbers = t.random<float>(2 * F * C, 1.0f);
    for (size_t i = 0; i < numbers.size(); i++)  // the last row of up has half of its gate's in it
        values.push_back(to<T>(numbers[i] + (i < (2 * F - 1) * C ? 0.0f : 0.5f * numbers[i - F * C])));
    const auto weight = t.input(values);
    float *to = t.result<float>("alignment", 2), *cosines = t.scratch<float>(F);
    t.run_twice([&] { gate_alignment<T>(to, cosines, weight, s.F, s.C, t.stream()); });
    const auto x = weight.doubles();
    double mean = 0, largest = 0;
    for (size_t row = 0; row < F; row++) {
        double dot = 0, gates = 0, ups = 0;
        for (size_t c = 0; c < C; c++) {
            const double gate = x[row * C + c], up = x[(F + row) * C + c];
            dot += gate * up;
            gates += gate * gate;
            ups += up * up;
        }
        const double cosine = gates * ups > 0 ? std::fabs(dot) / std::sqrt(gates) / std::sqrt(ups) : 0;
        mean += cosine / F;
        largest = std::max(largest, cosine);
    }
    const double roundings = C / 32.0 + 8 + 5;
    t.within(to, Bounded({mean, largest}, (2 * roundings + 8) * 0x1p-24, 1));
}

// ---- smoothing: all of it is exact ---------------------------------------------------------------------------------

// Dividing and then multiplying restores the bits. The division also measures the amax of each column.
template <class Real>
void columns(Trial& t, const Rows& s) {
    const size_t C = static_cast<size_t>(s.C);
    auto values = t.random<Real>(s.n(), 3.0f);
    if (s.N > 1) values[0] = to<Real>(INFINITY);
    std::vector<float> powers(C), largest(C, 0.25f);
    for (size_t c = 0; c < C; c++) powers[c] = std::ldexp(1.0f, -static_cast<int>(c * c % (kMostSmoothing + 1)));
    std::vector<Real> divided;
    for (size_t i = 0; i < values.size(); i++) {
        const float x = to_float(values[i]);
        if (std::isfinite(x)) largest[i % C] = std::max(largest[i % C], std::fabs(x));
        divided.push_back(to<Real>(x / powers[i % C]));
    }
    const auto factors = t.input(powers);
    Real *once = t.result("divided", matrix(s.N, C), values),
         *twice = t.result("there and back", matrix(s.N, C), values);
    float* amax = t.result("amax", C, std::vector<float>(C, 0.25f));
    t.run_twice([&] {
        scale_columns<Real>(once, amax, factors, true, s.N, s.C, t.stream());
        scale_columns<Real>(twice, nullptr, factors, true, s.N, s.C, t.stream());
        scale_columns<Real>(twice, nullptr, factors, false, s.N, s.C, t.stream());
    });
    t.equal(once, divided);
    t.equal(twice, values);
    t.equal(amax, largest);
}

struct Channels {
    int C;
    std::string text() const { return fmt::format(" C={}", C); }
};

// Three layers. The last one has no amax yet, so its factors must stay.
void factors(Trial& t, const Channels& s) {
    constexpr size_t kLayers = 3;
    const size_t C = static_cast<size_t>(s.C);
    std::vector<float> seen, before(kLayers * C, 0.25f), expected;
    for (size_t layer = 0; layer < kLayers; layer++) {
        std::vector<float> own = t.random<float>(C, 1.0f);
        for (size_t c = 0; c < C; c++)
            own[c] = layer == 2 || c % 5 == 0 ? 0.0f : std::fabs(own[c]) * (c % 11 == 0 ? 0x1p30f : 1.0f);
        for (const float factor : reference::smoothing(own, std::vector<float>(C, 0.25f))) expected.push_back(factor);
        seen.insert(seen.end(), own.begin(), own.end());
    }
    float *to = t.result("factors", matrix(kLayers, C), before), *amax = t.result("amax", matrix(kLayers, C), seen);
    t.run_twice([&] { smoothing_factors(to, amax, kLayers, s.C, t.stream()); });
    t.equal(to, expected);
    t.equal(amax, std::vector<float>(kLayers * C, 0.0f));
}

}  // namespace

void add_observers(Items& items, const KernelUse& use) {
    if (!use.fp8) return;
    constexpr size_t kCount = 70008;  // three blocks, whose threads take several strides
    const bool codes = use.scaling == Fp8Scaling::tensor;
    if (codes) add_kernel<e4m3>(items, "add_moments", moments<e4m3>, kCount);
    if (!codes || use.smooth) add_kernel<bf16>(items, "add_moments", moments<bf16>, kCount);
    if (use.probe)
        each_type<bf16, float>([&]<class T>(T) { add_kernel<T>(items, "add_differences", differences<T>, kCount); });
    if (use.activation == Activation::swiglu) {
        if (codes) add_kernel<e4m3>(items, "gate_alignment", alignment<e4m3>, {77, use.channels});
        if (use.scaling == Fp8Scaling::block)
            add_kernel<float>(items, "gate_alignment", alignment<float>, {77, use.channels});
        if (use.scaling == Fp8Scaling::mx)
            add_kernel<bf16>(items, "gate_alignment", alignment<bf16>, {77, use.channels});
    }
    if (!use.smooth) return;
    const int N = 277;  // two blocks, and rows of their own
    each_type<bf16, float>([&]<class Real>(Real) {
        add_kernel<Real>(items, "scale_columns", columns<Real>, {N, use.hidden});
    });
    add_kernel(items, "smoothing_factors", factors, {use.hidden});
}

void add_observer_tests(Items& items) {
    for (const size_t n : {8, 4096, 70000}) {
        each_type<e4m3, bf16>([&]<class T>(T) { add_kernel<T>(items, "add_moments", moments<T>, n); });
        each_type<bf16, float>([&]<class T>(T) { add_kernel<T>(items, "add_differences", differences<T>, n); });
    }
    for (const auto& [F, C] : {std::pair{1, 8}, {16, 64}, {77, 264}, {520, 40}})
        each_type<e4m3, bf16, float>([&]<class T>(T) { add_kernel<T>(items, "gate_alignment", alignment<T>, {F, C}); });
    for (const auto& [N, C] : {std::pair{1, 8}, {300, 24}, {33, 520}}) {
        each_type<bf16, float>([&]<class Real>(Real) {
            add_kernel<Real>(items, "scale_columns", columns<Real>, {N, C});
        });
        add_kernel(items, "smoothing_factors", factors, {C});
    }
}

}  // namespace llmc::check
