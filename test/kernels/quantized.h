// What the tests of quantizing kernels share: an FP8 cast by searching the table of all codes, what a pass should leave
// in the state, and the check of every pass of a kernel against both.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>

#include "llmc/kernels/fp8_state.h"
#include "test/kernels/row_shapes.h"

namespace llmc::test {

// The finite magnitudes of a format in order; a magnitude's code is its index.
template <class F8>
const std::vector<double>& magnitudes() {
    static const std::vector<double> table = [] {
        std::vector<double> values;
        for (int code = 0; code < 128; code++) {
            const float value = to_float(F8{static_cast<uint8_t>(code)});
            if (std::isfinite(value)) values.push_back(value);
        }
        return values;
    }();
    return table;
}

struct NearestCode {
    uint8_t code;
    bool near_boundary;  // a relative change of 1e-6 could round to the neighbour
};

// Round to nearest, ties to the even code, saturating; NaN is 0x7f.
template <class F8>
NearestCode nearest_code(double scaled) {
    const std::vector<double>& table = magnitudes<F8>();
    if (std::isnan(scaled)) return {0x7f, false};
    const double x = std::fabs(scaled);
    const uint8_t sign = std::signbit(scaled) ? 0x80 : 0;
    if (x >= table.back()) return {static_cast<uint8_t>(sign | (table.size() - 1)), false};
    const size_t above = static_cast<size_t>(std::upper_bound(table.begin(), table.end(), x) - table.begin());
    const double middle = (table[above - 1] + table[above]) / 2;
    const bool up = x > middle || (x == middle && above % 2 == 0);
    return {static_cast<uint8_t>(sign | (up ? above : above - 1)), std::fabs(x - middle) <= 1e-6 * middle};
}

inline bool is_any_of(QuantizePass pass, QuantizePass a, QuantizePass b) { return pass == a || pass == b; }

// What quantizing x (N, C) with this scale should give.
template <class F8>
struct QuantizedReference {
    std::vector<NearestCode> row;
    Fp8State counted{};     // the amax and the counts of this one tensor
    uint64_t doubtful = 0;  // values within 1e-6 of a boundary between codes or of the largest value

    QuantizedReference(const std::vector<float>& x, float scale) {
        const double largest = magnitudes<F8>().back();
        for (const float value : x) {
            const float scaled = value * scale;  // rounded to FP32 as the kernels do
            row.push_back(nearest_code<F8>(scaled));
            const double magnitude = std::fabs(static_cast<double>(scaled));
            counted.elements++;
            counted.saturated += magnitude > largest;
            counted.underflowed += value != 0.0f && (row.back().code & 0x7f) == 0;
            counted.nonfinite += !std::isfinite(value);
            if (std::isfinite(value)) counted.amax = std::max(counted.amax, std::fabs(value));
            doubtful += row.back().near_boundary || std::fabs(magnitude - largest) <= 1e-6 * largest;
        }
        counted.bad = counted.nonfinite > 0;
    }

    // The state after a pass over this tensor, from the state before it.
    Fp8State after(const Fp8State& before, QuantizePass pass) const {
        Fp8State state = before;
        if (pass == QuantizePass::replay) return state;
        state.bad |= counted.bad;  // 0 or 1
        if (is_any_of(pass, QuantizePass::train, QuantizePass::train_counted))
            state.amax = std::max(state.amax, counted.amax);
        if (pass == QuantizePass::measure) state.amax_now = std::max(state.amax_now, counted.amax);
        if (pass == QuantizePass::measure) return state;
        state.nonfinite += counted.nonfinite;
        if (!is_any_of(pass, QuantizePass::train_counted, QuantizePass::write_counted)) return state;
        state.elements += counted.elements;
        state.saturated += counted.saturated;
        state.underflowed += counted.underflowed;
        return state;
    }
};

// How exactly a kernel's values are known: as they are, or computed by another kernel and so up to 1e-6.
enum class Known { exactly, nearly };

inline uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

// Codes that are not the expected ones; with Known::nearly the neighbour is as good next to a boundary.
template <class F8>
size_t wrong_codes(const std::vector<F8>& row, const std::vector<NearestCode>& expected, Known known) {
    size_t wrong = 0, excused = 0;
    for (size_t i = 0; i < row.size(); i++) {
        const uint8_t code = row[i].bits, want = expected[i].code;
        if (code == want) continue;
        const bool neighbour = (code & 0x80) == (want & 0x80) && distance(code, want) == 1;
        if (known == Known::nearly && neighbour && expected[i].near_boundary)
            excused++;
        else
            wrong++;
    }
    return wrong + (excused > row.size() / 1000 ? excused : 0);
}

// How many elements of `columns` (C, N) differ from the transpose of `row` (N, C).
template <class F8>
size_t not_transposed(const std::vector<F8>& row, const std::vector<F8>& columns, int N, int C) {
    if (row.size() != columns.size()) return row.size() + 1;
    size_t wrong = 0;
    for (size_t n = 0; n < static_cast<size_t>(N); n++)
        for (size_t c = 0; c < static_cast<size_t>(C); c++) wrong += row[n * C + c].bits != columns[c * N + n].bits;
    return wrong;
}

// Every bit of the state is as expected; with Known::nearly, amaxes up to 1e-6 and counts up to the doubtful values.
inline bool state_matches(const Fp8State& actual, const Fp8State& wanted, Known known, uint64_t doubtful) {
    Fp8State expected = wanted;
    if (known == Known::nearly) {
        const auto accept = [](float& want, float got) {
            if (std::fabs(got - want) <= 1e-6f * std::fabs(want)) want = got;
        };
        const auto accept_count = [&](uint64_t& want, uint64_t got) {
            if (distance(got, want) <= doubtful) want = got;
        };
        accept(expected.amax, actual.amax);
        accept(expected.amax_now, actual.amax_now);
        accept_count(expected.saturated, actual.saturated);
        accept_count(expected.underflowed, actual.underflowed);
    }
    return std::memcmp(&actual, &expected, sizeof actual) == 0;
}

// A state that nothing but a kernel's own writes can be mistaken for.
inline Fp8State used_state(float scale) {
    Fp8State state{};
    std::memset(static_cast<void*>(&state), 0x35, sizeof state);
    state.scale = scale;
    state.scale_inv = 1.0f / scale;
    state.amax = 0.0078125f;
    state.amax_now = 0.015625f;
    state.bad = 0;
    state.elements = 1000003, state.saturated = 1009, state.underflowed = 10007, state.nonfinite = 3;
    return state;
}

constexpr QuantizePass kAllPasses[] = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure,
                                       QuantizePass::write, QuantizePass::write_counted, QuantizePass::replay};

