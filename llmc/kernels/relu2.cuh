// ReLU squared and its derivative for one value, shared by the plain kernels and those that quantize their output.
#pragma once
#include "llmc/device/math.cuh"

namespace llmc {

// A NaN stays one: a skipped step has to see it.
LLMC_HD float relu(float x) { return x < 0.0f ? 0.0f : x; }

LLMC_HD float relu2(float x) { return relu(x) * relu(x); }

LLMC_HD float relu2_derivative(float x) { return 2.0f * relu(x); }

}  // namespace llmc
