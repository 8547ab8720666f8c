// Declares the CPU loops (launch.h), grouped by file. A loop has the parameters of its kernel, and the kernel's comment
// says what both compute.
#pragma once
#include <bit>

#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/host/launch.h"
#include "llmc/kernels/muon.h"

namespace llmc::host {

// ---- attention.cpp --------------------------------------------------------------------------------------------------

template <int HD>
void attention_forward(const Grid&, bf16* out, bf16* out_low, float* lse, const bf16* qkv, e4m3* row, e4m3* transposed,
                       Fp8State* fp8, int T, int NH, int NKV, float scale, int window, QuantizePass pass,
                       const int* documents);
template <int HD>
void attention_forward_fp32(const Grid&, float* out, float* lse, const float* qkv, int T, int NH, int NKV,
                            float scale_log2, int window, const int* documents);
template <int HD>
void attention_delta(const Grid&, float* delta, const bf16* dout, const bf16* out, const bf16* out_low, size_t rows,
                     int T, int NH);
template <int HD, class Out>
void attention_key_gradient(const Grid&, Out* dqkv, Out* transposed, float* parts, Fp8State* fp8, const bf16* dout,
                            const bf16* qkv, const float* lse, const float* delta, int T, int NH, int NKV, int group,
                            float scale, int window, QuantizePass pass, const int* documents);
template <int HD, class Out>
void attention_query_gradient(const Grid&, Out* dqkv, Out* transposed, float* parts, Fp8State* fp8, const bf16* dout,
                              const bf16* qkv, const float* lse, const float* delta, int T, int NH, int NKV, int group,
                              float scale, int window, QuantizePass pass, const int* documents);
template <int HD>
void attention_query_gradient_fp32(const Grid&, float* dqkv, float* delta, const float* dout, const float* qkv,
                                   const float* out, const float* lse, int T, int NH, int NKV, float scale, int window,
                                   const int* documents);
template <int HD>
void attention_key_gradient_fp32(const Grid&, float* dqkv, const float* dout, const float* qkv, const float* lse,
                                 const float* delta, int T, int NH, int NKV, float scale, int window,
                                 const int* documents);
template <int HD>
void attention_decode(const Grid&, bf16* out, bf16* out_low, const bf16* qkv, int first, int rows, int NH, int NKV,
                      float scale_log2, int window);
template <int HD>
void attention_decode_fp32(const Grid&, float* out, const float* qkv, int first, int rows, int NH, int NKV,
                           float scale_log2, int window);
template <class Real, int HD>
void attention_max_logits(const Grid&, float* maxima, const Real* qkv, int T, int NH, int NKV, float scale, int window,
                          const int* documents);

// ---- norm.cpp -------------------------------------------------------------------------------------------------------

template <bool kLayer, class Real>
void norm_forward(const Grid&, Real* normed, float* mean, float* rstd, const Real* inp, const Real* weight,
                  const Real* shift, float eps, int N, int C, int warps_per_row);
template <bool kLayer>
void norm_forward_fp8(const Grid&, e4m3* row, e4m3* transposed, Fp8State* state, float* mean, float* rstd,
                      const bf16* inp, const bf16* weight, const bf16* shift, float eps, int N, int C,
                      int warps_per_row, int block_rows, int stride, QuantizePass pass);
// kGroup is the kernel's template parameter Rows.
template <bool kLayer, int kGroup, class Real>
void norm_backward(const Grid&, Real* dinp, const Real* dresidual, float* parts, const Real* dout, const Real* inp,
                   const Real* weight, const float* mean, const float* rstd, int N, int C);
template <bool kLayer>
void norm_backward_fp8(const Grid&, e5m2* row, e5m2* transposed, Fp8State* state, float* bias_parts, bf16* dinp,
                       const bf16* dresidual, float* parts, const bf16* dout, const bf16* inp, const bf16* weight,
                       const float* mean, const float* rstd, int N, int C, int tile_rows, int stride,
                       QuantizePass pass);

// ---- activation.cpp -------------------------------------------------------------------------------------------------

template <class Formula, class Real>
void activate(const Grid&, Real* out, const Real* inp, size_t n);
template <class Formula, class Real>
void activate_backward(const Grid&, Real* dinp, const Real* dout, const Real* inp, size_t n);
template <class Real>
void swiglu_forward(const Grid&, Real* out, const Real* inp, int N, int F);
template <class Real>
void swiglu_backward(const Grid&, Real* dinp, const Real* dout, const Real* inp, int N, int F);

// ---- quantize.cpp ---------------------------------------------------------------------------------------------------

template <class F8, class Producer>
void quantize_tile(const Grid&, F8* row, F8* transposed, float* parts, Fp8State* state, Producer producer, int N, int C,
                   QuantizePass pass);
template <class Master>
void quantize_weight(const Grid&, e4m3* row, e4m3* transposed, Fp8State* state, const Master* master, int R, int C,
                     QuantizePass pass);
template <class Master>
void quantize_flat(const Grid&, e4m3* codes, const Master* master, size_t count, Fp8State* state, QuantizePass pass);
template <class F8>
void transpose_codes(const Grid&, F8* transposed, const F8* codes, int R, int C);

// ---- quantize_blocks.cpp --------------------------------------------------------------------------------------------

template <Fp8Scaling S>
void quantize_blocks(const Grid&, e4m3* row, void* row_scales, e4m3* transposed, void* transposed_scales, float* parts,
                     Fp8State* state, const bf16* inp, int N, int C, QuantizePass pass);
template <class Master>
void quantize_weight_tiles(const Grid&, e4m3* row, float* row_scales, e4m3* transposed, float* transposed_scales,
                           Fp8State* state, const Master* master, int R, int C, QuantizePass pass);

// ---- classifier.cpp -------------------------------------------------------------------------------------------------

template <class Real, int kThreads, bool kCapped>
void softmax_cross_entropy(const Grid&, Real* logits, float* losses, const int* targets, float dloss,
                           const float* loss_scale, int V, int padded_V, bool write_gradient, float cap, float z_loss);
template <class F8, int kThreads, bool kCapped>
void softmax_cross_entropy_fp8(const Grid&, F8* codes, Fp8State* state, const bf16* logits, float* losses,
                               const int* targets, float dloss, const float* loss_scale, int V, int padded_V, float cap,
                               float z_loss, QuantizePass pass);
void sum_losses(const Grid&, double* total, int* count, const float* losses, const int* targets, int n,
                bool accumulate);

// ---- embedding.cpp --------------------------------------------------------------------------------------------------

template <class Real>
void embedding_forward(const Grid&, Real* out, const int* tokens, const Real* wte, const Real* wpe, int rows, int T,
                       int C, int V);
template <class Real>
void embedding_backward_tokens(const Grid&, float* dwte, const int* sorted, const Real* dout, int n, int C, int V);
template <class Real>
void embedding_backward_positions(const Grid&, float* dwpe, const Real* dout, int B, int T, int C);

// ---- rope.cpp -------------------------------------------------------------------------------------------------------

// A kernel processes `count` heads of each row of qkv, starting with head `first`.
struct HeadRange {
    int first, count, row_heads;
};
// Number of threads that share a head: one for 16 elements, rounded up to a power of two.
constexpr int head_threads(int HD) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(HD) / 16)); }
template <class Real, int HD, bool kBack>
void rope(const Grid&, Real* qkv, const float* cos, const float* sin, int first, int N, int T, HeadRange range);
template <class Real, int HD>
void qk_norm_rope_forward(const Grid&, Real* out, const Real* qkv, const Real* query_gain, const Real* key_gain,
                          const float* cos, const float* sin, int first, int N, int T, int NH, int NKV, HeadRange range,
                          float eps);
