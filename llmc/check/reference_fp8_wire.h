// Reference values for gradients that ranks send in FP8 (llmc/comm/fp8_wire.h), from the definitions in FP64. For the
// card check and for tests.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "llmc/check/reference_quantize.h"
#include "llmc/comm/fp8_wire.h"

namespace llmc::reference {

struct CastPieces {
    std::vector<uint8_t> pieces;
    std::vector<bf16> residual;  // afterwards
};

// The least exponent from -126 on with which `largest` is at most 448 times its power of two; 0 for 0.
inline int wire_exponent(double largest) {
    int exponent = largest > 0 ? -126 : 0;
    while (largest > std::ldexp(448.0, exponent)) exponent++;
    return exponent;
}

// `in` and `residual` (world, count).
inline CastPieces cast_pieces(const std::vector<float>& in, const std::vector<bf16>& residual, int world, size_t count,
                              double loss_scale) {
    const Fp8Piece piece{count};
    CastPieces result{std::vector<uint8_t>(piece.bytes() * static_cast<size_t>(world)), residual};
    for (size_t r = 0; r < static_cast<size_t>(world); r++)
        for (size_t block = 0; block < piece.blocks(); block++) {
            const size_t begin = block * Fp8Piece::kBlock, end = std::min(count, begin + Fp8Piece::kBlock);
            std::vector<double> x;
            double largest = 0;
            for (size_t i = begin; i < end; i++) {
                const size_t at = r * count + i;  // the sum is rounded to FP32
                x.push_back(static_cast<float>(in[at] + to_float(residual[at]) * loss_scale));
                if (std::isfinite(x.back())) largest = std::max(largest, std::fabs(x.back()));
            }
            const int exponent = wire_exponent(largest);
            uint8_t* to = result.pieces.data() + r * piece.bytes();
            to[piece.scales_begin() + block] = static_cast<uint8_t>(exponent + 127);
            for (size_t i = begin; i < end; i++) {
                const double value = x[i - begin], scaled = std::ldexp(value, -exponent);
                const bool finite = std::isfinite(value);
                to[i] = finite ? nearest_code<e4m3>(scaled).code : uint8_t{0x7f};
                const double lost = finite ? value - std::ldexp(value_of<e4m3>(to[i]), exponent) : 0;
                result.residual[r * count + i] = nearest_bf16(lost / loss_scale);
            }
        }
    return result;
}

// The sum of pieces as they are sent, in FP32 and in the order of the ranks, added to `start` (count) unless that is
// empty.
inline std::vector<float> sum_fp8_pieces(const std::vector<uint8_t>& pieces, int world, size_t count,
                                         const std::vector<float>& start) {
    const Fp8Piece piece{count};
    std::vector<float> sums = start.empty() ? std::vector<float>(count) : start;
    for (size_t r = 0; r < static_cast<size_t>(world); r++)
        for (size_t i = 0; i < count; i++) {
            const uint8_t* from = pieces.data() + r * piece.bytes();
            const int exponent = from[piece.scales_begin() + i / Fp8Piece::kBlock] - 127;
            const float value = static_cast<float>(std::ldexp(value_of<e4m3>(from[i]), exponent));
            sums[i] = r == 0 && start.empty() ? value : sums[i] + value;
        }
    return sums;
}

}  // namespace llmc::reference
