// From BF16 tensors and FP32 master weights to FP8, in the two layouts that matrix products on Hopper need.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// Here and in norm.h and activation.h:
//
//   out.row (N, C) and out.transposed (C, N) = F8(x * out.state->scale), rounded to nearest even, saturating; either
//   may be nullptr. F8 = e4m3 or e5m2. N % 16 == 0 and C % 16 == 0; FP8 pointers are 16-byte aligned. out.state gets
//   the amax of x (unscaled, finite values only) and the counts, as `pass` wants: see fp8_state.h. `measure` writes
//   nothing but the state's amax_now and bad; `replay` leaves the state alone.
//
// One read of the inputs; both layouts leave in the same pass, 2 bytes an element. After TransformerEngine's
// cast_transpose and its fusions (cast_transpose_dbias, cast_transpose_dbias_dgelu). Deterministic: amax and counts are
// integer atomics, column sums go through parts whose number depends on N and C alone (column_sums.cuh).

// x = inp + inp_low, (N, C) bf16 each; inp_low may be nullptr. It carries what rounding to inp cut off.
// dbias (C) float, if not nullptr: sums over rows of the unquantized x, added to dbias when `accumulate`; not touched
// by `measure`. scratch: quantize_scratch(N, C) floats, contents irrelevant, nullptr if dbias is. Moves 4 bytes an
// element, 6 with inp_low; 2 or 4 in pass `measure`.
template <class F8>
void quantize(const Quantized<F8>& out, float* dbias, float* scratch, const bf16* inp, const bf16* inp_low, int N,
              int C, bool accumulate, QuantizePass pass, stream_t stream);
size_t quantize_scratch(int N, int C);

// x = master (R, C) float, both multiples of 16; times factors (C), if not nullptr. Moves 6 bytes an element; 4 in pass
// `measure`.
void quantize_weight(const Quantized<e4m3>& out, const float* master, int R, int C, QuantizePass pass, stream_t stream,
                     const float* factors = nullptr);

}  // namespace llmc
