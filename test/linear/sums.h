// Exact sums of products and how far a computed one may be from them, and the operands of FP8 products.
#pragma once
#include <cmath>
#include <vector>

#include "llmc/linear/matmul.h"
#include "test/kernel_test.h"

namespace llmc::test {

// (rows, columns) dot products of `terms` terms each, in FP64, and the sums of the terms' magnitudes. If terms cancel,
// the error of a computed sum depends on their magnitudes, not on its own.
struct ExactSums {
    int terms;
    std::vector<double> values, magnitudes;

    // first (rows, inner) * second (columns, inner)^T * scale
    ExactSums(const std::vector<double>& first, const std::vector<double>& second, int inner, double scale = 1)
        : terms(inner) {
        const size_t n = static_cast<size_t>(inner);
        for (size_t r = 0; r < first.size(); r += n)
            for (size_t c = 0; c < second.size(); c += n) {
                double value = 0, magnitude = 0;
                for (size_t k = 0; k < n; k++) {
                    const double product = first[r + k] * second[c + k] * scale;
                    value += product;
                    magnitude += std::fabs(product);
                }
                values.push_back(value);
                magnitudes.push_back(magnitude);
            }
    }

    // The same with one bias a column.
    ExactSums plus(const std::vector<double>& bias) const {
        ExactSums result = *this;
        for (size_t i = 0; i < values.size(); i++) {
            result.values[i] += bias[i % bias.size()];
            result.magnitudes[i] += std::fabs(bias[i % bias.size()]);
        }
        return result;
    }
    // The same added onto itself.
    ExactSums twice() const {
        ExactSums result = *this;
        for (double& value : result.values) value *= 2;
        for (double& magnitude : result.magnitudes) magnitude *= 2;
        return result;
    }
};

// The largest |actual - exact| divided by the allowed error. Above 1 is wrong; NaN counts as infinite.
//
// In whatever order n products are summed, the result is within n u sum|a b| of the exact one (Higham, Accuracy and
// Stability of Numerical Algorithms, section 3.1), where u is the error of one addition. Four more operations are
// allowed: two scales, a bias, and the previous sum. Then the result is rounded to Real once. A second rounding would
// exceed the bound if the sum is exact to many more digits than Real has.
template <class Real>
double part_of_allowed(const std::vector<Real>& actual, const ExactSums& exact, double u) {
    if (actual.size() != exact.values.size()) return std::numeric_limits<double>::infinity();
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double sum_error = (exact.terms + 4) * u * exact.magnitudes[i];
        const double rounding =
            sizeof(Real) == 2 ? rounding_error<Real>() * (std::fabs(exact.values[i]) + sum_error) : 0;
        const double error = std::fabs(static_cast<double>(to_float(actual[i])) - exact.values[i]);
        const double part = error / (sum_error + rounding + 1e-37);  // all terms may be zero
        if (!(part <= worst)) worst = part == part ? part : std::numeric_limits<double>::infinity();
    }
    return worst;
}

// u for FP32 sums: a CPU rounds to nearest, a tensor core may truncate.
inline double fp32_unit() { return device_info().is_host ? 0x1p-24 : 0x1p-23; }
// u for sums of FP8 products: Hopper's tensor cores keep 13 bits after the point of the largest term (DeepSeek-V3,
// arXiv 2412.19437).
inline double fp8_unit() { return device_info().is_host ? 0x1p-24 : 0x1p-13; }

// The most that part_of_allowed() may be for a product that adds to another matrix: cuBLASLt may round the product to
// BF16 before it adds.
inline double most_of_added() { return device_info().is_host ? 1 : 2; }

// Transposes (rows, columns) to (columns, rows).
template <class T>
std::vector<T> transposed(const std::vector<T>& values, int rows, int columns) {
    std::vector<T> result(values.size());
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            result[static_cast<size_t>(c) * rows + r] = values[static_cast<size_t>(r) * columns + c];
    return result;
}

// The scale of a tensor as casts leave it on the device.
struct TensorScale {
    float value;
    DeviceArray<Fp8State> state{1};

    explicit TensorScale(float scale_inv) { set(scale_inv); }
    void set(float scale_inv) {
        value = scale_inv;
        Fp8State on_device = {};
        on_device.scale_inv = scale_inv;
        on_device.scale = NAN;  // products must not use it
        state.upload({on_device});
    }
    const float* inv() const { return &state.get()->scale_inv; }
};

// The codes of a linear layer's operands in both layouts, and their scales.
template <class F8>  // the type of dout
struct Fp8Operands {
    int N, C, OC;
    std::vector<e4m3> x, weight, x_transposed, weight_transposed;
    std::vector<F8> dout, dout_transposed;
    std::vector<bf16> bias;
    TensorScale x_scale{0.0127f}, weight_scale{0.0031f}, dout_scale{3.3e-7f};

    Fp8Operands(int N_, int C_, int OC_, const std::vector<e4m3>& x_, const std::vector<e4m3>& weight_,
                const std::vector<F8>& dout_)
        : N(N_),
          C(C_),
          OC(OC_),
          x(x_),
          weight(weight_),
          x_transposed(transposed(x, N, C)),
          weight_transposed(transposed(weight, OC, C)),
          dout(dout_),
          dout_transposed(transposed(dout, N, OC)),
          bias(random_normal<bf16>(OC, 2.0f, 4)) {}

    struct Results {
        std::vector<bf16> out, out_without_bias, out_added, dinp;  // out_added: with out_without_bias added
        std::vector<float> dweight, dweight_twice;                 // the second one is added to the first
    };
    Results multiply(Matmul& matmul) const {
        const stream_t stream = test_stream();
        DeviceArray<e4m3> d_x(x), d_weight(weight), d_x_transposed(x_transposed),
            d_weight_transposed(weight_transposed);
        DeviceArray<F8> d_dout(dout), d_dout_transposed(dout_transposed);
        DeviceArray<bf16> d_bias(bias), out(dout.size()), out_without_bias(dout.size()), out_added(dout.size()),
            dinp(x.size());
        DeviceArray<float> dweight(weight.size());
        matmul.reserve({N, C, OC});
        const auto forward = [&](bf16* to, const bf16* with_bias, const bf16* addend = nullptr) {
            matmul.forward_fp8(to, d_x, x_scale.inv(), d_weight, weight_scale.inv(), {with_bias, addend}, N, C, OC,
                               stream);
        };
        const auto wgrad = [&](bool accumulate) {
            matmul.wgrad_fp8<F8>(dweight, d_dout_transposed, dout_scale.inv(), d_x_transposed, x_scale.inv(), N, C, OC,
                                 accumulate, stream);
            return dweight.download();
        };
        forward(out, d_bias);
        forward(out_without_bias, nullptr);
        forward(out_added, d_bias, out_without_bias);
        matmul.dgrad_fp8<F8>(dinp, d_dout, dout_scale.inv(), d_weight_transposed, weight_scale.inv(), N, C, OC, stream);
        const std::vector<float> first = wgrad(false);
        return {out.download(), out_without_bias.download(), out_added.download(), dinp.download(), first, wgrad(true)};
    }
};

}  // namespace llmc::test
