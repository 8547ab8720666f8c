// --depth N, the one setting of nanochat (https://github.com/karpathy/nanochat, scripts/base_train.py): a model of N
// layers, whose size determines the number of training tokens, the batch and the learning rates.
#pragma once
#include "llmc/flags/options.h"

namespace llmc {

// Before the model is looked up: its name. Refuses another one.
void resolve_depth_model(Options& options);

// With the model, vocabulary included, known: all other flags that --depth stands for, where they were not given, and a
// note that spells them out.
void resolve_depth(Options& options);

}  // namespace llmc
