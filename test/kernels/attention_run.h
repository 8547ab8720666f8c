// A run of attention on the device with its buffers, for tests besides the specifications.
#pragma once
#include <doctest/doctest.h>

#include <vector>

#include "llmc/kernels/attention.h"
#include "test/kernel_test.h"
#include "test/kernels/specifications/reference.h"

namespace llmc::test::attention {

using Shape = reference::AttentionShape;

template <class Real>
struct Run {
    Shape shape;
    DeviceArray<Real> qkv, dout, out, out_low, dqkv;
    DeviceArray<float> lse, delta;
    DeviceArray<int> documents;
    DeviceArray<unsigned> tickets;
    Run(const Shape& s, const std::vector<Real>& qkv_values, const std::vector<Real>& dout_values)
        : shape(s),
          qkv(qkv_values),
          dout(dout_values),
          out(s.elements()),
          out_low(s.elements()),
          dqkv(s.qkv_elements()),
          lse(s.rows()),
          delta(s.rows()),
          documents(s.documents.empty() ? std::vector<int>(1) : s.documents),
          tickets(std::vector<unsigned>(1)) {}

    // Runs both passes on inputs of these seeds.
    explicit Run(const Shape& s, uint32_t seed = 91, float deviation = 1.0f, float mean = 0.0f)
        : Run(s, random_normal<Real>(s.qkv_elements(), 1.0f, seed),
              random_normal<Real>(s.elements(), deviation, seed + 1, mean)) {
        both();
    }

    const int* documents_or_none() { return shape.documents.empty() ? nullptr : documents.get(); }

    void forward() {
        attention_forward<Real>(out, out_low, lse, qkv, shape.B, shape.T, shape.heads(), tickets, test_stream(),
                                documents_or_none());
    }
    void backward() {
        attention_backward<Real>(dqkv, delta, dout, qkv, out, out_low, lse, shape.B, shape.T, shape.heads(), tickets,
                                 test_stream(), documents_or_none());
    }
    void both() {
        forward();
        backward();
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

template <class Real>
void check_same_bits(const Run<Real>& a, const Run<Real>& b) {
    CHECK(same_bits(a.out.download(), b.out.download()));
    CHECK(same_bits(a.lse.download(), b.lse.download()));
    CHECK(same_bits(a.delta.download(), b.delta.download()));
    CHECK(same_bits(a.dqkv.download(), b.dqkv.download()));
    if (sizeof(Real) == 2) CHECK(same_bits(a.out_low.download(), b.out_low.download()));
}

}  // namespace llmc::test::attention
