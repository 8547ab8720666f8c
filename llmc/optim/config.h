// The choice of optimizer (--optimizer), and the settings of optimizers other than AdamW.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "llmc/kernels/muon.h"
#include "llmc/kernels/update.h"

namespace llmc {

enum class OptimizerKind { adamw, lion, sgd, muon, normuon };
constexpr bool is_muon(OptimizerKind kind) { return kind == OptimizerKind::muon || kind == OptimizerKind::normuon; }

// The format of AdamW's moments (--adam-moments). bf16 rounds stochastically (update.h). Other moments are FP32.
enum class MomentFormat { fp32, bf16 };
constexpr size_t bytes_of(MomentFormat format) { return format == MomentFormat::bf16 ? 2 : 4; }

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
//   q   five quintics of increasing accuracy, as in NVIDIA's Emerging-Optimizers
//   s   the classical quintic twelve times, which converges to 1
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

struct OptimizerConfig {
    OptimizerKind kind = OptimizerKind::adamw;
    LionConfig lion;
    SgdConfig sgd;
    MuonConfig muon;
    MomentFormat adam_moments = MomentFormat::fp32;
    ClipKind clip_kind = ClipKind::norm;
    uint64_t rounding_seed = 0;  // seeds the stochastic rounding of BF16 moments
};

}  // namespace llmc
