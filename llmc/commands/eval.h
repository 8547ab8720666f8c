// train_gpt eval measures an existing model on validation sets and HellaSwag.
#pragma once
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/launch.h"

namespace llmc {

// `arguments`: what follows "eval".
ExitCode evaluate_weights(const std::vector<std::string>& arguments, const LaunchInfo& launch);

}  // namespace llmc
