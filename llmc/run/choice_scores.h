// Lets the model answer multiple-choice examples (HellaSwag). Each completion is scored by the log-probabilities of its
// tokens after the context; the best score is the answer.
#pragma once
#include <optional>

#include "llmc/comm/watchdog.h"
#include "llmc/data/choices.h"
#include "llmc/log/metrics.h"
#include "llmc/train/trainer.h"

namespace llmc {

// Distributes the examples over the ranks; every rank gets the same scores. Returns nothing if a signal asks some rank
// to stop meanwhile. A collective.
template <class Real>
std::optional<ChoiceScores> score_choices(Trainer<Real>& trainer, const std::vector<Choices>& examples,
                                          Watchdog& watchdog);

}  // namespace llmc
