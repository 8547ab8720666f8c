// Quantization to FP8 with one scale per tensor, and back: BF16 activations and gradients, FP32 master weights, and
// slices of weights on ranks that own a part of them.
//
// Here, in activation.h and in norm.h:
//
//   out.row (N, C) and out.transposed (C, N) = F8(x * out.state->scale), rounded to nearest even, saturating. Matrix
//   products on Hopper need both layouts; either may be nullptr. F8 = e4m3 or e5m2. N % 16 == 0 and C % 16 == 0; FP8
//   pointers are 16-byte aligned. `pass` says what happens to out.state, which gets the amax of x (unscaled, finite
//   values only) and the counts: see fp8_state.h. `measure` writes only the state's amax_now and bad; `replay` leaves
//   the state alone.
//
// The inputs are read once; both layouts leave in the same pass, 2 bytes per element. After TransformerEngine's
// cast_transpose and its fusions (cast_transpose_dbias, cast_transpose_dbias_dgelu). Deterministic: amax and counts are
// integer atomics, column sums go through parts whose number depends on N and C alone (column_sums.cuh).
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// ---- whole matrices ------------------------------------------------------------------------------------------------

// x = inp + inp_low, (N, C) bf16 each. inp_low holds what rounding to inp cut off, or is nullptr.
//
//   dbias    (C) float or nullptr: sums over rows of the unquantized x, added to dbias if `accumulate`; not touched by
//            pass `measure`
//   scratch  quantize_scratch(N, C) floats, contents irrelevant; nullptr if dbias is
//
// Moves 4 bytes per element, 6 with inp_low; 2 or 4 in pass `measure`.
template <class F8>
void quantize(const Quantized<F8>& out, float* dbias, float* scratch, const bf16* inp, const bf16* inp_low, int N,
              int C, bool accumulate, QuantizePass pass, stream_t stream);
size_t quantize_scratch(int N, int C);

// x = master (R, C), both multiples of 16. Moves 6 bytes per element, 4 in pass `measure`; 2 less each with BF16
// masters.
void quantize_weight(const Quantized<e4m3>& out, const StateArray& master, int R, int C, QuantizePass pass,
                     stream_t stream);

// ---- slices of weights ---------------------------------------------------------------------------------------------
//
// A rank that owns a slice of a weight has a range of elements without rows and columns. It casts its slice before the
// bytes travel, and the gathered bytes are transposed afterwards. Together they give the bits of quantize_weight().

// Pass `measure`: state->amax_now = max(amax_now, |master[i]|), and state->bad if a value is not finite. Pass `write`
// or `replay`: codes[i] = E4M3(master[i] * state->scale), and the counts of the pass. Any count; pointers are 16-byte
// aligned. Reads a master per element and writes 1 byte.
void quantize_flat(e4m3* codes, const StateArray& master, size_t count, Fp8State* state, QuantizePass pass,
                   stream_t stream);

// transposed (C, R) = codes (R, C), multiples of 16. Moves 2 bytes per element.
template <class F8>
void transpose_codes(F8* transposed, const F8* codes, int R, int C, stream_t stream);

// ---- back to BF16, for products that cuBLASLt does not have in FP8 -------------------------------------------------

// out (rows, K) = the values of codes, exactly: times their blocks' scales, or without a scale if `scales` is nullptr.
// Every E4M3 and E5M2 number is a BF16 number. K is a positive multiple of 16; pointers are 16-byte aligned. Moves 3
// bytes per element.
template <class F8>
void dequantize(bf16* out, const F8* codes, const void* scales, ScaleLayout layout, int rows, int K, stream_t stream);

// The alpha and beta of a product of such values, which the product reads on the device: factors[0] =
// first_scale_inv * second_scale_inv, factors[1] = beta.
void product_factors(float* factors, const float* first_scale_inv, const float* second_scale_inv, float beta,
                     stream_t stream);

}  // namespace llmc
