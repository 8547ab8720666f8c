// The list of checks of what a run uses (kernel_checks.h).
#include "llmc/check/kernel_checks.h"

#include "llmc/check/families.h"

namespace llmc {

std::vector<CheckItem> kernel_checks(const KernelUse& use) {
    check::Items items;
    for (const auto add : {check::add_casts, check::add_tensor_cores, check::add_embedding, check::add_layernorm,
                           check::add_attention, check::add_gelu, check::add_classifier, check::add_sums,
                           check::add_optimizer, check::add_step, check::add_quantize, check::add_quantize_blocks,
                           check::add_fused_attention, check::add_fused_layernorm, check::add_fused_gelu})
        add(items, use);
    return items;
}

}  // namespace llmc
