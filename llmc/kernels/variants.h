// The registry of variants: kernels that do what plainer ones do too, faster or only on some cards. Each is entered
// here with its counterpart, the plain kernels that give what it gives. A run uses those of its KernelSet, and the
// counterparts of the others, so that a card that a variant is wrong on can do without it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

// Rows of the table in variants.cpp. A layer norm's are an RMS norm's too, GELU's those of any activation.
enum class KernelVariant {
    layernorm_fp8,
    gelu_fp8,
    attention_fp8,
    layernorm_backward_fp8,
    gelu_backward_fp8,
    attention_backward_fp8,
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

// Cards are known by their compute capability, 90 for 9.0.
constexpr int kHostDevice = 0;
constexpr int kOldestCard = 80;
constexpr int kAnyLaterCard = 1 << 30;

struct KernelVariantEntry {
    KernelVariant variant;
    const char* name;           // for --kernels
    int first_card, last_card;  // that it runs on
    bool on_host;               // and on the host device; kHostDevice as first and last card: there alone
    bool fp8;                   // makes FP8 with one scale a tensor: no other run has use for it
    const char* right_when;     // what the card check holds it to, beside the counterpart
    const char* counterpart;    // the kernels that take its place, in their order

    bool runs_on(int card) const { return card == kHostDevice ? on_host : card >= first_card && card <= last_card; }
    std::string cards() const;  // "compute capability 9.0"
};

std::span<const KernelVariantEntry> kernel_variants();
const KernelVariantEntry& kernel_variant(KernelVariant variant);
const KernelVariantEntry& kernel_variant(const std::string& name);  // throws Error(bad_flags) with the list of names

// The variants that a run uses.
class KernelSet {
public:
    KernelSet() = default;      // none: portable
    static KernelSet common();  // those that every card and the host device run

    bool has(KernelVariant variant) const { return (members_ & bit(variant)) != 0; }
    void add(KernelVariant variant) { members_ |= bit(variant); }
    void remove(KernelVariant variant) { members_ &= ~bit(variant); }
    std::vector<std::string> names() const;
    bool operator==(const KernelSet&) const = default;

    // For a stream to remember.
    uint64_t bits() const { return members_; }
    static bool has(uint64_t bits, KernelVariant variant) { return (bits & bit(variant)) != 0; }

private:
    static constexpr uint64_t bit(KernelVariant variant) { return uint64_t{1} << static_cast<int>(variant); }
    uint64_t members_ = 0;
};

// Launches on the stream run the loops of the set's families, where the host device has them.
void choose_kernels(stream_t stream, const KernelSet& kernels);

// From --kernels: "portable" (none), "auto" (all that the card runs), or names with commas between them. Without a
// card, for plans, all run. `fp8`: the run makes FP8 with one scale a tensor. Throws Error(bad_flags) for unknown
// names, and for those that the card cannot run.
KernelSet kernel_set_from_text(const std::string& text, std::optional<int> card, bool fp8);
void check_kernel_names(const std::string& text);

}  // namespace llmc
