// The checks of everything but products: casts, tensor cores, and the kernels that a run uses, each against its plain
// counterpart, at the run's head dimension and width and at odd lengths, twice with the same bits.
#pragma once
#include <vector>

#include "llmc/check/item.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/optim/config.h"

namespace llmc {

// What of the kernels a run uses.
struct KernelUse {
    bool bf16 = true;  // activations; else float
    bool fp8 = false;  // some linear layers
    Fp8Scaling scaling = Fp8Scaling::tensor;
    bool e4m3_gradients = false;
    bool current_scaling = false;  // measured first, then written
    int channels = 0, heads = 0, head_dim = 0;
    int vocab = 0, padded_vocab = 0;
    bool several_ranks = false;
    OptimizerKind optimizer = OptimizerKind::adamw;
};

std::vector<CheckItem> kernel_checks(const KernelUse& use);

}  // namespace llmc
