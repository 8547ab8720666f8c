// Shared code of the tests of row kernels: shapes, places for a NaN, and derivatives.
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

template <class Real>
bool all_nan(const std::vector<Real>& values, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (!std::isnan(to_float(values[i]))) return false;
    }
    return true;
}

// Compares `gradient` with the derivative of loss(x), in FP64 by central differences, at some places.
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
