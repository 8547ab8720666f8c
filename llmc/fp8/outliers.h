// What records tell of the outliers in FP8 layers, beside what their casts lost: sums on the device, a layer a row,
// made only in steps that are recorded.
#pragma once
#include <limits>
#include <vector>

#include "llmc/fp8/rank_sums.h"

namespace llmc {

// Of one layer and all ranks. NaN: not measured.
struct Fp8Outliers {
    Fp8RankSums::Row moments{};                    // of x: see add_moments()
    float alignment[2]{kUnmeasured, kUnmeasured};  // of a weight with gate and up: see gate_alignment()

    static constexpr float kUnmeasured = std::numeric_limits<float>::quiet_NaN();

    // n sum x^4 / (sum x^2)^2: 3 for a normal distribution.
    double kurtosis() const { return moments[0] * moments[2] / (moments[1] * moments[1]); }
};

class Fp8OutlierSums {
public:
    void plan(Arena& arena, int layers);
    void clear(stream_t stream);

    double* moments(int layer) const { return moments_.row(static_cast<size_t>(layer)); }
    float* alignment(int layer) const { return alignments_ + 2 * layer; }

    // Since the last clear(), a layer an element: a collective that waits for the device.
    std::vector<Fp8Outliers> read(const Comm& comm, stream_t stream) const;
    // What was read goes on, on any number of ranks.
    void restore(const std::vector<Fp8Outliers>& outliers, const Comm& comm, stream_t stream);

private:
    size_t layers_ = 0;
    Fp8RankSums moments_;          // a layer a row: see add_moments()
    float* alignments_ = nullptr;  // (layers, 2): see gate_alignment()
};

}  // namespace llmc
