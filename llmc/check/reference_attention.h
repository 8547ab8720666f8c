// Causal attention in FP64, forward and backward, with how far a correct kernel may be from it. For the card check and
// for tests.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/kernels/attention.h"

namespace llmc::reference {

struct AttentionShape {
    int B, T, NH, HD;
    int NKV = NH;
    float scale = 0;                  // of scores; 0: HD^-0.5
    int window = 0;                   // 0: all keys
    std::vector<int> documents = {};  // (B, T) as in llmc/kernels/attention.h; empty: none

    AttentionHeads heads() const { return {NH, NKV, HD, scale, window}; }
    int first_key(int b, int query) const {
        const int of_window = window > 0 && query >= window ? query - window + 1 : 0;
        return documents.empty() ? of_window : std::max(of_window, documents[static_cast<size_t>(b) * T + query]);
    }
    size_t rows() const { return static_cast<size_t>(B) * T * NH; }
    size_t elements() const { return rows() * HD; }
    size_t qkv_elements() const { return static_cast<size_t>(tokens()) * heads().qkv_width(); }
    int tokens() const { return B * T; }
    int width() const { return NH * HD; }
    int qkv_width() const { return heads().qkv_width(); }
    std::string text() const {
        return "B=" + std::to_string(B) + " T=" + std::to_string(T) + " NH=" + std::to_string(NH) +
               " NKV=" + std::to_string(NKV) + " HD=" + std::to_string(HD) + " window=" + std::to_string(window);
    }
};

// An AttentionShape's documents: rows of T tokens, cut into documents of these lengths. The rest of a row is one more
// document.
std::vector<int> documents_of(int T, const std::vector<std::vector<int>>& rows);

// The first index of a head's row in qkv (B, T, NH + 2 NKV, HD), out (B, T, NH, HD) and lse (B, NH, T). In qkv, `which`
// selects queries (0), keys (1) or values (2).
struct AttentionLayout {
    AttentionShape s;
    size_t qkv(int b, int t, int which, int h) const {
        const int head = which == 0 ? h : s.NH + (which - 1) * s.NKV + h;
        return ((static_cast<size_t>(b) * s.T + t) * (s.NH + 2 * s.NKV) + head) * s.HD;
    }
    int key_head(int h) const { return h / (s.NH / s.NKV); }  // of query head h
    size_t out(int b, int t, int h) const { return ((static_cast<size_t>(b) * s.T + t) * s.NH + h) * s.HD; }
    size_t row(int b, int t, int h) const { return (static_cast<size_t>(b) * s.NH + h) * s.T + t; }
};

// Everything in double, from the inputs as stored. Beside each result, how far a correct kernel may be from it.
//
// With u = 2^-8, what rounding to bf16 may lose (0 for the float kernels), and r for FP32 sums and exponentials (1e-5):
//  - the forward rounds each P to bf16 and divides by the sum of the rounded ones:
//      |O error| <= (u + r) (sum P |V| + |O|), of which out alone adds u |O|;
//  - P^T dO rounds P, dV is rounded once: |dV error| <= (u + r) sum P |dO| + u |dV|;
//  - delta inherits O's error: |delta error| <= sum |dO| |O error|, and dS = P (dP - delta) is rounded;
//    |dQ error| <= scale sum (u |dS| + r P (sum |dO V| + |dO O|) + P |delta error|) |K| + u |dQ|, dK likewise.
// These hold for the worst case. Rounding errors are independent, so the norm of all errors together must be much
// smaller: one rounding of values with evenly spread mantissas has a relative root mean square of 0.425 u (uniform in
// +-u / m for a mantissa m in [1, 2), log-uniform).
struct Attention {
    std::vector<double> out, lse, delta, dqkv;
    std::vector<double> out_bound, out_sum_bound, delta_bound, dqkv_bound;  // out_sum_bound: of out + out_low
};

// u and r of the kernels for bf16 and for float.
constexpr double attention_rounding(bool bf16) { return bf16 ? 1.0 / 256 : 0.0; }
constexpr double attention_slack(bool bf16) { return bf16 ? 1e-5 : 5e-6; }
constexpr double kAttentionFloor = 1e-6;     // for results that are zero by cancellation
constexpr double kAttentionLseError = 1e-5;  // of |lse| + 1

// Limits on the norm of all errors, relative, for u: out + out_low has one rounding (of P), out and dV two, dQ and dK
// three and their sums cancel.
struct AttentionNorms {
    double out_sum, out, dv, dq_dk;
};
constexpr AttentionNorms attention_norms(double u) {
    const double rms = 0.5 * u + 1e-6;
    return {rms, 1.42 * rms, 1.42 * rms, 1.5 * rms};
}

Attention attention(const AttentionShape& s, const std::vector<double>& qkv, const std::vector<double>& dout, double u,
                    double slack);

// The part of dqkv that is dQ (0), dK (1) or dV (2).
std::vector<double> part_of_dqkv(const std::vector<double>& dqkv, const AttentionShape& s, int which);

}  // namespace llmc::reference
