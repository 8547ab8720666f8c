// The list of checks of what a run uses (kernel_checks.h).
#include "llmc/check/kernel_checks.h"

#include <set>

#include "llmc/check/families.h"

namespace llmc {

namespace {

std::vector<CheckItem> all_checks(const KernelUse& use) {
    check::Items items;
    for (const auto add :
         {check::add_casts, check::add_tensor_cores, check::add_embedding, check::add_layernorm, check::add_attention,
          check::add_gelu, check::add_classifier, check::add_sums, check::add_optimizer, check::add_muon,
          check::add_step, check::add_quantize, check::add_quantize_blocks, check::add_fused_attention,
          check::add_fused_layernorm, check::add_fused_gelu})
        add(items, use);
    return items;
}

}  // namespace

std::vector<CheckItem> kernel_checks(const KernelUse& use) {
    std::vector<CheckItem> items = all_checks(use);
    if (!use.fp8) return items;
    std::set<std::string> needed;
    KernelUse without = use;
    without.fp8 = false;
    for (const CheckItem& item : all_checks(without)) needed.insert(item.name);
    for (CheckItem& item : items)
        if (item.variant.empty() && !needed.count(item.name)) item.variant = kAllOfFp8;
    return items;
}

}  // namespace llmc
