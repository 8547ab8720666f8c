// What a run does between two steps, when the model stands still.
#pragma once
#include <optional>

#include "llmc/device/trace.h"
#include "llmc/log/records.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/step_reports.h"

namespace llmc {

// Reports the steps that are over, but for the last `leave`.
template <class Real>
void report_all_but(StepReports& reports, Trainer<Real>& trainer, int leave) {
    const ProfileRange range("wait for results");
    while (const std::optional<StepRecord> record = trainer.take_result(leave)) reports.report(*record);
}

template <class Real>
bool records_fp8_after(int64_t step, const Options& o, Trainer<Real>& trainer) {
    return trainer.fp8() && !o.out.empty() && o.fp8_log_every > 0 && step > 0 && step % o.fp8_log_every == 0;
}

template <class Real>
bool probes_fp8_in(int64_t step, const Options& o, Trainer<Real>& trainer) {
    return trainer.fp8() && !o.out.empty() && o.fp8_probe_every > 0 && step > 0 && step % o.fp8_probe_every == 0;
}

// cut_short: the sample was, because a signal or a limit stops the run. told_to_stop: during the validation.
enum class Look { none, taken, cut_short, told_to_stop, stops_early };

// Validation, a sample, and records of FP8 tensors and errors, if they are due after a step. A collective. A stop
// during the validation leaves all of them to the run that resumes.
template <class Real>
Look look_at_model(const Options& o, int64_t step, bool last, Trainer<Real>& trainer, Evaluation<Real>& evaluation,
                   StepReports& reports, RunDirectory& directory, ValidationWatch& watch) {
    const bool validates = evaluation.validates_after(step, last), samples = evaluation.samples_after(step, last);
    const bool records = records_fp8_after(step, o, trainer), probed = probes_fp8_in(step, o, trainer);
    if (!validates && !samples && !records && !probed) return Look::none;
    report_all_but(reports, trainer, 0);
    const ProfileRange range("look at the model");
    Look look = Look::taken;
    if (validates) {
        const std::optional<ValRecord> record = evaluation.validate(step);
        if (!record) return Look::told_to_stop;
        reports.report(*record);
        // The one at the end of a run that goes on another time would be one more.
        if (!record->losses.empty() && step % o.val_every == 0) {
            const auto verdict = watch.observe(record->losses[0].loss, plateau_from_text(o.plateau), o.early_stop);
            report_verdict(step, verdict, watch, directory, trainer.comm());
            if (verdict == ValidationWatch::Verdict::lower_rate) trainer.scale_rate(watch.rate_factor());
            if (verdict == ValidationWatch::Verdict::stop) look = Look::stops_early;
        }
    }
    if (samples) {
        const Sample sample = evaluation.print_sample(step);
        record_sample(step, sample.text, directory);
        if (sample.cut_short && look == Look::taken) look = Look::cut_short;
    }
    if (records) record_fp8(step, *trainer.fp8(), trainer.stream(), directory);
    if (probed) record_fp8_errors(step, *trainer.fp8(), trainer.stream(), directory);
    return look;
}

}  // namespace llmc
