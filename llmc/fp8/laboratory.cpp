// Sums of the probe: see laboratory.h.
#include "llmc/fp8/laboratory.h"

#include <cmath>

#include "llmc/comm/agreement.h"
#include "llmc/device/transfer.h"

namespace llmc {

void Fp8RankSums::plan(Arena& arena, size_t rows) {
    rows_ = rows;
    arena.plan(&sums_, 3 * rows_);
}

void Fp8RankSums::clear(stream_t stream) {
    if (rows_ > 0) set_bytes(sums_, 0, 3 * rows_ * sizeof(double), stream);
}

std::vector<Fp8RankSums::Row> Fp8RankSums::read(const Comm& comm, stream_t stream) const {
    if (rows_ == 0) return {};
    const std::vector<double> sums = sum_over_ranks(comm, read_back(sums_, 3 * rows_, stream));
    std::vector<Row> rows(rows_);
    for (size_t i = 0; i < sums.size(); i++) rows[i / 3][i % 3] = sums[i];
    return rows;
}

// The first rank takes the sums of all, the others start at 0.
void Fp8RankSums::restore(const std::vector<Row>& rows, const Comm& comm, stream_t stream) {
    if (rows_ == 0) return;
    std::vector<double> sums;
    for (const Row& row : rows)
        for (const double sum : row) sums.push_back(comm.is_main() ? sum : 0.0);
    write_through(sums_, sums.data(), sums.size(), stream);
}

double probed_error(const Fp8RankSums::Row& sums) { return std::sqrt(sums[1] / sums[2]); }

void Fp8Laboratory::restore_probed(const std::vector<Fp8RankSums::Row>& rows, stream_t stream) {
    if (rows.size() == probed_.rows()) probed_.restore(rows, comm_, stream);
}

}  // namespace llmc
