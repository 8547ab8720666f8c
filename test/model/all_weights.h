// All master weights of a model.
#pragma once
#include <vector>

#include "llmc/shard/weights.h"

namespace llmc::test {

// Returns them tensor after tensor. A collective if ranks keep slices.
template <class Real>
std::vector<std::vector<float>> all_weights(const Weights<Real>& weights, stream_t stream) {
    std::vector<std::vector<float>> all;
    for (size_t u = 0; u < weights.table().units().size(); u++)
        for (size_t t = 0; t < weights.table().unit(u).tensors.size(); t++)
            all.push_back(weights.get_tensor(u, t, stream));
    return all;
}

}  // namespace llmc::test
