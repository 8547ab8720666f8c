// The coefficients of Newton-Schulz iterations, Muon's scale per shape, and the decay of --average.
#include "llmc/optim/config.h"

#include <algorithm>
#include <cmath>

namespace llmc {

NewtonSchulzSteps newton_schulz_steps(MuonSteps set) {
    switch (set) {
        case MuonSteps::k:
            return {std::vector<NewtonSchulzStep>(5, {3.4445, -4.7750, 2.0315})};
        case MuonSteps::p:  // the first coefficients tolerate a norm that is a little too small
            return {{{8.156554524902461, -22.48329292557795, 15.878769915207462},
                     {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                     {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                     {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                     {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}},
                    1.02};
    }
    return {};
}

double muon_scale(MuonScale scale, int rows, int columns) {
    if (scale == MuonScale::rms) return 0.2 * std::sqrt(std::max(rows, columns));
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / columns));
}

double average_decay_from_text(const std::string& text) {
    if (text == "off") return 0;
    const double decay = text.starts_with("ema:") ? number_in<double>(text.substr(4)).value_or(0) : 0;
    if (decay > 0 && decay < 1) return decay;
    if (text.starts_with("last:"))
        refuse(
            "--average {}: means over the last steps have been removed; use ema:DECAY, whose average covers about "
            "1 / (1 - DECAY) steps: ema:0.999 about 1000",
            text);
    refuse("--average {}: expected off, or ema:DECAY with a decay between 0 and 1, as in ema:0.999", text);
}

OptimizerConfig OptimizerConfig::complete(double lr) const {
    const bool muon = is_muon(kind);
    OptimizerConfig c = *this;
    if (beta2 < 0) c.beta2 = kind == OptimizerKind::lion ? 0.99 : 0.95;
    if (momentum < 0) c.momentum = muon ? 0.95 : 0.9;
    if (nesterov == Nesterov::by_optimizer) c.nesterov = muon ? Nesterov::on : Nesterov::off;
    if (!muon) return c;
    if (adamw_lr < 0) c.adamw_lr = lr;
    for (double* rate : {&c.embedding_lr, &c.head_lr, &c.vector_lr})
        if (*rate < 0) *rate = c.adamw_lr;
    if (adamw_weight_decay < 0) c.adamw_weight_decay = weight_decay;
    return c;
}

AdamWConfig OptimizerConfig::adamw() const {
    const OptimizerConfig c = complete(1);
    if (is_muon(kind)) return {beta1, c.beta2, eps, c.adamw_weight_decay};
    return {beta1, c.beta2, eps, weight_decay, cautious_decay, uses_nesterov()};
}
LionConfig OptimizerConfig::lion() const { return {beta1, complete(1).beta2, weight_decay}; }
SgdConfig OptimizerConfig::sgd() const { return {complete(1).momentum, uses_nesterov(), weight_decay}; }
MuonMomentum OptimizerConfig::muon_momentum() const { return {complete(1).momentum, muon_momentum_warmup}; }
bool OptimizerConfig::uses_nesterov() const { return complete(1).nesterov == Nesterov::on; }
GroupRates OptimizerConfig::rates(double lr) const {
    const OptimizerConfig c = complete(lr);
    return {{c.embedding_lr / lr, c.head_lr / lr, c.vector_lr / lr}};
}

}  // namespace llmc
