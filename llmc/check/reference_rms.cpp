// RMS norm in FP64 (reference_rms.h).
// build: optimized
#include "llmc/check/reference_rms.h"

#include <cmath>

namespace llmc::reference {

std::vector<double> rms_rstd(const std::vector<double>& x, int N, int C, double eps) {
    const size_t columns = static_cast<size_t>(C);
    std::vector<double> rstd;
    for (size_t n = 0; n < static_cast<size_t>(N); n++) {
        double mean = 0;
        for (size_t c = 0; c < columns; c++) mean += x[n * columns + c] * x[n * columns + c] / C;
        rstd.push_back(1.0 / std::sqrt(mean + eps));
    }
    return rstd;
}

static double weight_of(const std::vector<double>& weight, size_t c) { return weight.empty() ? 1.0 : weight[c]; }

std::vector<double> rms_rows(const std::vector<double>& x, const std::vector<double>& rstd,
                             const std::vector<double>& weight, int C) {
    std::vector<double> y(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const size_t columns = static_cast<size_t>(C);
        y[i] = x[i] * rstd[i / columns] * weight_of(weight, i % columns);
    }
    return y;
}

RmsGradient rms_gradient(const std::vector<double>& x, const std::vector<double>& dout, const std::vector<double>& rstd,
                         const std::vector<double>& weight, int C) {
    const size_t columns = static_cast<size_t>(C);
    RmsGradient g{std::vector<double>(x.size()), std::vector<double>(columns)};
    for (size_t n = 0; n < rstd.size(); n++) {
        const double *row = &x[n * columns], *d = &dout[n * columns];
        double mean = 0;
        for (size_t c = 0; c < columns; c++) {
            mean += d[c] * weight_of(weight, c) * row[c] * rstd[n] / C;
            g.dweight[c] += d[c] * row[c] * rstd[n];
        }
        for (size_t c = 0; c < columns; c++)
            g.dinp[n * columns + c] = rstd[n] * (d[c] * weight_of(weight, c) - row[c] * rstd[n] * mean);
    }
    return g;
}

}  // namespace llmc::reference
