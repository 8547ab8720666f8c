// The choice of optimizer (--optimizer), and the settings of optimizers other than AdamW.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/kernels/muon.h"
#include "llmc/kernels/update.h"

namespace llmc {

enum class OptimizerKind { adamw, lion, sgd, muon, normuon };  // the last two are variants of Muon
constexpr bool is_muon(OptimizerKind kind) { return kind >= OptimizerKind::muon; }

// The format of AdamW's second moments next to first ones in `moments`. It is never fp8: AdamW divides by their roots.
constexpr StateFormat second_moment_format(StateFormat moments) {
    return moments == StateFormat::fp32 ? StateFormat::fp32 : StateFormat::bf16;
}

// The quantity that --clip bounds (--clip-kind): the norm of all gradients, the norm of each tensor (as in the model's
// table, where qkv is one tensor), or each gradient's magnitude.
enum class ClipKind { norm, tensor, value };

// Newton-Schulz steps: X <- a X + (b A + c A A) X with A = X X^T, after X was divided by `safety` times its norm.
struct NewtonSchulzStep {
    double a, b, c;
};
struct NewtonSchulzSteps {
    std::vector<NewtonSchulzStep> steps;
    double safety = 1;
};

// The sets of --muon-ns:
//   k   the quintic of Jordan et al. five times, https://kellerjordan.github.io/posts/muon: singular values near 1
//   p   Polar Express (Amsel et al., arXiv 2505.16932): five optimal steps for singular values from 1e-3 up
NewtonSchulzSteps newton_schulz_steps(char set);

// The size of Muon's update for an (A, B) matrix.
enum class MuonScale {
    spectral,  // sqrt(max(1, A / B)): the same spectral norm for all shapes
    rms,       // 0.2 sqrt(max(A, B)): AdamW's usual size per element, so AdamW's learning rates work (arXiv 2502.16982)
};
double muon_scale(MuonScale scale, int rows, int columns);

// Muon updates the matrices of the blocks. AdamW updates the rest, with rates that are multiples of the schedule's.
struct MuonConfig {
    MuonMomentum momentum = {};
    bool nesterov = true;
    char newton_schulz = 'k';
    MuonScale scale = MuonScale::rms;
    double weight_decay = 0.1;
    bool cautious_decay = false;
    double normuon_beta2 = 0.9;
    double embedding_rate = 1, head_rate = 1, vector_rate = 1;
};

// --average: off, or ema:DECAY. Returns the decay, 0 for off.
double average_decay_from_text(const std::string& text);

struct OptimizerConfig {
    OptimizerKind kind = OptimizerKind::adamw;
    LionConfig lion;
    SgdConfig sgd;
    MuonConfig muon;
    // Formats of the master weights (--master) and of AdamW's moments (--adam-moments). Other moments are FP32.
    StateFormat masters = StateFormat::fp32, adam_moments = StateFormat::fp32;
    StateFormat second_moments() const { return second_moment_format(adam_moments); }
    bool keeps_moments() const { return kind != OptimizerKind::sgd || sgd.momentum != 0; }
    ClipKind clip_kind = ClipKind::norm;
    // If above 0, an average of the weights is kept next to them in FP32. It begins as a copy of them; then it becomes
    // decay * average + (1 - decay) * weights after every step: get_ema_multi_avg_fn of torch.optim.swa_utils.
    double average_decay = 0;
    bool averages() const { return average_decay > 0; }
    uint64_t rounding_seed = 0;  // seeds stochastic rounding

    // For the elements of a unit from `first` on.
    StateRounding rounding(size_t unit, size_t first) const { return {mix64(rounding_seed) + unit, first}; }
};

}  // namespace llmc
