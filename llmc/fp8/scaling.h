// Kernels on the table of all FP8 tensors: their states, the histories of their amaxes, and the verdicts of
// --fp8-fallback on their counters. In a step, for each tensor of a layer in FP8:
//   forward, backward   delayed scaling: quantizing kernels read the scale and raise amax. Current scaling, and any
//                       recipe until it is calibrated: they run twice, with fp8_set_current() in between.
//   fp8_finish_step()   amaxes enter the histories, and the next step's scales follow
// Weights differ: their scale is a function of the masters and of the number of updates, set by fp8_set_current() after
// every update.
//
// The rules are those of NVIDIA Transformer Engine's delayed scaling, with three additions. An amax of 0, or of a step
// in which the tensor held Inf or NaN, never enters a history and leaves the scale unchanged. A history rolls once per
// optimizer step for any number of micro-steps. It does not roll if the tensor was not used.
#pragma once
#include <cstdint>

#include "llmc/device/runtime.h"
#include "llmc/fp8/recipe.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

enum class Fp8Role { x, w, dout };
constexpr int kFp8Roles = 3;
template <>
inline constexpr WordTable<Fp8Role> kWords<Fp8Role> = {{"x", Fp8Role::x}, {"w", Fp8Role::w}, {"dout", Fp8Role::dout}};

// Tensors are numbered layer by layer, in the order of forward, and within a layer by role.
constexpr Fp8Role role_of(int tensor) { return static_cast<Fp8Role>(tensor % kFp8Roles); }

// Launchers take `states` (count) and `history` (count, length), with the oldest entry first and 0 for an empty one.
//
// Tensors [first, first + count): scale = largest / (2^margin * amax_now), rounded down to a power of two if
// configured, and kept between FLT_MIN and FLT_MAX. An amax of 0, or of a tensor with non-finite values, leaves the
// scale unchanged. amax_now raises amax, or marks the tensor as bad if it is not finite, and is cleared.
//
// With `updates`, the number of the optimizer's updates so far, weights' scales have another factor after each of them:
// 1 - frac(0.618 updates) / 2, unless they are powers of two. (0.618 is the golden ratio, which spreads any few factors
// in a row evenly.) In one step, weights move by far less than the distance between two codes. With a constant scale
// each would keep its rounding error for many steps: a constant error of the gradients, which training would learn.
// With changing scales these errors average out, as those of a dithered signal do (Roberts, "Picture coding using
// pseudo-random noise", 1962).
void fp8_set_current(Fp8State* states, int first, int count, const Fp8Config& config, const int64_t* updates,
                     stream_t stream);
// Rolls histories and computes scales of all tensors except weights, and clears amax and bad. If the loss scale changes
// by *change (a power of two; unchanged if nullptr), gradients' histories and scales change with it exactly.
void fp8_finish_step(Fp8State* states, float* history, int count, const Fp8Config& config, const float* change,
                     stream_t stream);
// *flag = 1 + the index of the first tensor in which this step met a value that is not finite, or 0. The order is that
// of a step: weights, then forward from the first block to the last, then backward from the last to the first.
void fp8_any_bad(int* flag, const Fp8State* states, int count, stream_t stream);
// For the maximum over the ranks. packed (2, count) = every tensor's amax, or with `now` its amax_now, and whether it
// held a non-finite value (0 or 1). None of these numbers is NaN. fp8_unpack_amaxes() writes them back.
void fp8_pack_amaxes(float* packed, const Fp8State* states, int count, bool now, stream_t stream);
void fp8_unpack_amaxes(Fp8State* states, const float* packed, int count, bool now, stream_t stream);
// Sets all scales to 1 and everything else to 0.
void fp8_reset(Fp8State* states, float* history, int count, const Fp8Config& config, stream_t stream);

// ---- --fp8-fallback: finding tensors that keep losing values --------------------------------------------------------
//
// After every optimizer step, that step's counts are taken from the running ones, summed over the ranks and compared
// with the rule. A long enough streak of steps above the rule is a verdict.

// One tensor's counts after the last step, and for how many steps in a row they were above the rule.
struct Fp8Watch {
    uint64_t elements, saturated, underflowed;
    int saturating, underflowing;
};

enum class Fp8Reason { none, saturated, underflowed };
struct Fp8Verdict {
    int reason;      // an Fp8Reason
    float fraction;  // fraction of elements that were lost in this step
};

// packed (3, count) = elements, saturated and underflowed of every tensor since the last call.
void fp8_pack_counts(float* packed, Fp8Watch* watches, const Fp8State* states, int count, stream_t stream);
// Judges the counts of all ranks. A step with a value that is not finite (*bad_flag) was skipped and changes no streak.
void fp8_judge(Fp8Verdict* verdicts, Fp8Watch* watches, const float* packed, const int* bad_flag, int count,
               const Fp8FallbackRule& rule, stream_t stream);
// Resets the counts of all tensors to 0. `watches` keep those since the last fp8_pack_counts(); nullptr without a rule.
void fp8_clear_counts(Fp8State* states, Fp8Watch* watches, int count, stream_t stream);

}  // namespace llmc
