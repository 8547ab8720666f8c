// A run of attention on the device with its buffers, for tests besides the specifications.
#pragma once
#include <doctest/doctest.h>

#include <vector>

#include "llmc/check/reference.h"
#include "llmc/kernels/attention.h"
#include "test/kernel_test.h"

namespace llmc::test::attention {

using reference::part_of_dqkv;
using Reference = reference::Attention;
using Shape = reference::AttentionShape;

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
    // The output that the backward pass uses.
    std::vector<double> output() const {
        std::vector<double> sum = to_doubles(out.download());
        if (sizeof(Real) == sizeof(float)) return sum;
        const std::vector<double> low = to_doubles(out_low.download());
        for (size_t i = 0; i < sum.size(); i++) sum[i] += low[i];
        return sum;
    }
};

// Every byte of a result, to compare runs with.
template <class T>
std::vector<uint8_t> bytes_of(const DeviceArray<T>& array) {
    const std::vector<T> values = array.download();
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return std::vector<uint8_t>(begin, begin + values.size() * sizeof(T));
}

}  // namespace llmc::test::attention
