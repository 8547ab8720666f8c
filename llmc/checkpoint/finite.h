// Refuses weights that are NaN or Inf when a file is read. Otherwise one such value would turn every loss into NaN,
// steps later.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// Throws Error(checkpoint) at the first non-finite value: "FILE: h.3.fc.weight has NaN at row 5, column 7". Rows and
// columns count from 0 in the tensor's shape in the file; the column index combines all dimensions but the first.
void require_finite(const std::string& path, const std::string& tensor, const std::vector<int64_t>& shape,
                    const std::vector<float>& values);

}  // namespace llmc
