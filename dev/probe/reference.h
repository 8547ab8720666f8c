// The right result of a product in FP64, at a sample of its rows and columns, from the operands' formula.
#pragma once
#include <vector>

#include "dev/probe/cases.h"
#include "dev/probe/operands.h"

namespace llmc::probe {

// Rows and columns, ascending: the first, the last, and one at random from each of equal parts between them, so that a
// result with a wrong tile has little room to hide.
std::vector<int> sample_of(int length, int count, uint32_t seed);

// result(row, column) for each sampled row and column, row by row. `initial`: the result starts from its own formula
// (beta = 1).
std::vector<double> reference(const Product& product, const std::vector<int>& rows, const std::vector<int>& columns);

// ||actual - expected|| / ||expected||; infinite if anything is not finite or the sizes differ.
double relative_error(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace llmc::probe
