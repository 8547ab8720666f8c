// Data types and reductions.
#pragma once
#include <nccl.h>

#include <cstddef>

namespace virtual_gpu::nccl {

size_t size_of(ncclDataType_t type);  // 0: there is no such type
const char* name_of(ncclDataType_t type);
const char* name_of(ncclRedOp_t op);
bool is_fp8(ncclDataType_t type);

// sum[i] = sum[i] op values[i], rounded to the type each time, as it is where a ring passes partial sums on. ncclAvg
// adds.
void accumulate(void* sum, const void* values, size_t count, ncclDataType_t type, ncclRedOp_t op);
// What ncclAvg does at the end.
void divide(void* sum, int ranks, size_t count, ncclDataType_t type);

}  // namespace virtual_gpu::nccl
