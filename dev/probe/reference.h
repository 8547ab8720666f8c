// The correct result of a product in FP64, for a sample of its rows and columns, computed from the operands' formula.
#pragma once
#include <vector>

#include "dev/probe/cases.h"
#include "dev/probe/operands.h"

namespace llmc::probe {

// Returns sampled rows or columns in ascending order: the first, the last, and a random one from each of equal parts
// between them, so that a wrong tile is unlikely to be missed.
std::vector<int> sample_of(int length, int count, uint32_t seed);

// Returns result(row, column) for each sampled row and column, row by row. With beta = 1, the product adds to the
// result's own initial values.
std::vector<double> reference(const Product& product, const std::vector<int>& rows, const std::vector<int>& columns);

// ||actual - expected|| / ||expected||. Infinite if any value is not finite or the sizes differ.
double relative_error(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace llmc::probe
