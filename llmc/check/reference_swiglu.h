// SwiGLU in FP64, forward and backward, with how far a correct kernel may be from it. For the card check and for tests.
#pragma once
#include <vector>

namespace llmc::reference {

// inp (N, 2F): rows of F of gate, then F of up; dout (N, F).
//
// Bounds of FP32 arithmetic (activation.cuh), in units of u = 2^-24; GELU's in reference_rows.h say where its numbers
// come from.
//   e           exp(-gate): 2u |gate| from the exponent (a product with a rounded constant), and 5u
//   sigmoid     1 / (1 + e): an error of e weighs 1 - sigmoid; the sum errs by u, the division by 5u
//   out         silu and up: two products more
//   dup         the same with dout in up's place
//   dgate       dout up (s + gate s (1 - s)): the error of s times its derivative 1 + gate (1 - 2s); u of 1 - s and two
//               products, 3u of the second term; u of the sum, 2u of the last two products
// Results below 2^-126 may be flushed, and a division by more than 2^126 may give 0.
struct Swiglu {
    std::vector<double> out, dinp, out_bound, dinp_bound;
};
Swiglu swiglu(const std::vector<double>& inp, const std::vector<double>& dout, int F);

}  // namespace llmc::reference
