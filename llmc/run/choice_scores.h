// Multiple-choice examples as a model answers them: every completion is scored by its own tokens' log-probabilities
// after the context, and the best score is the answer.
#pragma once
#include <optional>

#include "llmc/comm/watchdog.h"
#include "llmc/data/choices.h"
#include "llmc/log/metrics.h"
#include "llmc/train/trainer.h"

namespace llmc {

// The examples are shared out over the ranks; a collective, and the same on every rank. B and T: of a micro-batch.
// Nothing, if some rank is told to stop meanwhile.
template <class Real>
std::optional<ChoiceScores> score_choices(Trainer<Real>& trainer, const std::vector<Choices>& examples,
                                          Watchdog& watchdog);

}  // namespace llmc
