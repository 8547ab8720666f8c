// Quantization with a scale for every block, at the run's width, against the definition of block and cast; and back.
#include "llmc/kernels/quantize_blocks.h"

#include <set>

#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/check/reference_rows.h"
#include "llmc/kernels/quantize.h"

namespace llmc::check {

namespace {

using reference::BlockReference;

constexpr QuantizePass kPasses[] = {QuantizePass::train_counted, QuantizePass::replay};

// A matrix's codes and scales in both layouts.
struct BlockResults {
    Trial& trial;
    ScaleLayout layout;
    Fp8State before = reference::used_state(3.0f);
    e4m3 *row, *transposed;
    char *row_scales, *transposed_scales;
    Fp8State* state;

    BlockResults(Trial& t, ScaleLayout l, int N, int C) : trial(t), layout(l) {
        const size_t n = static_cast<size_t>(N), c = static_cast<size_t>(C);
        row = trial.result<e4m3>("codes", {{"n", n}, {"", c}});
        transposed = trial.result<e4m3>("transposed codes", {{"", c}, {"n", n}});
        row_scales = trial.result<char>("scales", {{"byte ", scale_bytes(layout, n, c)}});
        transposed_scales = trial.result<char>("transposed scales", {{"byte ", scale_bytes(layout, c, n)}});
        state = trial.result<Fp8State>("state", {{"", 1}}, std::vector<Fp8State>{before});
    }
    Quantized<e4m3> both() const { return {row, transposed, state, row_scales, transposed_scales}; }

    void compare(const BlockReference& rows, const BlockReference& columns, QuantizePass pass) const {
        compare_codes(row, rows), compare_codes(transposed, columns);
        compare_scales(row_scales, rows), compare_scales(transposed_scales, columns);
        const Fp8State expected = rows.after(before, pass);
        trial.note(wrong_state(trial.read(state)[0], {expected, expected}));
    }

private:
    void compare_codes(const e4m3* codes, const BlockReference& reference) const {
        std::vector<e4m3> expected;
        for (const reference::NearestCode& nearest : reference.codes) expected.push_back({nearest.code});
        trial.equal(codes, expected);
    }
    void compare_scales(const char* scales, const BlockReference& reference) const {
        const size_t wrong = reference::wrong_scales(trial.read(scales), layout, reference);
        if (wrong > 0) trial.note(strprintf("%s: %zu are wrong", trial.shape_of(scales).name.c_str(), wrong));
    }
};

struct BlockShape {
    int N, C;
    Fp8Scaling scaling;
    int length() const { return scaling == Fp8Scaling::mx ? kMxVector : kScaleVector; }
    ScaleLayout layout() const { return scaling == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors; }
};

// What both layouts of a matrix should be.
struct References {
    BlockReference rows, columns;
    References(const std::vector<bf16>& values, const BlockShape& s)
        : rows(reference::to_floats(values), s.N, s.C, 1, s.length()),
          columns(reference::turned(reference::to_floats(values), s.N, s.C), s.C, s.N, 1, s.length()) {}
};

std::string check_blocks(const BlockShape& s, stream_t stream) {
    const auto values = reference::uneven_values<bf16>(s.N, s.C, 101);
    const References expected(values, s);
    return each_pass(kPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16* inp = trial.input(values);
        const BlockResults to(trial, s.layout(), s.N, s.C);
        trial.run_twice(
            [&] { quantize_blocks(to.both(), nullptr, nullptr, inp, s.N, s.C, s.scaling, false, pass, stream); });
        to.compare(expected.rows, expected.columns, pass);
    });
}

std::string check_bias_gradient(const BlockShape& s, stream_t stream) {
    const size_t C = static_cast<size_t>(s.C);
    const auto values = reference::random_normal<bf16>(static_cast<size_t>(s.N) * C, 1.0f, 102, 0.2f);
    const References expected(values, s);
    Trial trial(stream);
    const bf16* inp = trial.input(values);
    const BlockResults to(trial, s.layout(), s.N, s.C);
    float *dbias = trial.result<float>("dbias", {{"", C}}), *scratch = trial.scratch<float>(quantize_scratch(s.N, s.C));
    trial.run_twice([&] {
        quantize_blocks(to.both(), dbias, scratch, inp, s.N, s.C, s.scaling, false, QuantizePass::train, stream);
    });
    to.compare(expected.rows, expected.columns, QuantizePass::train);
    trial.within(dbias, Bounded(reference::column_sums(reference::to_floats(values), s.C), reference::kColumnSumError,
                                1.0 + 0.2 * s.N));
    return trial.problem();
}

std::string check_tiles(int R, int C, stream_t stream) {
    auto values = reference::uneven_values<float>(R, C, 103);
    for (size_t i = 0; i < 128 * static_cast<size_t>(C); i++) values[i] *= 1e-6f;  // tiles differ
    const BlockReference rows(values, R, C, kScaleVector, kScaleVector),
        columns(reference::turned(values, R, C), C, R, kScaleVector, kScaleVector);
    return each_pass(kPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const float* master = trial.input(values);
        const BlockResults to(trial, ScaleLayout::tiles, R, C);
        trial.run_twice([&] { quantize_weight_tiles(to.both(), master, R, C, pass, stream); });
        to.compare(rows, columns, pass);
    });
}

