// The table of variants, and the choice of a run's set (variants.h).
#include "llmc/kernels/variants.h"

#include <sstream>

#include "llmc/base/error.h"
#include "llmc/device/runtime.h"

namespace llmc {
namespace {

using V = KernelVariant;
using F = Formats;

// Rows are in the order of the enumeration.
constexpr KernelVariantEntry kEntries[] = {
    {V::layernorm_fp8, "layernorm_fp8", kOldestCard, kAnyLaterCard, true, F::fp8, "the plain norm and quantize"},
    {V::gelu_fp8, "gelu_fp8", kOldestCard, kAnyLaterCard, true, F::fp8, "the plain activation and quantize"},
    {V::attention_fp8, "attention_fp8", kOldestCard, kAnyLaterCard, true, F::fp8, "attention_forward and quantize"},
    {V::layernorm_backward_fp8, "layernorm_backward_fp8", kOldestCard, kAnyLaterCard, true, F::fp8,
     "the plain norm's gradient and quantize"},
    {V::gelu_backward_fp8, "gelu_backward_fp8", kOldestCard, kAnyLaterCard, true, F::fp8,
     "the plain activation's gradient and quantize"},
    {V::attention_backward_fp8, "attention_backward_fp8", kOldestCard, kAnyLaterCard, true, F::fp8,
     "attention_backward and quantize"},
    {V::hopper_attention, "hopper_attention", 90, 90, false, F::bf16, "attention_forward"},
    {V::hopper_attention_backward_split, "hopper_attention_backward_split", 90, 90, false, F::bf16,
     "attention_backward"},
    {V::hopper_matmul_gelu, "hopper_matmul_gelu", 90, 90, false, F::fp8, "fc's product and gelu_fp8"},
    {V::hopper_matmul_gelu_backward, "hopper_matmul_gelu_backward", 90, 90, false, F::fp8,
     "fc_proj's product and gelu_backward_fp8"},
    {V::host_attention, "host_attention", kHostDevice, kHostDevice, true, F::fp32, "attention's kernels"},
    {V::host_classifier, "host_classifier", kHostDevice, kHostDevice, true, F::fp32, "the classifier's kernel"},
    {V::host_norm, "host_norm", kHostDevice, kHostDevice, true, F::fp32, "the norms' kernels"},
    {V::host_activation, "host_activation", kHostDevice, kHostDevice, true, F::fp32, "the activations' kernels"},
    {V::host_rope, "host_rope", kHostDevice, kHostDevice, true, F::fp32, "the kernels of rotary positions"},
    {V::host_quantize, "host_quantize", kHostDevice, kHostDevice, true, F::fp32, "the quantizing kernels"},
    {V::host_embedding, "host_embedding", kHostDevice, kHostDevice, true, F::fp32, "the embedding's kernels"},
    {V::host_optimizer, "host_optimizer", kHostDevice, kHostDevice, true, F::fp32, "the optimizers' kernels"},
    {V::host_sums, "host_sums", kHostDevice, kHostDevice, true, F::fp32, "the kernels of sums and norms"},
};

std::string all_names() {
    std::string names = "auto, portable";
    for (const KernelVariantEntry& entry : kEntries) names += std::string(", ") + entry.name;
    return names;
}

}  // namespace

std::string KernelVariantEntry::cards() const {
    if (last_card == kHostDevice) return "CPUs";
    std::string text = fmt::format("compute capability {}.{}", first_card / 10, first_card % 10);
    if (last_card == kAnyLaterCard)
        text += " and later";
    else if (last_card != first_card)
        text += fmt::format(" to {}.{}", last_card / 10, last_card % 10);
    return text + (on_host ? ", and CPUs" : "");
}

std::span<const KernelVariantEntry> kernel_variants() { return kEntries; }

const KernelVariantEntry& kernel_variant(KernelVariant variant) { return kEntries[static_cast<size_t>(variant)]; }

const KernelVariantEntry& kernel_variant(const std::string& name) {
    for (const KernelVariantEntry& entry : kEntries)
        if (name == entry.name) return entry;
    throw Error(ExitCode::bad_flags, "--kernels '" + name + "' is not one of " + all_names());
}

KernelSet KernelSet::common() {
    KernelSet set;
    for (const KernelVariantEntry& entry : kEntries)
        if (entry.on_host && entry.first_card == kOldestCard && entry.last_card == kAnyLaterCard)
            set.add(entry.variant);
    return set;
}

std::vector<std::string> KernelSet::names() const {
    std::vector<std::string> names;
    for (const KernelVariantEntry& entry : kEntries)
        if (has(entry.variant)) names.push_back(entry.name);
    return names;
}

void choose_kernels(stream_t stream, const KernelSet& kernels) { set_stream_kernels(stream, kernels.bits()); }

WantedKernels wanted_kernels(const std::string& text) {
    if (text == "auto") return std::nullopt;
    KernelSet set;
    std::istringstream names(text == "portable" ? "" : text + ",");
    for (std::string name; std::getline(names, name, ',');) set.add(kernel_variant(name).variant);
    return set;
}

KernelSet kernel_set(const WantedKernels& wanted, std::optional<int> card, Formats formats) {
    KernelSet set;
    for (const KernelVariantEntry& entry : kEntries) {
        const bool runs = card ? entry.runs_on(*card) : wanted || entry.last_card != kHostDevice;
        if (wanted && !wanted->has(entry.variant)) continue;
        if (wanted && !runs) {
            const std::string here = *card == kHostDevice
                                         ? "a CPU"
                                         : fmt::format("a card of compute capability {}.{}", *card / 10, *card % 10);
            throw Error(ExitCode::bad_flags, "--kernels {}: it is for {}, and this is {}; use --kernels auto",
                        entry.name, entry.cards(), here);
        }
        if (runs && formats >= entry.formats) set.add(entry.variant);
    }
    return set;
}

}  // namespace llmc
