// From flags to the configuration of a Trainer.
#pragma once
#include "llmc/flags/options.h"
#include "llmc/train/trainer.h"

namespace llmc {

// For resolved options.
TrainerConfig trainer_config(const Options& options, const ProductChoices& products = {});

}  // namespace llmc
