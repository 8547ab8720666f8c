// Casts on values that leave nothing out: all BF16 numbers, and FP32 numbers at and beside every place where a code
// changes, against the formats' definition.
#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/kernels/quantize.h"

namespace llmc::check {
namespace {

constexpr int kSide = 256;  // all BF16 numbers as a matrix
constexpr size_t kBf16Values = 65536;

std::vector<bf16> all_bf16() {
    std::vector<bf16> values(kBf16Values);
    for (size_t i = 0; i < kBf16Values; i++) values[i].bits = static_cast<uint16_t>(i);
    return values;
}

// Every BF16 number, the tie above it, and the FP32 neighbours of the tie.
std::string check_bf16(stream_t stream) {
    std::vector<float> wide;
    for (uint32_t bits = 0; bits < kBf16Values; bits++)
        for (const uint32_t low : {0u, 0x7fffu, 0x8000u, 0x8001u}) wide.push_back(float_from_bits(bits << 16 | low));
    std::vector<bf16> expected;
    for (const float value : wide) expected.push_back(reference::nearest_bf16(static_cast<double>(value)));
    Trial trial(stream);
    const float* inp = trial.input(wide);
    bf16* out = trial.result<bf16>("bf16", {{"", wide.size()}});
    trial.run_twice([&] { cast(out, inp, wide.size(), stream); });
    trial.equal(out, expected);
    return trial.problem();
}

std::string check_widening(stream_t stream) {
    std::vector<float> expected;
    for (uint32_t bits = 0; bits < kBf16Values; bits++) expected.push_back(float_from_bits(bits << 16));
    Trial trial(stream);
    const bf16* inp = trial.input(all_bf16());
    float* out = trial.result<float>("fp32", {{"", kBf16Values}});
    trial.run_twice([&] { cast(out, inp, kBf16Values, stream); });
    trial.equal(out, expected);
    return trial.problem();
}

template <class F8>
std::string check_all_bf16(stream_t stream) {
    const auto values = all_bf16();
    const Bounded exact = Bounded::exactly(values);
    for (const float scale : {1.0f, 1024.0f}) {
        Trial trial(stream);
        const bf16* inp = trial.input(values);
        const QuantizedResults<F8> to(trial, kSide, kSide, scale);
        trial.run_twice([&] {
            quantize<F8>(to.both(), nullptr, nullptr, inp, nullptr, kSide, kSide, false, QuantizePass::train_counted,
                         stream);
        });
        to.compare(CodeRanges<F8>(exact, scale), QuantizePass::train_counted);
        if (!trial.problem().empty()) return strprintf("scale %g: ", static_cast<double>(scale)) + trial.problem();
    }
    return "";
}

// Codes' values, the ties between them, and the FP32 numbers beside both; what is not finite; the smallest numbers.
std::vector<float> edges_of_e4m3() {
    const std::vector<double>& table = reference::magnitudes<e4m3>();
    const float inf = static_cast<float>(HUGE_VAL);
    std::vector<float> edges = {std::nanf(""), inf, 1e-45f, 1e-38f, 3e38f, 448.0f, 464.0f, 480.0f, 512.0f};
    for (size_t code = 0; code < table.size(); code++)
        for (const double value : {table[code], (table[code] + (code > 0 ? table[code - 1] : 0.0)) / 2}) {
            const float edge = static_cast<float>(value);
            for (const float number : {edge, std::nextafterf(edge, inf), std::nextafterf(edge, 0.0f)})
                edges.push_back(number);
        }
    const size_t positive = edges.size();
    for (size_t i = 0; i < positive; i++) edges.push_back(-edges[i]);
    edges.resize((edges.size() + 255) / 256 * 256);
    return edges;
}

std::string check_weight_edges(stream_t stream) {
    const std::vector<float> edges = edges_of_e4m3();
    const int R = 16, C = static_cast<int>(edges.size()) / R;
    Trial trial(stream);
    const float* master = trial.input(edges);
    const QuantizedResults<e4m3> to(trial, R, C, 1.0f);
    trial.run_twice([&] { quantize_weight(to.both(), master, R, C, QuantizePass::train_counted, stream); });
    to.compare(CodeRanges<e4m3>(Bounded::exactly(edges), 1.0f), QuantizePass::train_counted);
    return trial.problem();
}

template <class F8>
std::string check_dequantize(stream_t stream) {
    std::vector<F8> codes(256);
    std::vector<bf16> expected;
    for (size_t i = 0; i < codes.size(); i++) {
        codes[i].bits = static_cast<uint8_t>(i);
        expected.push_back(reference::nearest_bf16(reference::value_of<F8>(codes[i].bits)));
    }
    Trial trial(stream);
    const F8* inp = trial.input(codes);
    bf16* out = trial.result<bf16>("value of code", {{"", codes.size()}});
    trial.run_twice([&] { dequantize(out, inp, codes.size(), stream); });
    trial.equal(out, expected);
    return trial.problem();
}

}  // namespace

void add_casts(Items& items, const KernelUse& use) {
    if (!use.bf16) return;
    items.push_back({"fp32 to bf16, all values and ties", "casts", "", check_bf16});
    items.push_back({"bf16 to fp32, all values", "casts", "", check_widening});
    if (!use.fp8) return;
    items.push_back({"bf16 to e4m3, all values", "casts", "", check_all_bf16<e4m3>});
    items.push_back({"fp32 to e4m3, edges", "casts", "", check_weight_edges});
    items.push_back({"e4m3 to bf16, all codes", "casts", "", check_dequantize<e4m3>});
    if (use.scaling != Fp8Scaling::tensor || use.e4m3_gradients) return;
    items.push_back({"bf16 to e5m2, all values", "casts", "", check_all_bf16<e5m2>});
    items.push_back({"e5m2 to bf16, all codes", "casts", "", check_dequantize<e5m2>});
}

}  // namespace llmc::check
