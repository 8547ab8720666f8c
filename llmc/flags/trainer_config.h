// From flags to what a Trainer is made of: the one place where the names that flags take become typed values.
#pragma once
#include "llmc/flags/options.h"
#include "llmc/train/trainer.h"

namespace llmc {

// Of resolved options.
TrainerConfig trainer_config(const Options& options, const ProductChoices& products = {});
ReduceOrder reduce_order(const Options& options);

}  // namespace llmc
