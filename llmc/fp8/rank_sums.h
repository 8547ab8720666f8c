// Sums that kernels of records add to on the device (llmc/kernels/outliers.h), three numbers a row, and what they are
// over all ranks.
#pragma once
#include <array>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/shard/arena.h"

namespace llmc {

class Fp8RankSums {
public:
    using Row = std::array<double, 3>;

    void plan(Arena& arena, size_t rows);
    void clear(stream_t stream);
    double* row(size_t row) const { return sums_ + 3 * row; }
    size_t rows() const { return rows_; }

    // Since the last clear(), over all ranks in their order: a collective that waits for the device.
    std::vector<Row> read(const Comm& comm, stream_t stream) const;
    // What was read goes on, on any number of ranks.
    void restore(const std::vector<Row>& rows, const Comm& comm, stream_t stream);

private:
    size_t rows_ = 0;
    double* sums_ = nullptr;  // (rows, 3)
};

}  // namespace llmc
