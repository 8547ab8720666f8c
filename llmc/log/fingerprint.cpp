// XXH64 over samples and over master weights.
// build: optimized
#include "llmc/log/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <memory>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/formats.cuh"

namespace llmc {

std::string fingerprint_text(uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

void BatchFingerprint::add(const int* tokens, const int* targets, int B, int T, int64_t first) {
    for (int b = 0; b < B; b++) {
        const size_t row = static_cast<size_t>(b) * static_cast<size_t>(T);
        const uint64_t place = static_cast<uint64_t>(first + b);
        const uint64_t head = XXH64(tokens + row, static_cast<size_t>(T) * sizeof(int), place);
        sum_ += XXH64(targets + row + T - 1, sizeof(int), head);
    }
}

template <class Real>
uint64_t weights_fingerprint(const Weights<Real>& weights, stream_t stream) {
    uint64_t hash = 0;  // each tensor's hash is seeded with all before it
    const ParameterTable& table = weights.table();
    for (size_t u = 0; u < table.units().size(); u++)
        for (size_t t = 0; t < table.unit(u).tensors.size(); t++) {
            const std::string& name = table.unit(u).tensors[t].name;
            const std::vector<float> values = weights.get_tensor(u, t, stream);
            hash = XXH64(name.data(), name.size(), hash);
            hash = XXH64(values.data(), values.size() * sizeof(float), hash);
        }
    return hash;
}

template uint64_t weights_fingerprint(const Weights<float>&, stream_t);
template uint64_t weights_fingerprint(const Weights<bf16>&, stream_t);

}  // namespace llmc
