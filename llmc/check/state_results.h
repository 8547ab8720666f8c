// Arrays of an optimizer's state in a specification: in the format that a flag gives them, and compared with FP64
// values that were rounded at random by the documented bits (llmc/kernels/state_array.h).
#pragma once
#include <vector>

#include "llmc/check/trial.h"
#include "llmc/kernels/step_state.h"
#include "llmc/optim/config.h"

namespace llmc::check {

constexpr AdamWConfig kAdamW{0.9, 0.95, 1e-8, 0.1};
constexpr StateRounding kRounding{12345, 4096};

// The state of the step that all examples belong to.
StepState example_state(bool skip = false);

// Rounds values to the nearest ones of the format.
void narrow(StateFormat format, std::vector<float>& values);

// Arrays with these values, which the format must hold without loss.
StateArray state_input(Trial& t, StateFormat format, const std::vector<float>& values);
StateArray state_result(Trial& t, const char* name, StateFormat format, const std::vector<float>& before);

std::vector<float> values_in(const Trial& t, const StateArray& array);
void equal(Trial& t, const StateArray& array, const std::vector<float>& expected);

// Compares with values known up to bounds, each rounded by its own random bits.
enum class StateKind { master, first_moment, second_moment };
void within(Trial& t, const StateArray& array, const Bounded& exact, StateKind kind);

// The working copy must be the masters, rounded to nearest, and `measured` what `before` becomes with their amax, which
// is infinite if a master is not finite. Either pointer may be null.
template <class Real>
void compare_copies(Trial& t, const std::vector<float>& masters, const Real* working, const Fp8State* measured,
                    const Fp8State& before) {
    if (working) t.equal(working, reference::nearest<Real>(masters));
    Fp8State expected = before;
    for (const float weight : masters)
        expected.amax_now = std::max(expected.amax_now, std::isfinite(weight) ? std::fabs(weight) : INFINITY);
    if (measured) t.equal(measured, expected);
}

}  // namespace llmc::check
