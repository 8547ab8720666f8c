// Loops of the activations. Those that also sum a bias gradient are in sums.cpp.
#include "llmc/kernels/host/vectors.h"

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {

// Calls each(first, n) for every vector of elements. The last one may have fewer than kLanes.
template <class Each>
static void for_each_vector(size_t n, const Each& each) {
#pragma omp parallel for schedule(static) if (n > 16384)
    for (size_t i = 0; i < n; i += kLanes) each(i, static_cast<int>(std::min<size_t>(kLanes, n - i)));
}
// Does the same for every row of (N, F), with each(row, column, n).
template <class Each>
static void for_each_vector_of_rows(int N, int F, const Each& each) {
#pragma omp parallel for schedule(static) if (static_cast <size_t>(N) * F > 16384)
    for (int row = 0; row < N; row++)
        for (int c = 0; c < F; c += kLanes)
            each(static_cast<size_t>(row), static_cast<size_t>(c), std::min(kLanes, F - c));
}

template <class Formula, class Real>
void activate(const Grid&, Real* out, const Real* inp, size_t n) {
    for_each_vector(
        n, [=](size_t i, int left) { store_first(out + i, value_of(Formula(), load_first(inp + i, left)), left); });
}

template <class Formula, class Real>
void activate_backward(const Grid&, Real* dinp, const Real* dout, const Real* inp, size_t n) {
    for_each_vector(n, [=](size_t i, int left) {
        const Floats d = load_first(dout + i, left) * derivative_of(Formula(), load_first(inp + i, left));
        store_first(dinp + i, d, left);
    });
}

template <class Real>
void swiglu_forward(const Grid&, Real* out, const Real* inp, int N, int F) {
    for_each_vector_of_rows(N, F, [=](size_t row, size_t c, int left) {
        const Real* gate = inp + row * 2 * F + c;
        store_first(out + row * F + c, swiglu_of(load_first(gate, left), load_first(gate + F, left)), left);
    });
}

template <class Real>
void swiglu_backward(const Grid&, Real* dinp, const Real* dout, const Real* inp, int N, int F) {
    for_each_vector_of_rows(N, F, [=](size_t row, size_t c, int left) {
        const size_t at = row * 2 * F + c;
        const Floats gate = load_first(inp + at, left), up = load_first(inp + at + F, left);
        const Floats d = load_first(dout + row * F + c, left);
        store_first(dinp + at, swiglu_gate_gradient(d, gate, up), left);
        store_first(dinp + at + F, swiglu_up_gradient(d, gate), left);
    });
}

#define LLMC_INSTANTIATE_ALL(Real)                    \
    LLMC_INSTANTIATE(activate<Gelu, Real>);           \
    LLMC_INSTANTIATE(activate<Relu2, Real>);          \
    LLMC_INSTANTIATE(activate_backward<Relu2, Real>); \
    LLMC_INSTANTIATE(swiglu_forward<Real>);           \
    LLMC_INSTANTIATE(swiglu_backward<Real>);
LLMC_INSTANTIATE_ALL(float)
LLMC_INSTANTIATE_ALL(bf16)
#undef LLMC_INSTANTIATE_ALL

}  // namespace llmc::host
