#include "llmc/fp8/rank_sums.h"

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
    const std::vector<double> mine = read_back(sums_, 3 * rows_, stream);
    std::vector<double> all(mine.size() * static_cast<size_t>(comm.world()));
    comm.host_all_gather(all.data(), mine.data(), mine.size() * sizeof(double));
    std::vector<Row> rows(rows_, Row{});
    for (size_t row = 0; row < rows_; row++)
        for (size_t i = 0; i < all.size(); i += mine.size())
            for (size_t k = 0; k < 3; k++) rows[row][k] += all[i + 3 * row + k];
    return rows;
}

// The first rank has the sums of all: the others begin with none.
void Fp8RankSums::restore(const std::vector<Row>& rows, const Comm& comm, stream_t stream) {
    if (rows_ == 0) return;
    std::vector<double> sums;
    for (const Row& row : rows)
        for (const double sum : row) sums.push_back(comm.is_main() ? sum : 0.0);
    write_through(sums_, sums.data(), sums.size(), stream);
}

}  // namespace llmc