template <class Real, int HD>
void qk_norm_rope_backward(const Grid&, Real* dqkv, float* parts, const Real* qkv, const Real* query_gain,
                           const Real* key_gain, const float* cos, const float* sin, int first, int N, int T, int NH,
                           int NKV, float eps);

// ---- muon.cpp -------------------------------------------------------------------------------------------------------

template <class Real, class Gradient>
void muon_momentum(const Grid&, float* m, Real* u, const Gradient* grad, size_t count, MuonMomentum config,
                   bool nesterov, const StepState* state);
template <class Real>
void muon_norm(const Grid&, double* partials, const Real* x, size_t count);
void muon_inverse_norm(const Grid&, float* inverse, const double* partials, size_t blocks, double factor);
template <class Real>
void copy_matrix(const Grid&, Real* out, const Real* inp, int rows, int columns, bool transpose, const float* factors,
                 FactorOf factor_of);
template <class Real>
void row_squares(const Grid&, float* squares, const Real* x, int rows, int columns);
template <class Real>
void column_squares(const Grid&, float* squares, const Real* x, int rows, int columns);
void normuon_factors(const Grid&, float* factors, float* second, const float* squares, int lines, float beta2,
                     float one_minus_beta2, const StepState* state);

// ---- sums.cpp -------------------------------------------------------------------------------------------------------

template <class Real>
void bias_gradient(const Grid&, float* parts, const Real* dout, int N, int C, int lanes);
template <class Real>
void gelu_backward(const Grid&, Real* dinp, float* parts, const Real* dout, const Real* inp, int N, int C, int lanes);
void reduce_column_parts(const Grid&, float* first, float* second, const float* parts, int count, int columns,
                         int split, bool accumulate);
template <class T>
void global_norm(const Grid&, double* partials, const T* grad, size_t n);
void add_partials(const Grid&, double* sum, const double* partials, size_t n);
void checksum(const Grid&, uint64_t* sum, const uint8_t* data, size_t bytes);
template <class T>
void checksum_values(const Grid&, uint64_t* sum, const T* values, uint64_t key, size_t first, size_t n);

}  // namespace llmc::host
