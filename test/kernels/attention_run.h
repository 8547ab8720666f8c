// What the tests of attention share: a run on the device with its buffers, and its results against a double-precision
// reference with error bounds that follow from the arithmetic (reference_attention.h).
#pragma once
#include <doctest/doctest.h>

#include <vector>

#include "llmc/check/reference_attention.h"
#include "llmc/kernels/attention.h"
#include "test/kernel_test.h"

namespace llmc::test::attention {

using reference::part_of_dqkv;
using Reference = reference::Attention;
using Shape = reference::AttentionShape;

// Largest error in units of its bound; infinite if anything is NaN. `floor` is for results that are zero by
// cancellation.
inline double worst_against_bound(const std::vector<double>& actual, const std::vector<double>& expected,
                                  const std::vector<double>& bound, double floor) {
    REQUIRE(actual.size() == expected.size());
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double ratio = std::fabs(actual[i] - expected[i]) / (bound[i] + floor);
        if (!(ratio <= worst)) worst = ratio == ratio ? ratio : std::numeric_limits<double>::infinity();
    }
    return worst;
}

inline double norm_error(const std::vector<double>& actual, const std::vector<double>& expected) {
    std::vector<float> rounded(actual.begin(), actual.end());
    return test::relative_norm_error(rounded, expected);
}

template <class Real>
struct Run {
    Shape shape;
    DeviceArray<Real> qkv, dout, out, out_low, dqkv;
    DeviceArray<float> lse, delta;
    DeviceArray<int> documents;
    Run(const Shape& s, const std::vector<Real>& qkv_values, const std::vector<Real>& dout_values)
        : shape(s),
          qkv(qkv_values),
          dout(dout_values),
          out(s.elements()),
          out_low(s.elements()),
          dqkv(s.qkv_elements()),
          lse(s.rows()),
          delta(s.rows()),
          documents(s.documents.empty() ? std::vector<int>(1) : s.documents) {}

    const int* documents_or_none() { return shape.documents.empty() ? nullptr : documents.get(); }

    void forward() {
        attention_forward<Real>(out, out_low, lse, qkv, shape.B, shape.T, shape.heads(), test_stream(),
                                documents_or_none());
    }
    void backward() {
        attention_backward<Real>(dqkv, delta, dout, qkv, out, out_low, lse, shape.B, shape.T, shape.heads(),
                                 test_stream(), documents_or_none());
    }
    // What the backward takes the output to be.
    std::vector<double> output() const {
        std::vector<double> sum = to_doubles(out.download());
        if (sizeof(Real) == sizeof(float)) return sum;
        const std::vector<double> low = to_doubles(out_low.download());
        for (size_t i = 0; i < sum.size(); i++) sum[i] += low[i];
        return sum;
    }
};

template <class Real>
void check_against_reference(const Shape& shape, float deviation, uint32_t seed) {
    INFO(shape.text(), " deviation ", deviation);
    constexpr bool narrow = sizeof(Real) == 2;
    const double u = reference::attention_rounding(narrow), slack = reference::attention_slack(narrow);
    const std::vector<Real> qkv = random_normal<Real>(shape.qkv_elements(), deviation, seed);
    const std::vector<Real> dout = random_normal<Real>(shape.elements(), 1.0f, seed + 1);
    const Reference expected = reference::attention(shape, to_doubles(qkv), to_doubles(dout), u, slack);
    Run<Real> run(shape, qkv, dout);
    run.forward();
    run.backward();

    const std::vector<double> out = to_doubles(run.out.download()), dqkv = to_doubles(run.dqkv.download());
    const double floor = reference::kAttentionFloor;
    CHECK(worst_against_bound(out, expected.out, expected.out_bound, floor) <= 1);
    CHECK(worst_against_bound(run.output(), expected.out, expected.out_sum_bound, floor) <= 1);
    CHECK(test::max_relative_error(run.lse.download(), expected.lse, 1.0) < reference::kAttentionLseError);
    CHECK(worst_against_bound(to_doubles(run.delta.download()), expected.delta, expected.delta_bound, floor) <= 1);
    CHECK(worst_against_bound(dqkv, expected.dqkv, expected.dqkv_bound, floor) <= 1);

    const reference::AttentionNorms norms = reference::attention_norms(u);
    CHECK(norm_error(run.output(), expected.out) < norms.out_sum);
    CHECK(norm_error(out, expected.out) < norms.out);
    CHECK(norm_error(part_of_dqkv(dqkv, shape, 2), part_of_dqkv(expected.dqkv, shape, 2)) < norms.dv);
    if (shape.T > 1) {  // a single key's dS is zero
        CHECK(norm_error(part_of_dqkv(dqkv, shape, 0), part_of_dqkv(expected.dqkv, shape, 0)) < norms.dq_dk);
        CHECK(norm_error(part_of_dqkv(dqkv, shape, 1), part_of_dqkv(expected.dqkv, shape, 1)) < norms.dq_dk);
    }
}

// Every byte of a result, to compare runs with.
template <class T>
std::vector<uint8_t> bytes_of(const DeviceArray<T>& array) {
    const std::vector<T> values = array.download();
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return std::vector<uint8_t>(begin, begin + values.size() * sizeof(T));
}

}  // namespace llmc::test::attention
