// A trainer's weights from and to Hugging Face files (checkpoint/hf_gpt2.h).
#pragma once
#include <string>

#include "llmc/train/trainer.h"

namespace llmc {

// Every rank reads; then the trainer is ready.
template <class Real>
void load_weights(Trainer<Real>& trainer, const std::string& path);
// Every rank takes part; the first one writes, and it alone needs `path`.
template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path);

}  // namespace llmc
