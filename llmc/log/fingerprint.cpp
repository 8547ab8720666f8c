// XXH64 over samples, and checksums of master weights on the device.
// build: optimized
#include "llmc/log/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/agreement.h"
#include "llmc/device/transfer.h"
#include "llmc/kernels/elementwise.h"

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
uint64_t weights_fingerprint(const Weights<Real>& weights, void* workspace, stream_t stream) {
    const ShardLayout& layout = weights.layout();
    uint64_t* const sum = static_cast<uint64_t*>(workspace);
    set_bytes(sum, 0, sizeof *sum, stream);
    for (size_t u = 0; u < layout.units(); u++) {
        const ShardLayout::Part slice = layout.slice(u);
        const StateArray masters = weights.slice(u).master;
        for (const ParameterTensor& tensor : layout.table().unit(u).tensors) {
            const ShardLayout::Part part = ShardLayout::overlap(slice, tensor);
            const uint64_t key = XXH64(tensor.name.data(), tensor.name.size(), 0);
            checksum_values(sum, masters.from(part.begin - slice.begin), key, part.begin - tensor.offset, part.count,
                            stream);
        }
    }
    const uint64_t mine = read_back(sum, stream);
    if (!layout.is_sliced()) return mine;
    return sum_over_ranks(weights.comm(), std::vector{mine})[0];
}

template uint64_t weights_fingerprint(const Weights<float>&, void*, stream_t);
template uint64_t weights_fingerprint(const Weights<bf16>&, void*, stream_t);

}  // namespace llmc
