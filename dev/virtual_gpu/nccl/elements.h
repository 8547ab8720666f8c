// NCCL's data types and reductions.
#pragma once
#include <nccl.h>

#include <cstddef>

namespace virtual_gpu::nccl {

size_t size_of(ncclDataType_t type);  // 0 if there is no such type
const char* name_of(ncclDataType_t type);
const char* name_of(ncclRedOp_t op);
bool can_reduce(ncclDataType_t type);  // a type whose sums the program uses

// sum[i] = sum[i] op values[i], rounded to the type each time, like partial sums in a ring; op is ncclSum or ncclMax.
void accumulate(void* sum, const void* values, size_t count, ncclDataType_t type, ncclRedOp_t op);

}  // namespace virtual_gpu::nccl
