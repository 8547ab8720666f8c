// What cuBLASLt has, by compute capability and version, as its documentation says.
#pragma once
#include <string>

#include "dev/virtual_gpu/cublaslt/descriptors.h"

namespace virtual_gpu {

// Whether the descriptors describe a product at all; otherwise every call is an invalid one.
bool is_product(const Product& product);

// Why the library does not have a product; empty where it has. `alignment` is what is promised of A, B, C and D.
std::string why_not_supported(const Product& product, const uint32_t (&alignment)[4], int capability, int version);

// Alignment of a scale's address.
size_t scale_alignment(int mode, int version);

}  // namespace virtual_gpu
