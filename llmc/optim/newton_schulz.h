// Newton-Schulz iteration: a matrix with the same singular vectors and singular values near 1, by matrix products
// alone.
#pragma once
#include <set>
#include <vector>

#include "llmc/linear/matmul.h"
#include "llmc/optim/config.h"
#include "llmc/shard/arena.h"

namespace llmc {

// For matrices (m, n) with m <= n of some largest size, one at a time, on the stream of `matmul`. Real = bf16: products
// of BF16 operands, summed in FP32 and rounded once with what is added to them; float: all in FP32.
template <class Real>
class NewtonSchulz {
public:
    NewtonSchulz(NewtonSchulzSteps steps, std::vector<Matmul::LinearShape> shapes);

    // Shapes (m, n), as Matmul's planning takes them, and the products that a matrix of such a shape takes.
    static Matmul::LinearShape shape(int m, int n) { return {m, n, m, false}; }
    static std::vector<Product> products(int m, int n);
    void plan(Arena& arena);
    void reserve(Matmul& matmul) const;

    // Where the matrix is to be put, divided by safety() times its norm. run() returns where the result is, until the
    // next.
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
