// Row kernels in FP64 (reference_rows.h).
// build: optimized
#include "llmc/check/reference_rows.h"

namespace llmc::reference {

RowStatistics row_statistics(const std::vector<double>& x, int N, int C) {
    RowStatistics s;
    for (int n = 0; n < N; n++) {
        const double* row = &x[static_cast<size_t>(n) * C];
        double mean = 0, variance = 0;
        for (int c = 0; c < C; c++) mean += row[c] / C;
        for (int c = 0; c < C; c++) variance += (row[c] - mean) * (row[c] - mean) / C;
        s.mean.push_back(mean);
        s.rstd.push_back(1.0 / std::sqrt(variance + 1e-5));
    }
    return s;
}

std::vector<double> normed_rows(const std::vector<double>& x, const RowStatistics& s, const std::vector<double>& weight,
                                const std::vector<double>& shift) {
    const size_t C = weight.size();
    std::vector<double> y(x.size());
    for (size_t n = 0; n < s.mean.size(); n++)
        for (size_t c = 0; c < C; c++) y[n * C + c] = (x[n * C + c] - s.mean[n]) * s.rstd[n] * weight[c] + shift[c];
    return y;
}

LayernormGradient layernorm_gradient(const std::vector<double>& x, const std::vector<double>& dout,
                                     const std::vector<double>& weight, const RowStatistics& s) {
    const size_t C = weight.size();
    LayernormGradient g{std::vector<double>(x.size()), std::vector<double>(C), std::vector<double>(C)};
    for (size_t n = 0; n < s.mean.size(); n++) {
        const size_t at = n * C;
        double dnorm_mean = 0, product_mean = 0;
        for (size_t c = 0; c < C; c++) {
            const double norm = (x[at + c] - s.mean[n]) * s.rstd[n], dnorm = dout[at + c] * weight[c];
            dnorm_mean += dnorm / static_cast<double>(C);
            product_mean += dnorm * norm / static_cast<double>(C);
            g.dweight[c] += dout[at + c] * norm;
            g.dshift[c] += dout[at + c];
        }
        for (size_t c = 0; c < C; c++) {
            const double norm = (x[at + c] - s.mean[n]) * s.rstd[n], dnorm = dout[at + c] * weight[c];
            g.dinp[at + c] = (dnorm - dnorm_mean - norm * product_mean) * s.rstd[n];
        }
    }
    return g;
}

Gelu::Gelu(double x) {
    const double k = std::sqrt(2.0 / 3.14159265358979323846), log_e = -2.0 * k * (x + 0.044715 * x * x * x);
    const double e = std::exp(log_e), gate = 1.0 / (1.0 + e), other = 1.0 / (1.0 + 1.0 / e);  // 1 - gate
    const double slope = 2.0 * k * (1.0 + 3.0 * 0.044715 * x * x), bend = x * gate * other * slope;
    value = x * gate;
    derivative = gate + bend;
    const double gate_error = (other > 0 ? other * (5 * std::fabs(log_e) + 5) : 0.0) + 6;
    value_bound = 1.0001 * kUnit * std::fabs(value) * (gate_error + 1) + kVanishing;
    derivative_bound = 1.0001 * kUnit *
                           (gate * gate_error * std::fabs(1.0 + x * slope * (other - gate)) + 8 * std::fabs(bend) +
                            std::fabs(derivative)) +
                       kVanishing;
}

// Caps logits in place; the derivative of each by what it was.
static std::vector<double> cap_logits(std::vector<double>& logits, double cap) {
    std::vector<double> slope(logits.size(), 1.0);
    for (size_t i = 0; i < logits.size() && cap > 0; i++) {
        const double tanh = std::tanh(logits[i] / cap), cosh = std::cosh(logits[i] / cap);
        logits[i] = cap * tanh;
        slope[i] = 1 / (cosh * cosh);
    }
    return slope;
}

CrossEntropy cross_entropy(std::vector<double> logits, const std::vector<int>& targets, int V, int padded_V,
                           double dloss, const LogitShaping& shaping) {
    const std::vector<double> slope = cap_logits(logits, static_cast<double>(shaping.soft_cap));
    CrossEntropy e{{}, std::vector<double>(logits.size())};
    for (size_t row = 0; row < targets.size(); row++) {
        const size_t at = row * static_cast<size_t>(padded_V);
        double max = -1e300, sum = 0;
        for (int v = 0; v < V; v++) max = std::max(max, logits[at + v]);
        for (int v = 0; v < V; v++) sum += std::exp(logits[at + v] - max);
        const int target = targets[row];
        const double log_z = max + std::log(sum), z_gradient = 2 * static_cast<double>(shaping.trained.z_loss) * log_z;
        const double smoothing = static_cast<double>(shaping.trained.label_smoothing);
        e.losses.push_back(target < 0 ? 0.0 : log_z - logits[at + target]);
        for (int v = 0; v < V && target >= 0; v++) {
            const double p = std::exp(logits[at + v] - max) / sum;
            const double wanted = (1 - smoothing) * (v == target) + smoothing / V;
            e.gradient[at + v] = (p * (1 + z_gradient) - wanted) * dloss * slope[at + v];
        }
    }
    return e;
}

EmbeddingGradient embedding_gradient(const std::vector<float>& dwte, const std::vector<float>& dwpe,
                                     const std::vector<int>& tokens, const std::vector<double>& dout, int T, int C,
                                     const std::vector<int>& documents) {
    EmbeddingGradient g{{dwte.begin(), dwte.end()}, {dwpe.begin(), dwpe.end()}};
    for (size_t n = 0; n < tokens.size(); n++)
        for (int c = 0; c < C; c++) {
            const double d = dout[n * C + c];
            g.dwte[static_cast<size_t>(tokens[n]) * C + c] += d;
            const size_t position =
                n % static_cast<size_t>(T) - static_cast<size_t>(documents.empty() ? 0 : documents[n]);
            g.dwpe[position * static_cast<size_t>(C) + static_cast<size_t>(c)] += d;
        }
    return g;
}

std::vector<double> column_sums(const std::vector<float>& x, int C) {
    std::vector<double> sums(static_cast<size_t>(C));
    for (size_t i = 0; i < x.size(); i++) sums[i % static_cast<size_t>(C)] += static_cast<double>(x[i]);
    return sums;
}

AdamW adamw(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& v,
            const std::vector<float>& grad, size_t decay_count, const AdamWConfig& config, const StepState& state) {
    const size_t n = master.size();
    AdamW after{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
    const double steps = static_cast<double>(state.applied), rate = state.learning_rate;
    for (size_t i = 0; i < n; i++) {
        const double g = static_cast<double>(grad[i]) * static_cast<double>(state.grad_scale);
        after.m[i] = config.beta1 * static_cast<double>(m[i]) + (1 - config.beta1) * g;
        after.v[i] = config.beta2 * static_cast<double>(v[i]) + (1 - config.beta2) * g * g;
        double p = static_cast<double>(master[i]);
        if (i < decay_count) p *= 1 - rate * config.weight_decay;
        const double m_hat = after.m[i] / (1 - std::pow(config.beta1, steps));
        const double v_hat = after.v[i] / (1 - std::pow(config.beta2, steps));
        after.master[i] = p - rate * m_hat / (std::sqrt(v_hat) + config.eps);
    }
    return after;
}

Updated lion(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& grad,
             size_t decay_count, const LionConfig& config, const StepState& state) {
    Updated after;
    for (size_t i = 0; i < master.size(); i++) {
        const double g = static_cast<double>(grad[i]) * static_cast<double>(state.grad_scale);
        const double before = static_cast<double>(m[i]), c = config.beta1 * before + (1 - config.beta1) * g;
        double p = static_cast<double>(master[i]);
        if (i < decay_count) p *= 1 - state.learning_rate * config.weight_decay;
        after.master.push_back(p - state.learning_rate * ((c > 0) - (c < 0)));
        after.m.push_back(config.beta2 * before + (1 - config.beta2) * g);
    }
    return after;
}

Updated sgd(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& grad,
            size_t decay_count, const SgdConfig& config, const StepState& state) {
    Updated after;
    for (size_t i = 0; i < master.size(); i++) {
        const double g = static_cast<double>(grad[i]) * static_cast<double>(state.grad_scale);
        const double sum = config.momentum * static_cast<double>(m[i]) + g;
        double p = static_cast<double>(master[i]);
        if (i < decay_count) p *= 1 - state.learning_rate * config.weight_decay;
        after.master.push_back(p - state.learning_rate * (config.nesterov ? g + config.momentum * sum : sum));
        after.m.push_back(sum);
    }
    return after;
}

}  // namespace llmc::reference
