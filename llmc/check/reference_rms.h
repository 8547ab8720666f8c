// RMS norm in FP64, forward and backward, for rows of any length: the residual stream's, and heads' (QK-norm). For the
// card check and for tests.
#pragma once
#include <vector>

namespace llmc::reference {

// 1 / sqrt(mean(x^2) + eps) of each of N rows of C.
std::vector<double> rms_rstd(const std::vector<double>& x, int N, int C, double eps);

// x * rstd * weight; an empty weight is 1.
std::vector<double> rms_rows(const std::vector<double>& x, const std::vector<double>& rstd,
                             const std::vector<double>& weight, int C);

struct RmsGradient {
    std::vector<double> dinp, dweight;
};
RmsGradient rms_gradient(const std::vector<double>& x, const std::vector<double>& dout, const std::vector<double>& rstd,
                         const std::vector<double>& weight, int C);

}  // namespace llmc::reference
