// NCCL's data types and reductions.
#pragma once
#include <nccl.h>

#include <cstddef>

namespace virtual_gpu::nccl {

size_t size_of(ncclDataType_t type);  // 0 if there is no such type
const char* name_of(ncclDataType_t type);
const char* name_of(ncclRedOp_t op);
bool is_fp8(ncclDataType_t type);

// sum[i] = sum[i] op values[i], rounded to the type each time, like partial sums in a ring. ncclAvg adds.
void accumulate(void* sum, const void* values, size_t count, ncclDataType_t type, ncclRedOp_t op);
// The final division of ncclAvg.
void divide(void* sum, int ranks, size_t count, ncclDataType_t type);

}  // namespace virtual_gpu::nccl
