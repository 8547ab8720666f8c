// train_gpt sample prints text from a model as it is generated.
#pragma once
#include <string>
#include <vector>

#include "llmc/base/error.h"

namespace llmc {

// `arguments`: what follows "sample".
ExitCode sample_text(const std::vector<std::string>& arguments);

}  // namespace llmc
