// What the tests of quantizing kernels share: the check of every pass of a kernel against the definition of a cast and
// what a pass should leave in the state (llmc/check/reference_quantize.h).
#pragma once
#include <cstring>
#include <functional>

#include "llmc/check/random_values.h"
#include "llmc/check/reference_quantize.h"
#include "llmc/kernels/fp8_state.h"
#include "test/kernels/row_shapes.h"

namespace llmc::test {

using reference::NearestCode, reference::nearest_code, reference::QuantizedReference;
using reference::random_normal, reference::to_floats, reference::used_state, reference::wide_values;

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

// Smaller and larger than a tile, and no multiple of it.
inline std::vector<RowShape> quantize_shapes() {
    return {{16, 16}, {48, 64}, {80, 144}, {144, 128}, {16, 1600}, {272, 144}, {48, 768}};
}

using reference::column_sums;

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
