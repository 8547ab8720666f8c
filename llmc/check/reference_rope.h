// RoPE and QK-norm in FP64, forward and backward, with how far a correct kernel may be from them. For the card check
// and for tests.
#pragma once
#include <array>
#include <vector>

#include "llmc/check/reference_rows.h"
#include "llmc/kernels/rope.h"

namespace llmc::reference {

// Of FP32, relative to the magnitudes of the terms: two products and a sum; before them a norm, as layer norm's.
constexpr double kRotationError = 2 * 0x1.01p-24, kQkNormError = kLayernormError + kRotationError;
// Of the gradients of gains, relative to the magnitudes of all terms.
constexpr double kQkGainError = 1e-5;

// How rows of qkv lie and turn: row n is position first + n % T.
struct RopeRows {
    AttentionHeads heads;
    int first, T;
    RopeValues table;

    // f(0 for a head of queries or 1 for one of keys, where it begins, its position) for all heads that turn.
    template <class F>
    void each_head(size_t elements, F&& f) const {
        const size_t row = static_cast<size_t>(heads.qkv_width()), HD = static_cast<size_t>(heads.HD);
        for (size_t n = 0; n * row < elements; n++)
            for (int h = 0; h < heads.NH + heads.NKV; h++)
                f(h < heads.NH ? 0 : 1, n * row + static_cast<size_t>(h) * HD, first + static_cast<int>(n) % T);
    }
    // Turns a head in place, or back; `magnitude`: of the terms of each result.
    void rotate(double* head, double* magnitude, int position, bool back) const;
};

// Bounds are 0 where values pass through.
struct Rotated {
    std::vector<double> values, bounds;
};
Rotated rope(const RopeRows& rows, const std::vector<double>& qkv, bool back);

using QkNormGains = std::array<std::vector<double>, 2>;  // of queries and keys; empty: 1

Rotated qk_norm_rope(const RopeRows& rows, const std::vector<double>& qkv, const QkNormGains& gains, double eps);

struct QkNormGradient {
    Rotated dqkv;
    QkNormGains dgains, dgains_bounds;
};
QkNormGradient qk_norm_rope_gradient(const RopeRows& rows, const std::vector<double>& qkv,
                                     const std::vector<double>& dout, const QkNormGains& gains, double eps);

}  // namespace llmc::reference
