// The parts of kernel_checks(), a file each.
#pragma once
#include <vector>

#include "llmc/check/kernel_checks.h"
#include "llmc/check/random_values.h"
#include "llmc/check/reference_attention.h"

namespace llmc::check {

using Items = std::vector<CheckItem>;

void add_casts(Items& items, const KernelUse& use);
void add_tensor_cores(Items& items, const KernelUse& use);
void add_memory(Items& items, const KernelUse& use);
void add_embedding(Items& items, const KernelUse& use);
void add_layernorm(Items& items, const KernelUse& use);
void add_rmsnorm(Items& items, const KernelUse& use);
void add_rope(Items& items, const KernelUse& use);  // with QK-norm
void add_attention(Items& items, const KernelUse& use);
void add_gelu(Items& items, const KernelUse& use);
void add_swiglu(Items& items, const KernelUse& use);
void add_relu2(Items& items, const KernelUse& use);
void add_classifier(Items& items, const KernelUse& use);
void add_sums(Items& items, const KernelUse& use);      // bias gradients, norms, sums over ranks
void add_fp8_wire(Items& items, const KernelUse& use);  // gradients between ranks
void add_optimizer(Items& items, const KernelUse& use);
void add_muon(Items& items, const KernelUse& use);
void add_step(Items& items, const KernelUse& use);
void add_quantize(Items& items, const KernelUse& use);  // one scale a tensor
void add_quantize_blocks(Items& items, const KernelUse& use);
void add_outliers(Items& items, const KernelUse& use);  // of FP8's records
void add_smooth(Items& items, const KernelUse& use);    // of --fp8-smooth
void add_fused_attention(Items& items, const KernelUse& use);
void add_fused_layernorm(Items& items, const KernelUse& use);
void add_fused_rmsnorm(Items& items, const KernelUse& use);
void add_fused_gelu(Items& items, const KernelUse& use);
void add_fused_activation(Items& items, const KernelUse& use);  // SwiGLU or ReLU squared

// The run's heads, as few as show how they are told apart: three, or two that are read by up to four others each.
AttentionHeads few_heads(const KernelUse& use);
std::string name_of(const AttentionHeads& heads);  // "HD=64 NH=8 NKV=2", or without NKV where it is NH

// Attention of B rows of T tokens as the run has it: over all keys, and also in a window if some layers have one.
std::vector<reference::AttentionShape> example_shapes(const KernelUse& use, int B, int T);
std::string name_of(const reference::AttentionShape& shape);  // that of its heads, and " window=37 in documents"

// (B, T) as attention reads them (llmc/kernels/attention.h), of all lengths from one token on; empty if the run has
// none.
std::vector<int> example_documents(const KernelUse& use, int B, int T);

// Of an RMS norm; empty: it has none.
template <class Real>
std::vector<Real> example_gains(size_t C, bool gains) {
    return gains ? reference::random_normal<Real>(C, 0.3f, 164, 1.0f) : std::vector<Real>();
}

template <class Real>
const char* type_name() {
    return sizeof(Real) == sizeof(float) ? "fp32" : "bf16";
}

}  // namespace llmc::check
