// State arrays and their random rounding in FP64 (specifications.h).
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

// The scale of each group in fp8: the least power of two with which no value saturates, from 2^-117 on.
std::vector<float> group_scales(const std::vector<double>& values) {
    std::vector<float> scales;
    for (size_t begin = 0; begin < values.size(); begin += kStateGroup) {
        double amax = 0;
        for (size_t i = begin; i < std::min(values.size(), begin + kStateGroup); i++)
            amax = std::max(amax, std::fabs(values[i]));
        scales.push_back(std::ldexp(1.0f, std::max(reference::exponent_by_search(amax), -117)));
    }
    return scales;
}

// One of x's neighbours among the numbers with three mantissa bits from 2^-9 on, by 24 random bits where those are not
// normal and by 20 elsewhere, as to_e4m3_stochastic() documents.
double stochastic_e4m3(double x, uint32_t random) {
    if (x == 0) return 0;
    const bool normal = std::fabs(x) >= 0x1p-6;
    const double step = normal ? std::ldexp(1.0, std::ilogb(x) - 3) : 0x1p-9, steps = std::fabs(x) / step;
    const double whole = std::floor(steps), lost = steps - whole;
    const bool up = normal ? lost + (random & 0xfffff) / 0x1p20 >= 1 : (random >> 8) / 0x1p24 < lost;
    return std::copysign(std::min((whole + up) * step, 448.0), x);
}

// The random bits of element i, in the low end of the result.
uint32_t random_bits(StateFormat format, StateKind kind, size_t i) {
    const auto bits_of = format == StateFormat::fp8 ? fp8_bits : kind == StateKind::master ? master_bits : moment_bits;
    const uint64_t of_two = bits_of(kRounding.key, example_state().applied, kRounding.first + i / 2 * 2);
    return static_cast<uint32_t>(of_two >> (i % 2 * 32)) >> (kind == StateKind::second_moment ? 16 : 0);
}

}  // namespace

StepState example_state(bool skip) {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    state.bias_correction1 = static_cast<float>(1 / (1 - std::pow(kAdamW.beta1, 3)));
    state.bias_correction2 = static_cast<float>(1 / (1 - std::pow(kAdamW.beta2, 3)));
    state.skip = skip;
    return state;
}

void narrow(StateFormat format, std::vector<float>& values) {
    if (format == StateFormat::bf16) values = reference::to_floats(reference::nearest<bf16>(values));
    if (format != StateFormat::fp8) return;
    const std::vector<float> scales = group_scales(reference::to_doubles(values));
    for (size_t i = 0; i < values.size(); i++) {
        const float scale = scales[i / kStateGroup];
        values[i] = to_float(to_e4m3(values[i] / scale)) * scale;
    }
}

StateArray state_input(Trial& t, StateFormat format, const std::vector<float>& values) {
    if (format == StateFormat::fp32) return t.input(values);
    return t.input(reference::nearest<bf16>(values));
}

StateArray state_result(Trial& t, const char* name, StateFormat format, const std::vector<float>& before) {
    const size_t n = before.size();
    if (format == StateFormat::fp32) return t.result(name, n, before);
    if (format == StateFormat::bf16) return t.result(name, n, reference::nearest<bf16>(before));
    const std::vector<float> scales = group_scales(reference::to_doubles(before));
    std::vector<e4m3> codes;
    for (const float value : before) codes.push_back(to_e4m3(value / scales[codes.size() / kStateGroup]));
    e4m3* const values = t.result(name, n, codes);
    return {values, format, t.result("scales", scales.size(), scales)};
}

std::vector<float> values_in(const Trial& t, const StateArray& array) {
    std::vector<float> values;
    if (array.format != StateFormat::fp8) {
        array.typed([&](const auto* pointer) { values = reference::to_floats(t.read(pointer)); });
        return values;
    }
    const std::vector<float> scales = t.read(array.scales);
    for (const e4m3 code : t.read(array.as<e4m3>()))
        values.push_back(to_float(code) * scales[values.size() / kStateGroup]);
    return values;
}

void equal(Trial& t, const StateArray& array, const std::vector<float>& expected) {
    t.note(not_equal(t.shape_of(array.values), values_in(t, array), expected));
}

void within(Trial& t, const StateArray& array, const Bounded& exact, StateKind kind) {
    if (array.format == StateFormat::fp32) return t.within(array.as<float>(), exact);
    const bool fp8 = array.format == StateFormat::fp8;
    const std::vector<float> scales = group_scales(exact.values);
    Bounded range;
    for (size_t i = 0; i < exact.values.size(); i++) {
        const uint32_t random = random_bits(array.format, kind, i);
        const double scale = scales[i / kStateGroup];
        const auto rounded = [&](double x) {
            return fp8 ? stochastic_e4m3(x / scale, random) * scale : reference::stochastic_bf16(x, random & 0xffff);
        };
        const double low = rounded(exact.values[i] - exact.bounds[i]);
        const double high = rounded(exact.values[i] + exact.bounds[i]);
        range.push_back((low + high) / 2, (high - low) / 2);
    }
    t.note(not_within(t.shape_of(array.values), reference::to_doubles(values_in(t, array)), range));
    // Most values would be the same with twice the scale, and differ only in their codes. So the scales are compared.
    if (fp8) t.equal(array.scales, scales);
}

}  // namespace llmc::check
