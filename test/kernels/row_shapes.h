// What the tests of row kernels share: the shapes they try, and a comparison of bits.
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

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class Real>
bool all_nan(const std::vector<Real>& values, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (!std::isnan(to_float(values[i]))) return false;
    }
    return true;
}

}  // namespace llmc::test
