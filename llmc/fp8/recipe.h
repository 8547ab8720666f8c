// How FP8 scales are computed, and which layers use them: the --fp8-* flags as values.
#pragma once
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "llmc/base/text.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

enum class Fp8Recipe {
    delayed,  // scale from the amaxes of past steps; producers quantize as they go
    current,  // scale from the tensor itself, measured first
    block,    // E4M3, a scale for every 128 elements (128 x 128 of a weight), from these elements
    mxfp8,    // E4M3, a scale for every 32 elements, from these elements (OCP MX)
};
template <>
inline constexpr WordTable<Fp8Recipe> kWords<Fp8Recipe> = {{"delayed", Fp8Recipe::delayed},
                                                           {"current", Fp8Recipe::current},
                                                           {"block", Fp8Recipe::block},
                                                           {"mxfp8", Fp8Recipe::mxfp8}};
Fp8Scaling scaling_of(Fp8Recipe recipe);

// The format of output gradients.
enum class Fp8Grad { e5m2, e4m3 };
template <>
inline constexpr WordTable<Fp8Grad> kWords<Fp8Grad> = {{"e5m2", Fp8Grad::e5m2}, {"e4m3", Fp8Grad::e4m3}};

enum class AmaxAlgorithm {
    max,          // the largest in the window
    most_recent,  // the last step's
    ema,          // max(exponential moving average, last step's)
};
template <>
inline constexpr WordTable<AmaxAlgorithm> kWords<AmaxAlgorithm> = {
    {"max", AmaxAlgorithm::max}, {"most_recent", AmaxAlgorithm::most_recent}, {"ema", AmaxAlgorithm::ema}};

// When a layer leaves FP8: after `steps` optimizer steps in a row in which more than these fractions of a tensor's
// elements saturated or underflowed.
struct Fp8FallbackRule {
    float saturated = 1, underflowed = 1;
    int steps = 0;  // 0: never
};
// From --fp8-fallback: "off" or "SATURATED,UNDERFLOWED,STEPS".
Fp8FallbackRule fp8_fallback_from_text(const std::string& text);

// How long a run is in FP8. Its last steps in BF16 close much of the gap: NVIDIA's report on NVFP4 (arXiv 2509.25149,
// appendix D) switches for the last 6 %.
struct Fp8Until {
    static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    double value = -1;  // optimizer steps, or percent of a run; negative: to the end
    bool is_percentage = false;
    // The step after which all layers leave FP8. max_steps: the length of the run, or -1 if it is not known yet.
    int64_t step(int64_t max_steps) const;
};
// From --fp8-until: "off", a step or a percentage, such as 9400 or 94%.
Fp8Until fp8_until_from_text(const std::string& text);

struct Fp8Config {
    Fp8Recipe recipe = Fp8Recipe::delayed;
    int history = 16;  // optimizer steps in the window, at most kMaxAmaxHistory
    int margin = 0;    // scale = largest value / (2^margin * amax)
    AmaxAlgorithm algorithm = AmaxAlgorithm::max;
    bool pow2_scales = false;      // round scales down to powers of two
    Fp8Grad grad = Fp8Grad::e5m2;  // block scales have e4m3 instead of e5m2
    Fp8FallbackRule fallback;
    int64_t until = Fp8Until::kNever;  // all layers leave FP8 after this step

    bool layers_may_leave() const { return fallback.steps > 0 || until != Fp8Until::kNever; }
};
constexpr int kMaxAmaxHistory = 1024;

// A term of --fp8-layers: "auto", "all", "none", or layers to add (+, or no sign) or to remove (-). They are the
// "first" or "last" block, "block7", a layer's name in every block ("fc_proj"), or one layer ("block7.fc_proj"). Only
// "lm_head" itself names the head. "-forward" has the forward products of all these layers in BF16, so that only their
// gradients are in FP8, as the head's always are. Example: all,-first,-last,-block7,-fc_proj,+lm_head
struct Fp8LayerTerm {
    std::string layers;
    bool fp8 = true;  // false: remove them
    bool operator==(const Fp8LayerTerm&) const = default;
};
using Fp8LayerTerms = std::vector<Fp8LayerTerm>;
Fp8LayerTerms fp8_layers_from_text(const std::string& text);

// The terms that "auto" stands for. The first block, whose rounding costs the most loss, is in BF16, unless it is the
// only one. The head is in FP8 if the recipe allows that.
constexpr const char* fp8_layers_auto(int blocks, Fp8Scaling scaling) {
    if (scaling != Fp8Scaling::tensor) return blocks > 1 ? "all,-first" : "all";
    return blocks > 1 ? "all,-first,+lm_head" : "all,+lm_head";
}

// The linear layers that run in FP8.
struct Fp8Layers {
    std::set<std::string> names;  // layer fc_proj of block 7 is "h.7.fc_proj"
    bool forward = true;          // false: only their gradients, as of the head
    bool contains(const std::string& name) const { return names.contains(name); }
    bool operator==(const Fp8Layers&) const = default;
};
// `names`: the linear layers of each block. `scaling`: that of the recipe, for "auto".
Fp8Layers fp8_layers(const Fp8LayerTerms& terms, int blocks, const std::vector<std::string>& names, Fp8Scaling scaling);
constexpr const char* kHeadLayer = "lm_head";

}  // namespace llmc
