// GPT-2 as Hugging Face's config.json describes it.
#pragma once
#include "llmc/model/architecture.h"

namespace llmc {

extern const ModelDescription kGpt2Description;

}  // namespace llmc
