// The table of all FP8 tensors: their states on the device, and the histories of their amaxes.
//
// The order of a step, for each tensor of a layer in FP8:
//   forward, backward   quantizing kernels read the scale and raise amax (delayed), or are run twice with set_current()
//                       in between (current; and in every recipe until the tensor is calibrated)
//   finish_step()       once an optimizer step: amaxes enter the histories, scales for the next step follow
// Weights are different: their scale is a function of the master weights alone, set by set_current() after every
// update.
//
// Rules (NVIDIA Transformer Engine's delayed scaling, with the holes that peers fell into closed): an amax of 0, and
// the amax of a step in which the tensor held Inf or NaN, never enters a history, and the scale stays; a history rolls
// once an optimizer step whatever the number of micro-steps, and not at all for a tensor that was not used.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/runtime.h"
#include "llmc/fp8/recipe.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

enum class Fp8Role { x, w, dout };
constexpr int kFp8Roles = 3;
const char* name_of(Fp8Role role);

// Tensors are numbered layer by layer, in the order in which forward comes to them, and in a layer by role.
constexpr Fp8Role role_of(int tensor) { return static_cast<Fp8Role>(tensor % kFp8Roles); }

// Launchers. `states` (count), `history` (count, length) with the oldest entry first; zero means empty.
//
// scale = largest / (2^margin * amax), rounded down to a power of two if asked; between FLT_MIN and FLT_MAX; unchanged
// for an amax of 0 or of a tensor with non-finite values. For tensors [first, first + count); amax_now is cleared and
// joins amax, or marks the tensor as bad if it is not finite.
void fp8_set_current(Fp8State* states, int first, int count, const Fp8Config& config, stream_t stream);
// Histories roll and scales follow for every tensor but weights; amax and bad are cleared. Where the loss scale changes
// by *change (a power of two; nullptr: it does not), the gradients' histories and scales move with it exactly.
void fp8_finish_step(Fp8State* states, float* history, int count, const Fp8Config& config, const float* change,
                     stream_t stream);
// *flag = 1 + the index of the first tensor in which this step met a value that is not finite, else 0. First in the
// order of a step: weights, then forward from the first block to the last, then backward from the last to the first.
void fp8_any_bad(int* flag, const Fp8State* states, int count, stream_t stream);
// How ranks share what they have seen: packed (2, count) = every tensor's amax, or with `now` its amax_now, and whether
// it held a non-finite value (0 or 1); and back. In between comes the maximum over the ranks. No NaN is among them.
void fp8_pack_amaxes(float* packed, const Fp8State* states, int count, bool now, stream_t stream);
void fp8_unpack_amaxes(Fp8State* states, const float* packed, int count, bool now, stream_t stream);
// All scales 1, everything else 0.
void fp8_reset(Fp8State* states, float* history, int count, const Fp8Config& config, stream_t stream);
// The counts of all tensors start again at 0.
void fp8_clear_counts(Fp8State* states, int count, stream_t stream);

}  // namespace llmc
