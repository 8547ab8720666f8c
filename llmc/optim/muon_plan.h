// Which matrices Muon orthogonalizes, when, and on which rank: a function of the model's table and the number of ranks
// that share the work, so that all of them plan alike.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/shard/table.h"

namespace llmc {

// A matrix, row-major in one piece of its unit: a tensor, or some of its rows.
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
    double flops_of_a_step() const;  // of Newton-Schulz: 4 m^2 n + 2 m^3
};

// Where Muon's matrices lie in a unit: those of the blocks (units between the first and the last) that decay.
struct MuonRegion {
    size_t begin, count;
};
MuonRegion muon_region(const ParameterTable& table, size_t unit);

// In the order of units and tensors. Rounds: ceil(ranks / 2) blocks at a time, so that ranks have about equal work and
// buffers stay small. In each the matrix with the most work goes to the rank with the least, ties to the lower index.
std::vector<MuonMatrix> plan_muon(const ParameterTable& table, int ranks);

// Every matrix, its round and its owner, in a line: what ranks compare.
std::string describe(const std::vector<MuonMatrix>& matrices);

}  // namespace llmc
