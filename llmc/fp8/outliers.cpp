#include "llmc/fp8/outliers.h"

#include <iterator>

#include "llmc/device/transfer.h"

namespace llmc {

void Fp8OutlierSums::plan(Arena& arena, int layers) {
    layers_ = static_cast<size_t>(layers);
    arena.plan(&moments_, 3 * layers_);
    arena.plan(&alignments_, 2 * layers_);
}

void Fp8OutlierSums::clear(stream_t stream) {
    set_bytes(moments_, 0, 3 * layers_ * sizeof(double), stream);
    set_bytes(alignments_, 0xFF, 2 * layers_ * sizeof(float), stream);  // NaN
}

// Ranks' sums are added in the order of the ranks; weights are the same on all.
std::vector<Fp8Outliers> Fp8OutlierSums::read(const Comm& comm, stream_t stream) const {
    const std::vector<double> mine = read_back(moments_, 3 * layers_, stream);
    const std::vector<float> alignments = read_back(alignments_, 2 * layers_, stream);
    std::vector<double> all(mine.size() * static_cast<size_t>(comm.world()));
    comm.host_all_gather(all.data(), mine.data(), mine.size() * sizeof(double));
    std::vector<Fp8Outliers> outliers(layers_);
    for (size_t layer = 0; layer < layers_; layer++) {
        for (size_t i = 0; i < all.size(); i += mine.size())
            for (size_t k = 0; k < 3; k++) outliers[layer].moments[k] += all[i + 3 * layer + k];
        for (size_t k = 0; k < 2; k++) outliers[layer].alignment[k] = alignments[2 * layer + k];
    }
    return outliers;
}

// The first rank has the sums of all: the others begin with none.
void Fp8OutlierSums::restore(const std::vector<Fp8Outliers>& outliers, const Comm& comm, stream_t stream) {
    std::vector<double> moments;
    std::vector<float> alignments;
    for (const Fp8Outliers& layer : outliers) {
        for (const double sum : layer.moments) moments.push_back(comm.is_main() ? sum : 0.0);
        alignments.insert(alignments.end(), std::begin(layer.alignment), std::end(layer.alignment));
    }
    write_through(moments_, moments.data(), moments.size(), stream);
    write_through(alignments_, alignments.data(), alignments.size(), stream);
}

}  // namespace llmc