template <class F8>
struct QuantizedArrays {
    DeviceArray<F8> row, transposed;
    DeviceArray<Fp8State> state;
    QuantizedArrays(size_t n, const Fp8State& initial) : row(n), transposed(n), state(std::vector<Fp8State>{initial}) {}
    Quantized<F8> both() { return {row.get(), transposed.get(), state.get()}; }
};

template <class F8>
using Quantizer = std::function<void(const Quantized<F8>&, QuantizePass)>;

// Runs all passes of a kernel that quantizes x (N, C), and checks both layouts and the state against the reference.
template <class F8>
void check_quantizer(const std::vector<float>& x, int N, int C, float scale, Known known, const Quantizer<F8>& run) {
    const size_t n = static_cast<size_t>(N) * C;
    REQUIRE(x.size() == n);
    const QuantizedReference<F8> reference(x, scale);
    const std::vector<F8> untouched = DeviceArray<F8>(n).download();
    std::vector<F8> first;
    for (const QuantizePass pass : kAllPasses) {
        CAPTURE(static_cast<int>(pass));
        const Fp8State before = used_state(scale);
        QuantizedArrays<F8> to(n, before);
        run(to.both(), pass);
        const auto row = to.row.download(), transposed = to.transposed.download();
        CHECK(state_matches(to.state.download()[0], reference.after(before, pass), known, reference.doubtful));
        if (pass == QuantizePass::measure) {
            CHECK(same_bits(row, untouched));
            CHECK(same_bits(transposed, untouched));
            run({nullptr, nullptr, to.state.get()}, pass);  // as when the output is not allocated yet
            continue;
        }
        CHECK(wrong_codes(row, reference.row, known) == 0);
        CHECK(not_transposed(row, transposed, N, C) == 0);
        if (first.empty()) first = row;
        CHECK(same_bits(row, first));  // every pass the same bits, and every run

        // One layout alone.
        QuantizedArrays<F8> one(n, before), other(n, before);
        run({one.row.get(), nullptr, one.state.get()}, pass);
        run({nullptr, other.transposed.get(), other.state.get()}, pass);
        CHECK(same_bits(one.row.download(), row));
        CHECK(same_bits(one.transposed.download(), untouched));
        CHECK(same_bits(other.transposed.download(), transposed));
        CHECK(same_bits(other.row.download(), untouched));
        CHECK(same_bits(one.state.download(), to.state.download()));
    }
}

// Values over 24 binary orders of magnitude, some zero, some not to be told from zero after the cast.
template <class Real>
std::vector<Real> wide_values(size_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<Real> values(count);
    for (Real& v : values) {
        const int exponent = static_cast<int>(engine() % 25) - 18;
        v = to<Real>(engine() % 16 == 0 ? (engine() % 2 ? 0.0f : -0.0f) : std::ldexp(normal(engine), exponent));
    }
    return values;
}

template <class Real>
std::vector<float> to_floats(const std::vector<Real>& values) {
    std::vector<float> result;
    for (const Real v : values) result.push_back(to_float(v));
    return result;
}

// Smaller and larger than a tile, and no multiple of it.
inline std::vector<RowShape> quantize_shapes() {
    return {{16, 16}, {48, 64}, {80, 144}, {144, 128}, {16, 1600}, {272, 144}, {48, 768}};
}

inline std::vector<double> column_sums(const std::vector<float>& x, int C) {
    std::vector<double> sums(static_cast<size_t>(C));
    for (size_t i = 0; i < x.size(); i++) sums[i % static_cast<size_t>(C)] += static_cast<double>(x[i]);
    return sums;
}

template <class F>
std::string refusal(F&& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace llmc::test
