// The registry of variants: kernels that do the work of plainer kernels faster, or only on some cards. Each is entered
// here with its counterpart, the plain kernels with the same result. A run uses the variants of its KernelSet and the
// counterparts of the others, so that a card on which a variant gives wrong results can do without it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

// Rows of the table in variants.cpp. A layer norm's variants are also an RMS norm's, and GELU's are those of any
// activation.
enum class KernelVariant {
    layernorm_fp8,
    gelu_fp8,
    attention_fp8,
    layernorm_backward_fp8,
    gelu_backward_fp8,
    attention_backward_fp8,
    hopper_attention,  // kernels/hopper/
    hopper_attention_backward_split,
    hopper_matmul_gelu,
    hopper_matmul_gelu_backward,
    // Families of the host device's own loops (host/launch.h).
    host_attention,
    host_classifier,
    host_norm,
    host_activation,
    host_rope,
    host_quantize,
    host_embedding,
    host_optimizer,
    host_sums,
};

// Cards are named by their compute capability, 90 for 9.0.
constexpr int kHostDevice = 0;
constexpr int kOldestCard = 80;
constexpr int kAnyLaterCard = 1 << 30;

// The number formats of a run's kernels. Each value includes those before it. fp8 means FP8 with one scale per tensor.
enum class Formats { fp32, bf16, fp8 };

struct KernelVariantEntry {
    KernelVariant variant;
    const char* name;           // as in --kernels
    int first_card, last_card;  // compute capabilities on which it runs
    bool on_host;             // true if it also runs on the host device; kHostDevice as first and last card: only there
    Formats formats;          // only runs with these formats use it
    const char* counterpart;  // the kernels that are used instead, in their order

    bool runs_on(int card) const { return card == kHostDevice ? on_host : card >= first_card && card <= last_card; }
    std::string cards() const;  // "compute capability 9.0"
};

std::span<const KernelVariantEntry> kernel_variants();
const KernelVariantEntry& kernel_variant(KernelVariant variant);
const KernelVariantEntry& kernel_variant(const std::string& name);  // throws Error(bad_flags) with the list of names

// The variants that a run uses.
class KernelSet {
public:
    KernelSet() = default;      // no variants: portable
    static KernelSet common();  // the variants that every card and the host device run

    bool has(KernelVariant variant) const { return (members_ & bit(variant)) != 0; }
    void add(KernelVariant variant) { members_ |= bit(variant); }
    void remove(KernelVariant variant) { members_ &= ~bit(variant); }
    std::vector<std::string> names() const;
    bool operator==(const KernelSet&) const = default;

    // The set as a number, which a stream stores.
    uint64_t bits() const { return members_; }
    static bool has(uint64_t bits, KernelVariant variant) { return (bits & bit(variant)) != 0; }

private:
    static constexpr uint64_t bit(KernelVariant variant) { return uint64_t{1} << static_cast<int>(variant); }
    uint64_t members_ = 0;
};

// Makes launches on the stream run the loops of the set's families, if the host device has them.
void choose_kernels(stream_t stream, const KernelSet& kernels);

// Parses --kernels: "portable" (no variants), names with commas between them, or "auto" (nullopt: all variants that the
// card runs). Throws Error(bad_flags) for unknown names.
using WantedKernels = std::optional<KernelSet>;
WantedKernels wanted_kernels(const std::string& text);
// The wanted variants that a run with these formats needs. Without a card, for plans, all variants run. Throws
// Error(bad_flags) for variants that the card cannot run.
KernelSet kernel_set(const WantedKernels& wanted, std::optional<int> card, Formats formats);

}  // namespace llmc
