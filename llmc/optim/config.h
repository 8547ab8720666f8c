// Which optimizer updates the weights (--optimizer), and the numbers of those beside AdamW.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/kernels/lion.h"
#include "llmc/kernels/muon.h"
#include "llmc/kernels/sgd.h"

namespace llmc {

enum class OptimizerKind { adamw, lion, sgd, muon, normuon };
constexpr bool is_muon(OptimizerKind kind) { return kind == OptimizerKind::muon || kind == OptimizerKind::normuon; }

// What AdamW keeps its moments in (--adam-moments); bf16 is rounded stochastically (adamw.h). Other moments are FP32.
enum class MomentFormat { fp32, bf16 };
constexpr size_t bytes_of(MomentFormat format) { return format == MomentFormat::bf16 ? 2 : 4; }

// What --clip bounds (--clip-kind): the norm of all gradients, each tensor's norm (a tensor of the table: qkv is one),
// or each gradient's magnitude.
enum class ClipKind { norm, tensor, value };

// Newton-Schulz steps: X <- a X + (b A + c A A) X with A = X X^T, after X has been divided by `safety` times its norm.
struct NewtonSchulzStep {
    double a, b, c;
};
struct NewtonSchulzSteps {
    std::vector<NewtonSchulzStep> steps;
    double safety = 1;
};

// The sets of --muon-ns:
//   k   five times the quintic of Jordan et al., https://kellerjordan.github.io/posts/muon: singular values to about 1
//   p   Polar Express (Amsel et al., arXiv 2505.16932), five optimal steps for values from 1e-3 on
//   q   five quintics of growing accuracy, as NVIDIA's Emerging-Optimizers has them
//   s   twelve times the classical quintic, which converges to 1
NewtonSchulzSteps newton_schulz_steps(char set);

// How large an update of an (A, B) matrix is made.
enum class MuonScale {
    spectral,  // sqrt(max(1, A / B)): of one spectral norm for all shapes
    rms,       // 0.2 sqrt(max(A, B)): of AdamW's usual size an element, so that its learning rates serve (arXiv
               // 2502.16982)
};
double muon_scale(MuonScale scale, int rows, int columns);

// Muon for matrices of the blocks; the rest is AdamW's, with rates of its own, as multiples of the schedule's.
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
    uint64_t rounding_seed = 0;  // of the bits by which BF16 moments are rounded
};

}  // namespace llmc
