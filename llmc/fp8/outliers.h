// What records tell of the outliers in FP8 layers, beside what their casts lost: sums on the device, a layer a row,
// made only in steps that are recorded.
#pragma once
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/shard/arena.h"

namespace llmc {

// Of one layer. NaN: not measured.
struct Fp8Outliers {
    double kurtosis;                     // of x: n sum x^4 / (sum x^2)^2, of all ranks; 3 for a normal distribution
    float alignment, largest_alignment;  // mean and largest |cos| of gate's and up's rows, of a weight that has both
};

class Fp8OutlierSums {
public:
    void plan(Arena& arena, int layers);
    void clear(stream_t stream);

    double* moments(int layer) const { return moments_ + 3 * layer; }
    float* alignment(int layer) const { return alignments_ + 2 * layer; }

    // Since the last clear(): a collective that waits for the device.
    std::vector<Fp8Outliers> read(const Comm& comm, stream_t stream) const;

private:
    size_t layers_ = 0;
    double* moments_ = nullptr;    // (layers, 3): see add_moments()
    float* alignments_ = nullptr;  // (layers, 2): see gate_alignment()
};

}  // namespace llmc
