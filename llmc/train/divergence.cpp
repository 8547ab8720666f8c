// Divergences of rows of logits, on the host, and their sums over sequences. See divergence.h.
#include "llmc/train/divergence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/comm/agreement.h"
#include "llmc/train/trainer.h"

namespace llmc {

// KL(softmax(x) || softmax(y)), a small difference of large sums, so they are in double. Equal logits give exactly 0.
template <class Real>
static double divergence(const Real* x, const Real* y, int V, double cap) {
    const auto logit = [&](Real value) {
        const double number = static_cast<double>(to_float(value));
        return cap > 0 ? cap * std::tanh(number / cap) : number;
    };
    double x_max = logit(x[0]), y_max = logit(y[0]), x_sum = 0, y_sum = 0, difference = 0;
    for (int c = 1; c < V; c++) {
        x_max = std::max(x_max, logit(x[c]));
        y_max = std::max(y_max, logit(y[c]));
    }
    for (int c = 0; c < V; c++) {
        const double a = logit(x[c]), b = logit(y[c]), p = std::exp(a - x_max);
        x_sum += p;
        y_sum += std::exp(b - y_max);
        difference += p * (a - b);
    }
    return difference / x_sum - ((x_max - y_max) + (std::log(x_sum) - std::log(y_sum)));
}

template <class Real>
void Divergence::add(Trainer<Real>& model, Trainer<Real>& reference, const int* tokens, const int* targets) {
    const std::vector<float> losses = model.token_losses(), expected = reference.token_losses(tokens, targets);
    const ModelConfig& shape = model.model().config();
    const int B = model.config().batch, T = model.config().seq, Vp = shape.padded_vocab();
    std::vector<double> divergences(losses.size());
    for (int row = 0, rows = 0; row < B * T; row += rows) {
        rows = std::min(model.model().head_rows(), B * T - row);
        const std::vector<Real> x = reference.model().evaluated_logits(row, rows, reference.stream()),
                                y = model.model().evaluated_logits(row, rows, model.stream());
#pragma omp parallel for
        for (int r = 0; r < rows; r++) {
            const size_t begin = static_cast<size_t>(r) * Vp;
            divergences[static_cast<size_t>(row + r)] = divergence(&x[begin], &y[begin], shape.vocab, shape.logit_cap);
        }
    }
    for (int b = 0; b < B; b++) {
        double loss = 0, difference = 0, kl = 0, count = 0;
        for (size_t i = static_cast<size_t>(b) * T; i < static_cast<size_t>(b + 1) * T; i++) {
            if (targets[i] < 0) continue;
            loss += static_cast<double>(expected[i]);
            difference += static_cast<double>(losses[i]) - static_cast<double>(expected[i]);
            kl += divergences[i];
            count++;
        }
        if (count == 0) continue;
        const double terms[] = {1,          loss / count,           difference / count, std::pow(difference / count, 2),
                                kl / count, std::pow(kl / count, 2)};
        for (size_t i = 0; i < sums_.size(); i++) sums_[i] += terms[i];
    }
}
template void Divergence::add(Trainer<float>&, Trainer<float>&, const int*, const int*);
template void Divergence::add(Trainer<bf16>&, Trainer<bf16>&, const int*, const int*);

DivergenceResult Divergence::result(const Comm& comm) const {
    std::vector<double> sums = sum_over_ranks(comm, std::vector<double>(sums_.begin(), sums_.end()));
    const double n = sums[0];
    const auto error = [&](size_t i) {
        return std::sqrt(std::max(sums[i + 1] / n - std::pow(sums[i] / n, 2), 0.0) / (n - 1));
    };
    return {sums[1] / n, sums[2] / n, error(2), sums[4] / n, error(4)};
}

}  // namespace llmc
