// What the tests of row kernels share: the shapes they try, where a NaN may go, and derivatives.
#pragma once
#include <cstring>
#include <vector>

#include "test/kernel_test.h"

namespace llmc::test {

struct RowShape {
    int N, C;
};

// One row and more, less and more than a block's worth; columns narrower than a warp, and not a multiple of its 256.
inline std::vector<RowShape> row_shapes() {
    std::vector<RowShape> shapes;
    for (int N : {1, 7, 33, 250}) {
        for (int C : {8, 64, 128, 192, 768, 1600}) shapes.push_back({N, C});
    }
    return shapes;
}

// Of norms: and rows that fill one, two, four and eight vectors a thread, of every number of warps, and the widest.
inline std::vector<RowShape> norm_shapes() {
    std::vector<RowShape> shapes = row_shapes();
    for (RowShape s : {RowShape{9, 256}, {9, 512}, {9, 1024}, {6, 2048}, {6, 2056}, {5, 4096}, {5, 5000}, {3, 12288}})
        shapes.push_back(s);
    return shapes;
}

template <class Real>
bool all_nan(const std::vector<Real>& values, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (!std::isnan(to_float(values[i]))) return false;
    }
    return true;
}

// Forward(N, C) has inp1, normed, and normalise(inp).
template <class Forward>
void check_nan_stays_in_its_row() {
    const int N = 9;
    for (const int C : {64, 768, 2304}) {
        CAPTURE(C);
        Forward clean(N, C), dirty(N, C);
        const size_t begin = static_cast<size_t>(4) * C, end = begin + C;
        auto x = dirty.inp1.download();
        x[begin + C / 2] = to<bf16>(std::numeric_limits<float>::quiet_NaN());
        dirty.inp1.upload(x);
        clean.normalise(clean.inp1);
        dirty.normalise(dirty.inp1);
        auto good = clean.normed.download(), bad = dirty.normed.download();
        CHECK(all_nan(bad, begin, end));
        std::copy(good.begin() + begin, good.begin() + end, bad.begin() + begin);
        CHECK(same_bits(good, bad));
    }
}

// Of loss(x) at x, in FP64 by central differences, at some of its places.
template <class Loss>
void check_derivative(const std::vector<double>& x, const std::vector<float>& gradient, const Loss& loss) {
    for (size_t i = 0; i < x.size(); i += 17) {
        auto up = x, down = x;
        up[i] += 1e-4;
        down[i] -= 1e-4;
        CHECK((loss(up) - loss(down)) / 2e-4 == doctest::Approx(gradient[i]).epsilon(1e-3).scale(0.1));
    }
}

}  // namespace llmc::test
