// Kernels and launchers of loss_scale.h.
#include "llmc/optim/loss_scale.h"

#include <cmath>
#include <cstdlib>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/kernel.cuh"

namespace llmc {

static __global__ void reset_loss_scale_kernel(LossScaleState* state, float scale) { *state = {scale, 1.0f, 0, 0}; }

static __global__ void update_loss_scale_kernel(LossScaleState* state, const StepState* step, LossScaleConfig config) {
    const float before = state->scale;
    float after = before;
    const bool overflow = step->skip && !step->spike;  // a spike says nothing about the scale
    int clean_steps = overflow ? 0 : state->clean_steps + 1;
    if (overflow && step->consecutive_skips >= config.hysteresis) after = 0.5f * before;
    if (clean_steps >= config.growth_interval) {
        after = 2.0f * before;
        clean_steps = 0;
    }
    if (!config.dynamic || after > config.largest || after < config.smallest) after = before;
    state->scale = after;
    state->change = after / before;
    state->clean_steps = clean_steps;
}

namespace {

bool is_power_of_two(float x) {
    int exponent;
    return std::isfinite(x) && std::frexp(x, &exponent) == 0.5f;
}

void check_config(const LossScaleConfig& config) {
    for (const float x : {config.initial, config.largest, config.smallest})
        if (!is_power_of_two(x)) throw Error(ExitCode::failure, "loss scale {:g} is not a power of two", x);
    if (config.growth_interval < 1)
        throw Error(ExitCode::failure, "loss scale: growth after {} clean steps", config.growth_interval);
    if (config.hysteresis < 1)
        throw Error(ExitCode::failure, "loss scale: halved after {} skipped steps", config.hysteresis);
}

}  // namespace

LossScaleConfig loss_scale_config(const std::string& text) {
    LossScaleConfig config;
    if (text == "off") return config;
    constexpr std::string_view with_number = "dynamic:";
    if (text.starts_with(with_number)) config.hysteresis = number_in<int>(text.substr(with_number.size())).value_or(0);
    if (text == "dynamic" || (text.starts_with(with_number) && config.hysteresis > 0)) {
        config.dynamic = true;
        config.initial = 65536.0f;
        return config;
    }
    char* end = nullptr;
    config.initial = std::strtof(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !is_power_of_two(config.initial) || config.initial < config.smallest ||
        config.initial > config.largest)
        throw Error(ExitCode::bad_flags,
                    "--loss-scale {}: expected off, dynamic, dynamic:N or a power of two from {:.0f} to {:.0f}", text,
                    config.smallest, config.largest);
    return config;
}

void reset_loss_scale(LossScaleState* state, const LossScaleConfig& config, stream_t stream) {
    check_config(config);
    launch<reset_loss_scale_kernel>({1, 1, 0, stream}, out(state, 1), config.initial);
}

void update_loss_scale(LossScaleState* state, const StepState* step, const LossScaleConfig& config, stream_t stream) {
    check_config(config);
    launch<update_loss_scale_kernel>({1, 1, 0, stream}, inout(state, 1), in(step, 1), config);
}

}  // namespace llmc
