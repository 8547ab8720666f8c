// The products that cuBLASLt supports, by compute capability and version, according to its documentation.
#pragma once
#include <string>

#include "dev/virtual_gpu/cublaslt/descriptors.h"

namespace virtual_gpu {

// True if the descriptors describe a product at all. Otherwise every call is invalid.
bool is_product(const Product& product);

// Why the library does not support a product, or "" if it does. `alignment` is promised for A, B, C and D.
std::string why_not_supported(const Product& product, const uint32_t (&alignment)[4], int capability, int version);

// The required alignment of a scale's address.
size_t scale_alignment(int mode, int version);

}  // namespace virtual_gpu
