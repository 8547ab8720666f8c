// Rotary position embedding (RoPE, arXiv 2104.09864) of queries and keys, alone or after an RMS norm of every head
// (QK-norm, arXiv 2302.05442).
//
//   (y1, y2) = (x1 cos - x2 sin, x2 cos + x1 sin),   where x1 and x2 are elements i and i + HD / 2 of a head
//
// This is the order of Hugging Face's files ("half-rotated"). attention.h describes qkv; values pass through unchanged.
#pragma once
#include <cstddef>
#include <vector>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/attention.h"

namespace llmc {

// ---- tables, on the host -------------------------------------------------------------------------------------------

// Llama 3.1's scaling for longer contexts. Long wavelengths are stretched by `factor`; wavelengths below old_context /
// high_freq stay; there is a ramp between them. factor 0: no scaling.
struct RopeScaling {
    float factor = 0.0f, low_freq = 1.0f, high_freq = 4.0f;
    int old_context = 8192;
};

// theta^(-2i / HD), scaled, in radians per position. These frequencies and the angles below are computed in FP32 in the
// order of operations of Hugging Face's transformers, so that a model trained elsewhere finds its own angles. At
// position p they are off by up to 1.2e-7 p, and more exact ones would differ from the model's. (One frequency in a
// hundred is a neighbour of PyTorch's, whose powers are off by up to 1 ulp.)
std::vector<float> rope_frequencies(float theta, const RopeScaling& scaling, int HD);

// cos and sin (positions, HD / 2) of position * frequency.
struct RopeValues {
    std::vector<float> cos, sin;
};
RopeValues rope_values(float theta, const RopeScaling& scaling, int HD, int positions);

// ---- kernels -------------------------------------------------------------------------------------------------------

// Tables of angles on the device.
struct RopeTable {
    const float *cos, *sin;  // (positions, HD / 2)
    int positions;
};

// Rotates qkv (N, NH + 2 NKV, HD) Real, float or bf16, in place. Row n is position first + n % T: N rows of sequences
// of length T, or with first > 0 rows that follow cached ones. Moves 2 sizeof(Real) bytes per element of queries and
// keys.
template <class Real>
void rope_forward(Real* qkv, const RopeTable& table, int first, int N, int T, const AttentionHeads& heads,
                  stream_t stream);

// Turns the gradient of rope_forward's result into that of its qkv, in place: the inverse rotation.
template <class Real>
void rope_backward(Real* dqkv, const RopeTable& table, int first, int N, int T, const AttentionHeads& heads,
                   stream_t stream);

// Gains of QK-norm, (HD) each, shared by all heads. Both nullptr: gains of 1.
template <class T>
struct QkGains {
    T *query, *key;
};

// out = RoPE(RMS norm of each query and key head, times its gain), rounded once; values are copied. Without gains the
// two operations commute, so this is also RMS norm after RoPE.
//
//   out, qkv (N, NH + 2 NKV, HD) Real; out may be qkv if no backward follows
//
// Moves 2 sizeof(Real) bytes per element.
template <class Real>
void qk_norm_rope_forward(Real* out, const Real* qkv, const QkGains<const Real>& gains, const RopeTable& table,
                          int first, int N, int T, const AttentionHeads& heads, float eps, stream_t stream);

// On entry dqkv is the gradient of qk_norm_rope_forward's out, on return that of its qkv. Only qkv is kept from the
// forward; norms are computed again.
//
//   dgains   (HD) float each, overwritten, or added to if `accumulate`; nullptr without gains
//   scratch  qk_norm_backward_scratch(N, heads) floats, contents irrelevant; nullptr without gains
//
// Moves 3 sizeof(Real) bytes per element of queries and keys. Deterministic: the gains' gradients are summed in FP32 by
// blocks whose number is a function of the shape (column_sums.cuh).
template <class Real>
void qk_norm_rope_backward(Real* dqkv, const QkGains<float>& dgains, float* scratch, const Real* qkv,
                           const QkGains<const Real>& gains, const RopeTable& table, int first, int N, int T,
                           const AttentionHeads& heads, float eps, bool accumulate, stream_t stream);
size_t qk_norm_backward_scratch(int N, const AttentionHeads& heads);

}  // namespace llmc
