// Which optimizer updates the weights (--optimizer), and the numbers of those beside AdamW.
#pragma once
#include "llmc/kernels/adamw.h"
#include "llmc/kernels/lion.h"
#include "llmc/kernels/sgd.h"

namespace llmc {

enum class OptimizerKind { adamw, lion, sgd };

struct OptimizerConfig {
    OptimizerKind kind = OptimizerKind::adamw;
    LionConfig lion;
    SgdConfig sgd;
};

}  // namespace llmc
