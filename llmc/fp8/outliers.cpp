#include "llmc/fp8/outliers.h"

#include <iterator>

#include "llmc/device/transfer.h"

namespace llmc {

void Fp8OutlierSums::plan(Arena& arena, int layers) {
    layers_ = static_cast<size_t>(layers);
    moments_.plan(arena, layers_);
    arena.plan(&alignments_, 2 * layers_);
}

void Fp8OutlierSums::clear(stream_t stream) {
    moments_.clear(stream);
    set_bytes(alignments_, 0xFF, 2 * layers_ * sizeof(float), stream);  // NaN
}

// Weights are the same on all ranks.
std::vector<Fp8Outliers> Fp8OutlierSums::read(const Comm& comm, stream_t stream) const {
    const std::vector<Fp8RankSums::Row> moments = moments_.read(comm, stream);
    const std::vector<float> alignments = read_back(alignments_, 2 * layers_, stream);
    std::vector<Fp8Outliers> outliers(layers_);
    for (size_t layer = 0; layer < layers_; layer++) {
        outliers[layer].moments = moments[layer];
        for (size_t k = 0; k < 2; k++) outliers[layer].alignment[k] = alignments[2 * layer + k];
    }
    return outliers;
}

void Fp8OutlierSums::restore(const std::vector<Fp8Outliers>& outliers, const Comm& comm, stream_t stream) {
    std::vector<Fp8RankSums::Row> moments;
    std::vector<float> alignments;
    for (const Fp8Outliers& layer : outliers) {
        moments.push_back(layer.moments);
        alignments.insert(alignments.end(), std::begin(layer.alignment), std::end(layer.alignment));
    }
    moments_.restore(moments, comm, stream);
    write_through(alignments_, alignments.data(), alignments.size(), stream);
}

}  // namespace llmc