// Of the codes and scales that the definition gives. Every value is a BF16 number: nothing is rounded.
std::string check_dequantize(const BlockShape& s, stream_t stream) {
    const auto values = reference::to_floats(reference::uneven_values<bf16>(s.N, s.C, 104));
    const BlockReference rows(values, s.N, s.C, 1, s.length());
    std::vector<e4m3> codes;
    std::vector<bf16> expected;
    for (int r = 0; r < s.N; r++)
        for (int k = 0; k < s.C; k++) {
            codes.push_back({rows.codes[codes.size()].code});
            const double code = reference::value_of<e4m3>(codes.back().bits);
            expected.push_back(reference::nearest_bf16(std::ldexp(code, rows.exponent(r, k))));
        }
    Trial trial(stream);
    const e4m3* inp = trial.input(codes);
    const char* scales = trial.input(reference::scale_table(s.layout(), rows));
    bf16* out = trial.result<bf16>("values", {{"n", static_cast<size_t>(s.N)}, {"", static_cast<size_t>(s.C)}});
    trial.run_twice([&] { dequantize_blocks(out, inp, scales, s.layout(), s.N, s.C, stream); });
    trial.equal(out, expected);
    return trial.problem();
}

}  // namespace

void add_quantize_blocks(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling == Fp8Scaling::tensor) return;
    const bool mx = use.scaling == Fp8Scaling::mx;
    const char* const name = mx ? "mx" : "block";
    const BlockShape narrow{mx ? 160 : 256, use.channels, use.scaling};
    for (const int C : std::set{use.channels, use.fc_channels()}) {
        const BlockShape s{narrow.N, C, use.scaling};
        if (use.biases)
            items.push_back({strprintf("quantize_blocks %s with bias gradient C=%d", name, C), "kernels", "",
                             [s](stream_t stream) { return check_bias_gradient(s, stream); }});
        if (!use.biases || C == narrow.C)
            items.push_back({strprintf("quantize_blocks %s C=%d", name, C), "kernels", "",
                             [s](stream_t stream) { return check_blocks(s, stream); }});
    }
    items.push_back({strprintf("dequantize_blocks %s C=%d", name, narrow.C), "kernels", "",
                     [narrow](stream_t stream) { return check_dequantize(narrow, stream); }});
    if (!mx)
        items.push_back({strprintf("quantize_weight_tiles C=%d", narrow.C), "kernels", "",
                         [narrow](stream_t stream) { return check_tiles(narrow.N, narrow.C, stream); }});
}

}  // namespace llmc::check
