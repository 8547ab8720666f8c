// A trainer's weights from files of other programs (checkpoint/weight_source.h), and to Hugging Face's.
#pragma once
#include <string>

#include "llmc/train/trainer.h"

namespace llmc {

// Every rank reads; then the trainer is ready.
template <class Real>
void load_weights(Trainer<Real>& trainer, const std::string& path);
// Every rank takes part; the first one writes, and only it needs `path`. `end_token`: between documents, -1 if unknown.
template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path, int end_token);

}  // namespace llmc
