// The learning rate as a function of the steps done so far, skipped ones included: llm.c's schedules under the same
// names, two more, and warm restarts (Loshchilov and Hutter, SGDR, arXiv 1608.03983), counted like PyTorch's
// CosineAnnealingWarmRestarts.
//
// The device evaluates it next to its counter, and the host for plans and tests, with the same bits: it uses double
// arithmetic, explicit fma(), and no library function except the correctly rounded sqrt.
#pragma once
#include <math.h>

#include <cstdint>

#include "llmc/device/keywords.cuh"

namespace llmc {

enum class ScheduleKind { cosine, linear, constant, wsd, wsd_linear, step, inverse_sqrt };

struct ScheduleConfig {
    ScheduleKind kind = ScheduleKind::cosine;
    double lr = 3e-4;           // the peak
    int64_t warmup = 0;         // steps of linear warm-up, in every schedule
    int64_t steps = 1;          // length of the schedule
    double final_fraction = 0;  // it ends at final_fraction * lr
    double cooldown = 0.2;      // wsd: the fraction of the steps, at the end, in which the rate falls
    int64_t restart_every = 0;  // cosine: steps of the first period after the warm-up; 0 makes one period up to `steps`
    int64_t restart_factor = 1;  // each period is longer than the previous one by this factor
    double factor = 1;           // multiplies every rate, for callers that lower them apart from the schedule
    int64_t decay_from = -1;     // wsd, inverse_sqrt: the decay begins at this step; -1: by `cooldown`, or never
};

// True if the decay may begin at decay_from.
constexpr bool takes_decay_from(ScheduleKind kind) {
    return kind == ScheduleKind::wsd || kind == ScheduleKind::wsd_linear || kind == ScheduleKind::inverse_sqrt;
}

// (1 + cos(pi x)) / 2 for 0 <= x <= 1, as sin^2 of an angle below pi/4 or its complement. Error below 3e-16.
LLMC_HD double half_cosine(double x) {
    const bool upper = x > 0.5;
    const double angle = 1.5707963267948966 * (upper ? 1.0 - x : x);
    const double square = angle * angle;
    double series = -1.0 / 1307674368000.0;  // Taylor: the next term is below 5e-17
    series = fma(series, square, 1.0 / 6227020800.0);
    series = fma(series, square, -1.0 / 39916800.0);
    series = fma(series, square, 1.0 / 362880.0);
    series = fma(series, square, -1.0 / 5040.0);
    series = fma(series, square, 1.0 / 120.0);
    series = fma(series, square, -1.0 / 6.0);
    series = fma(series, square, 1.0);
    const double sine = angle * series;
    return upper ? sine * sine : fma(-sine, sine, 1.0);
}

// The learning rate of the step after `done` others (0 for the first). Skipped steps count, so that the rate reaches
// its final value where the run ends, and a decay begins and ends with the steps that --decay-from and the file
// `decay` name.
//
//   done < warmup        lr * (done + 1) / warmup
//   cosine, linear       from lr at `warmup` to final_fraction * lr at `steps`
//   constant             lr
//   wsd, wsd_linear      lr, then over the last `cooldown` of the steps down to final_fraction * lr: as
//                        1 - sqrt(elapsed fraction), or linearly (both in Haegele et al., arXiv 2405.18392)
//   step                 lr, then 0.316 * lr from 80 % of the steps on, and 0.1 * lr from 90 % on (arXiv 2401.02954)
//   inverse_sqrt         lr * sqrt(warmup / (done + 1)) (arXiv 1706.03762); linearly down to final_fraction * lr
//                        from decay_from on
//
// No rate after the warm-up is below final_fraction * lr. Beyond `steps` it stays at the final value. With restarts the
// cosine falls to final_fraction * lr in every period and starts the next one at lr, independent of `steps`.
LLMC_HD double learning_rate(const ScheduleConfig& config, int64_t done) {
    if (done < config.warmup) return config.lr * static_cast<double>(done + 1) / static_cast<double>(config.warmup);
    if (config.kind == ScheduleKind::constant) return config.lr;
    const double floor = config.lr * config.final_fraction;
    if (config.kind == ScheduleKind::step) {
        const double at = static_cast<double>(done), all = static_cast<double>(config.steps);
        const double rate = config.lr * (at >= 0.9 * all ? 0.1 : at >= 0.8 * all ? 0.316 : 1.0);
        return rate > floor ? rate : floor;
    }

    double top = config.lr;  // from which the rate decays
    int64_t decay_start = config.warmup, end = config.steps;
    if (config.kind == ScheduleKind::inverse_sqrt) {
        const bool decays = config.decay_from >= 0 && done > config.decay_from;
        if (decays) decay_start = config.decay_from;
        const double warmup = static_cast<double>(config.warmup > 0 ? config.warmup : 1);
        const double rate = config.lr * sqrt(warmup / static_cast<double>((decays ? decay_start : done) + 1));
        top = rate > floor ? rate : floor;
        if (!decays) return top;
    }
    if (config.kind == ScheduleKind::wsd || config.kind == ScheduleKind::wsd_linear) {
        const int64_t stable = static_cast<int64_t>(static_cast<double>(config.steps) * (1.0 - config.cooldown));
        if (stable > decay_start) decay_start = stable;
        if (config.decay_from >= 0) decay_start = config.decay_from;
    }
    if (config.kind == ScheduleKind::cosine && config.restart_every > 0) {
        int64_t period = config.restart_every;
        if (config.restart_factor == 1) decay_start += (done - decay_start) / period * period;
        for (; done - decay_start >= period; period *= config.restart_factor) decay_start += period;
        end = decay_start + period;
    }
    if (done < decay_start) return config.lr;

    if (done >= end) return floor;
    const double passed = static_cast<double>(done - decay_start) / static_cast<double>(end - decay_start);
    double part = 0;  // of the way between the floor and the top
    if (config.kind == ScheduleKind::cosine) part = half_cosine(passed);
    if (config.kind == ScheduleKind::linear || config.kind == ScheduleKind::wsd_linear ||
        config.kind == ScheduleKind::inverse_sqrt)
        part = 1.0 - passed;
    if (config.kind == ScheduleKind::wsd) part = 1.0 - sqrt(passed);
    return fma(part, fma(-config.lr, config.final_fraction, top), floor);
}

}  // namespace llmc
