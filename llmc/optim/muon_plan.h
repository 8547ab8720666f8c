// Which matrices Muon orthogonalizes, in which round, and on which rank. The plan depends only on the model's table and
// the number of ranks that share the work, so every rank makes the same plan.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/shard/table.h"

namespace llmc {

// A matrix, contiguous and row-major in its unit: a tensor, or some of its rows.
struct MuonMatrix {
    size_t unit, tensor;
    size_t begin;  // in the unit
    int rows, columns;
    size_t round = 0;
    int owner = 0;
    size_t count() const { return static_cast<size_t>(rows) * static_cast<size_t>(columns); }
    size_t end() const { return begin + count(); }
    int smaller() const { return rows < columns ? rows : columns; }
    int larger() const { return rows < columns ? columns : rows; }
    double flops_of_a_step() const;  // of one Newton-Schulz step: 4 m^2 n + 2 m^3
};

// The range of a unit that holds Muon's matrices: those of the blocks (units between the first and the last) with
// weight decay.
struct MuonRegion {
    size_t begin, count;
};
MuonRegion muon_region(const ParameterTable& table, size_t unit);

// Returns the matrices in the order of units and tensors. A round covers ceil(ranks / 2) blocks, so that ranks have
// about equal work and buffers stay small. In each round, the matrix with the most work goes to the rank with the least
// work so far; ties go to the lower index.
std::vector<MuonMatrix> plan_muon(const ParameterTable& table, int ranks);

// One line per matrix with its round and owner. The ranks compare this text.
std::string describe(const std::vector<MuonMatrix>& matrices);

}  // namespace llmc
