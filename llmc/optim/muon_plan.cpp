// Assigns Muon's matrices to rounds and owners.
#include "llmc/optim/muon_plan.h"

#include <algorithm>

#include "llmc/base/error.h"

namespace llmc {
namespace {

constexpr size_t kAlignment = 8;  // in elements: 16 bytes in bf16, which vector loads need

void add_matrices(std::vector<MuonMatrix>& matrices, const ParameterTable& table, size_t unit, size_t tensor) {
    const ParameterTensor& info = table.unit(unit).tensors[tensor];
    const int columns = info.shape[1];
    const std::vector<int> rows = info.matrix_rows.empty() ? std::vector<int>{info.shape[0]} : info.matrix_rows;
    size_t begin = info.offset;
    for (const int n : rows) {
        matrices.push_back({unit, tensor, begin, n, columns});
        if (n < 1 || begin % kAlignment != 0)
            throw Error(ExitCode::bad_flags,
                        strprintf("--optimizer muon: %s has a matrix of %d rows that begins at element %zu, which is "
                                  "no multiple of %zu",
                                  info.name.c_str(), n, begin - info.offset, kAlignment));
        begin = matrices.back().end();
    }
    if (begin != info.offset + info.count())
        throw Error(ExitCode::failure, info.name + ": its matrices do not add up to its rows");
}

}  // namespace

double MuonMatrix::flops_of_a_step() const {
    const double m = smaller(), n = larger();
    return 4 * m * m * n + 2 * m * m * m;
}

MuonRegion muon_region(const ParameterTable& table, size_t unit) {
    const bool is_block = unit > 0 && unit + 1 < table.units().size();
    return {0, is_block ? table.unit(unit).decay_count : 0};
}

std::vector<MuonMatrix> plan_muon(const ParameterTable& table, int ranks) {
    std::vector<MuonMatrix> matrices;
    for (size_t u = 0; u < table.units().size(); u++)
        for (size_t t = 0; t < table.unit(u).tensors.size(); t++)
            if (muon_region(table, u).count > 0 && table.unit(u).tensors[t].decay) add_matrices(matrices, table, u, t);

    const size_t blocks = (static_cast<size_t>(ranks) + 1) / 2;
    for (MuonMatrix& matrix : matrices) matrix.round = (matrix.unit - 1) / blocks;
    std::vector<MuonMatrix*> by_work;
    for (MuonMatrix& matrix : matrices) by_work.push_back(&matrix);
    std::stable_sort(by_work.begin(), by_work.end(), [](const MuonMatrix* a, const MuonMatrix* b) {
        return a->round != b->round ? a->round < b->round : a->flops_of_a_step() > b->flops_of_a_step();
    });
    std::vector<double> load;
    for (size_t i = 0; i < by_work.size(); i++) {
        if (i == 0 || by_work[i]->round != by_work[i - 1]->round) load.assign(static_cast<size_t>(ranks), 0.0);
        const auto least = std::min_element(load.begin(), load.end());
        by_work[i]->owner = static_cast<int>(least - load.begin());
        *least += by_work[i]->flops_of_a_step();
    }
    return matrices;
}

std::string describe(const std::vector<MuonMatrix>& matrices) {
    std::string text;
    for (const MuonMatrix& m : matrices)
        text += strprintf("unit %zu element %zu, %d x %d, round %zu on rank %d\n", m.unit, m.begin, m.rows, m.columns,
                          m.round, m.owner);
    return text;
}

}  // namespace llmc
