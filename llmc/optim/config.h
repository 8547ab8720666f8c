// Everything that decides the updates: the optimizer (--optimizer) and its settings, schedule, clipping, loss scale.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/text.h"
#include "llmc/kernels/muon.h"
#include "llmc/kernels/update.h"
#include "llmc/optim/prepare_step.h"
#include "llmc/optim/schedule.cuh"

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
enum class MuonSteps { k, p };
template <>
inline constexpr WordTable<MuonSteps> kWords<MuonSteps> = {{"k", MuonSteps::k}, {"p", MuonSteps::p}};
NewtonSchulzSteps newton_schulz_steps(MuonSteps set);

// The size of Muon's update for an (A, B) matrix.
enum class MuonScale {
    spectral,  // sqrt(max(1, A / B)): the same spectral norm for all shapes
    rms,       // 0.2 sqrt(max(A, B)): AdamW's usual size per element, so AdamW's learning rates work (arXiv 2502.16982)
};
double muon_scale(MuonScale scale, int rows, int columns);

enum class Nesterov { by_optimizer, on, off };
template <>
inline constexpr WordTable<Nesterov> kWords<Nesterov> = {{"on", Nesterov::on}, {"off", Nesterov::off}};

// --average: off, or ema:DECAY. Returns the decay, 0 for off.
double average_decay_from_text(const std::string& text);

// Muon updates the matrices of the blocks and leaves the rest to AdamW.
struct OptimizerConfig {
    OptimizerKind kind = OptimizerKind::adamw;
    double weight_decay = 0.1;  // of matrices and embeddings
    bool cautious_decay = false;
    double beta1 = 0.9, eps = 1e-8;
    // Not given if negative or by_optimizer; complete() then puts the value of this kind of optimizer there.
    double beta2 = -1, momentum = -1;
    Nesterov nesterov = Nesterov::by_optimizer;

    MuonSteps muon_ns = MuonSteps::k;
    MuonScale muon_scale = MuonScale::rms;
    int64_t muon_momentum_warmup = 0;
    double normuon_beta2 = 0.9;
    // The parameters that Muon leaves to AdamW have peak rates of their own. Embeddings and the output head have their
    // own weight decay. Not given if negative; complete() then puts a value there.
    double adamw_lr = -1, embedding_lr = -1, head_lr = -1, vector_lr = -1;
    double adamw_weight_decay = -1;

    // Returns the settings with a value for each that was not given. `lr`: the schedule's peak.
    OptimizerConfig complete(double lr) const;

    // The settings in the form in which the kernels take them.
    AdamWConfig adamw() const;  // with Muon, for what Muon leaves to it
    LionConfig lion() const;
    SgdConfig sgd() const;
    MuonMomentum muon_momentum() const;
    bool uses_nesterov() const;
    GroupRates rates(double lr) const;  // of embeddings, output head and vectors, as multiples of the schedule's

    // Formats of the master weights (--master) and of AdamW's moments (--adam-moments). Other moments are FP32.
    StateFormat masters = StateFormat::fp32, adam_moments = StateFormat::fp32;
    StateFormat second_moments() const { return second_moment_format(adam_moments); }
    bool keeps_moments() const { return kind != OptimizerKind::sgd || momentum != 0; }
    bool keeps_second_moments() const { return kind == OptimizerKind::adamw || is_muon(kind); }
    ClipKind clip_kind = ClipKind::norm;
    // If above 0, an average of the weights is kept next to them in FP32. It begins as a copy of them; then it becomes
    // decay * average + (1 - decay) * weights after every step: get_ema_multi_avg_fn of torch.optim.swa_utils.
    double average_decay = 0;
    bool averages() const { return average_decay > 0; }
    uint64_t rounding_seed = 0;  // seeds stochastic rounding

    // For the elements of a unit from `first` on.
    StateRounding rounding(size_t unit, size_t first) const { return {mix64(rounding_seed) + unit, first}; }
};

struct OptimizerSetup {
    ScheduleConfig schedule;
    OptimizerConfig optimizer = {};
    double clip = 0;  // bound of the gradient (ClipKind); 0: no clipping
    LossScaleConfig loss_scale = {};
    bool skip_spikes = false;  // skip steps whose loss or norm is far above those of past steps
};

}  // namespace llmc
