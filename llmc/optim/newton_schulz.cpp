// Plans the buffers and products of a Newton-Schulz iteration, and runs it.
#include "llmc/optim/newton_schulz.h"

#include <algorithm>
#include <utility>

namespace llmc {

template <class Real>
NewtonSchulz<Real>::NewtonSchulz(NewtonSchulzSteps steps, std::vector<Matmul::LinearShape> shapes)
    : steps_(std::move(steps)), shapes_(std::move(shapes)) {}

template <class Real>
std::vector<Product> NewtonSchulz<Real>::products(int m, int n) {
    constexpr OperandType type = operand_type<Real>;
    return {{Product::forward, type, m, n, m, false, false},
            {Product::dgrad, type, m, m, m, false, false},
            {Product::dgrad, type, m, n, m, false, false}};
}

template <class Real>
void NewtonSchulz<Real>::plan(Arena& arena) {
    size_t whole = 0, square = 0;
    for (const Matmul::LinearShape& s : shapes_) {
        whole = std::max(whole, static_cast<size_t>(s.N) * static_cast<size_t>(s.C));
        square = std::max(square, static_cast<size_t>(s.N) * static_cast<size_t>(s.N));
    }
    for (Real** matrix : {&x_, &next_}) arena.plan(matrix, whole);
    for (Real** matrix : {&a_, &polynomial_}) arena.plan(matrix, square);
}

template <class Real>
void NewtonSchulz<Real>::reserve(Matmul& matmul) const {
    if constexpr (std::is_same_v<Real, float>) return;  // FP32 products need no reservation
    for (const Matmul::LinearShape& s : shapes_) matmul.reserve(s.N, s.C, s.OC, s.fp8);
}

template <class Real>
Real* NewtonSchulz<Real>::run(Matmul& matmul, int m, int n, stream_t stream) const {
    const std::vector<Product> product = products(m, n);
    Real *x = x_, *next = next_;
    const auto combined = [](Real* result, const Real* first, const Real* second, const Real* addend, double factor,
                             double addend_factor) {
        ProductTensors tensors{result, first, second};
        tensors.addend = addend;
        tensors.factor = static_cast<float>(factor), tensors.addend_factor = static_cast<float>(addend_factor);
        return tensors;
    };
    for (const NewtonSchulzStep& step : steps_.steps) {
        matmul.multiply(product[0], {a_, x, x}, stream);                                         // A = X X^T
        matmul.multiply(product[1], combined(polynomial_, a_, a_, a_, step.c, step.b), stream);  // B = bA + cAA
        matmul.multiply(product[2], combined(next, polynomial_, x, x, 1, step.a), stream);       // aX + BX
        std::swap(x, next);
    }
    return x;
}

template class NewtonSchulz<float>;
template class NewtonSchulz<bf16>;

}  // namespace llmc
