// Reads and writes state arrays from the host. See state_values.h.
// build: optimized
#include "llmc/shard/state_values.h"

#include <algorithm>

#include "llmc/device/transfer.h"

namespace llmc {

std::vector<float> read_state(const StateArray& from, size_t count, stream_t stream) {
    if (from.format == StateFormat::fp32) return read_back(from.as<float>(), count, stream);
    std::vector<float> values(count);
    if (from.format == StateFormat::fp8) {
        const std::vector<float> scales = read_back(from.scales, div_up(count, kStateGroup), stream);
        const std::vector<e4m3> codes = read_back(from.as<e4m3>(), count, stream);
        for (size_t i = 0; i < count; i++) values[i] = to_float(codes[i]) * scales[i / kStateGroup];
        return values;
    }
    const std::vector<bf16> halves = read_back(from.as<bf16>(), count, stream);
    for (size_t i = 0; i < count; i++) values[i] = to_float(halves[i]);
    return values;
}

void write_state(const StateArray& to, const float* values, size_t count, stream_t stream) {
    if (to.format == StateFormat::fp32) return write_through(to.as<float>(), values, count, stream);
    if (to.format == StateFormat::fp8) {
        std::vector<e4m3> codes;
        std::vector<float> scales;
        for (size_t i = 0; i < count; i++) {
            if (i % kStateGroup == 0)
                scales.push_back(power_of_two(group_exponent_of(values + i, std::min(count - i, kStateGroup))));
            codes.push_back(to_e4m3(values[i] / scales.back()));
        }
        write_through(to.as<e4m3>(), codes.data(), count, stream);
        return write_through(to.scales, scales.data(), scales.size(), stream);
    }
    std::vector<bf16> rounded(count);
    for (size_t i = 0; i < count; i++) rounded[i] = to_bf16(values[i]);
    write_through(to.as<bf16>(), rounded.data(), count, stream);
}

void fp8_to_bf16(bf16* out, const e4m3* codes, const float* scales, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = to_bf16(to_float(codes[i]) * scales[i / kStateGroup]);
}

}  // namespace llmc
