// Defines which kernels count as element-wise: norms, GELU, casts to FP8 and bias gradients, everything around a
// block's matrix products and attention. The bytes that they declare on the host device are the traffic that fusing
// saves.
#pragma once
#include <string>

#include "llmc/device/host/runtime.h"

namespace llmc {

// The final norm counts if it shares a kernel with the blocks' norms. Writing FP8 weights belongs to the optimizer.
inline bool is_element_wise(const std::string& kernel) {
    for (const char* part : {"quantize_weight", "dequantize"})  // dequantize is part of an emulated product
        if (kernel.find(part) != std::string::npos) return false;
    for (const char* part : {"gelu_", "layernorm_", "quantize_", "bias_gradient_kernel", "reduce_column_parts_kernel"})
        if (kernel.find(part) != std::string::npos) return true;
    return false;
}

// Bytes moved since record_operations(true).
inline double element_wise_bytes() {
    double bytes = 0;
    for (const auto& [name, row] : host::operations())
        if (is_element_wise(name)) bytes += static_cast<double>(row.bytes_read + row.bytes_written);
    return bytes;
}

}  // namespace llmc
