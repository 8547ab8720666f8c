// Loops of the embedding. A task has a token forward, and a distinct token or a position backward.
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {

constexpr int kLongSegment = 64, kWarps = 8;  // as in the kernel: more frequent tokens have eight partial sums

// to[c] += the sum of dout's rows row_of(begin) to row_of(end - 1).
template <class Real, class RowOf>
static void add_rows(float* to, const Real* dout, int C, int begin, int end, const RowOf& row_of) {
    const int parts = end - begin > kLongSegment ? kWarps : 1;
    for (int c = 0; c < C; c += kLanes) {
        Floats total{};
        for (int part = 0; part < parts; part++) {
            Floats sum{};
            for (int j = begin + part; j < end; j += parts)
                sum += load_first(dout + static_cast<size_t>(row_of(j)) * C + c, C - c);
            total = parts > 1 ? total + sum : sum;
        }
        store_first(to + c, load_first(to + c, C - c) + total, C - c);
    }
}

template <class Real>
void embedding_forward(const Grid&, Real* out, const int* tokens, const Real* wte, const Real* wpe, int rows, int T,
                       int C, int V) {
#pragma omp parallel for schedule(static) if (static_cast <size_t>(rows) * C > 16384)
    for (int row = 0; row < rows; row++) {
        const int token = tokens[row];
        const bool known = token >= 0 && token < V;
        const Real* from = wte + static_cast<size_t>(known ? token : 0) * C;
        const Real* place = wpe ? wpe + static_cast<size_t>(row % T) * C : nullptr;
        for (int c = 0; c < C; c += kLanes) {
            Floats x = load_first(from + c, C - c) + (place ? load_first(place + c, C - c) : Floats{});
            if (!known) x = splat(float_from_bits(kFloatMagnitudeMask));
            store_first(out + static_cast<size_t>(row) * C + c, x, C - c);
        }
    }
}

template <class Real>
void embedding_backward_tokens(const Grid&, float* dwte, const int* sorted, const Real* dout, int n, int C, int V) {
    const int distinct = sorted[0], *ids = sorted + 1, *starts = ids + n, *rows = starts + n + 1;
#pragma omp parallel for schedule(dynamic, 8) if (static_cast <size_t>(n) * C > 16384)
    for (int i = 0; i < distinct; i++)
        if (ids[i] >= 0 && ids[i] < V)
            add_rows(dwte + static_cast<size_t>(ids[i]) * C, dout, C, starts[i], starts[i + 1],
                     [=](int j) { return rows[j]; });
}

template <class Real>
void embedding_backward_positions(const Grid&, float* dwpe, const Real* dout, int B, int T, int C) {
#pragma omp parallel for schedule(static) if (static_cast <size_t>(B) * T * C > 16384)
    for (int t = 0; t < T; t++) {
        float* const to = dwpe + static_cast<size_t>(t) * C;
        for (int c = 0; c < C; c += kLanes) {
            Floats sum{};
            for (int b = 0; b < B; b++) sum += load_first(dout + (static_cast<size_t>(b) * T + t) * C + c, C - c);
            store_first(to + c, load_first(to + c, C - c) + sum, C - c);
        }
    }
}

LLMC_INSTANTIATE_BOTH(embedding_forward, float, bf16);
LLMC_INSTANTIATE_BOTH(embedding_backward_tokens, float, bf16);
LLMC_INSTANTIATE_BOTH(embedding_backward_positions, float, bf16);

}  // namespace llmc::host
