// train_gpt export converts a model's weights from one program's files to another's.
#pragma once
#include <string>
#include <vector>

#include "llmc/base/error.h"

namespace llmc {

// `arguments`: what follows "export".
ExitCode export_weights(const std::vector<std::string>& arguments);

}  // namespace llmc
