// All master weights of a model, and whether two have the same.
#pragma once
#include <cstring>
#include <vector>

#include "llmc/shard/weights.h"

namespace llmc::test {

// Tensor after tensor. A collective, where ranks keep slices.
template <class Real>
std::vector<std::vector<float>> all_weights(const Weights<Real>& weights, stream_t stream) {
    std::vector<std::vector<float>> all;
    for (size_t u = 0; u < weights.table().units().size(); u++)
        for (size_t t = 0; t < weights.table().unit(u).tensors.size(); t++)
            all.push_back(weights.get_tensor(u, t, stream));
    return all;
}

inline bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); i++)
        same = a[i].size() == b[i].size() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) == 0;
    return same;
}

}  // namespace llmc::test
