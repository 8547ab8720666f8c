// Weights that are no numbers: one of them makes every loss a NaN, steps after the file was read, so it is refused
// there.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// Throws Error(checkpoint) at the first value that is not finite: "FILE: h.3.fc.weight has NaN at row 5, column 7".
// Rows and columns (of all dimensions but the first, as one) count from 0, as the tensor of this shape is in the file.
void require_finite(const std::string& path, const std::string& tensor, const std::vector<int64_t>& shape,
                    const std::vector<float>& values);

}  // namespace llmc
