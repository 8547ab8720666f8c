// All master weights of a model, and their first values.
#pragma once
#include <vector>

#include "llmc/kernels/initial_values.h"
#include "llmc/model/architecture.h"
#include "llmc/model/config.h"
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

// A tensor's values at step 0, with padding, computed on the host.
inline std::vector<float> first_values(const ModelConfig& config, const TensorRow& row, uint64_t seed) {
    const InitialValues from = initial_values(config, row, seed);
    std::vector<float> values(static_cast<size_t>(row.padded_count()), 0.0f);
    for (size_t i = 0; i < from.count; i++)
        values[i] = from.deviation == 0 ? from.constant : from.deviation * normal_number(from.key, i);
    return values;
}

}  // namespace llmc::test
