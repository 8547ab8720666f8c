// Newton-Schulz iteration: computes a matrix with the same singular vectors and singular values near 1, using only
// matrix products.
#pragma once
#include <set>
#include <vector>

#include "llmc/linear/matmul.h"
#include "llmc/optim/config.h"
#include "llmc/shard/arena.h"

namespace llmc {

// Handles matrices (m, n) with m <= n up to a largest size, one at a time, on the stream of `matmul`. Real = bf16:
// products of BF16 operands, summed in FP32 and rounded once together with the addend. Real = float: everything in
// FP32.
template <class Real>
class NewtonSchulz {
public:
    NewtonSchulz(NewtonSchulzSteps steps, std::vector<Matmul::LinearShape> shapes);

    // Shapes (m, n) in the form that Matmul's planning takes, and the products needed for a matrix of that shape.
    static Matmul::LinearShape shape(int m, int n) { return {m, n, m, false}; }
    static std::vector<Product> products(int m, int n);
    void plan(Arena& arena);
    void reserve(Matmul& matmul) const;

    // The buffer for the input matrix, which must be divided by safety() times its norm. run() returns the address of
    // the result, valid until the next run().
    Real* input() const { return x_; }
    double safety() const { return steps_.safety; }
    Real* run(Matmul& matmul, int m, int n, stream_t stream) const;

private:
    const NewtonSchulzSteps steps_;
    const std::vector<Matmul::LinearShape> shapes_;
    Real *x_ = nullptr, *next_ = nullptr;        // (m, n)
    Real *a_ = nullptr, *polynomial_ = nullptr;  // (m, m)
};

}  // namespace llmc
