// Reductions of NCCL's data types on the host (elements.h).
#include "dev/virtual_gpu/nccl/elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace virtual_gpu::nccl {
namespace {

struct Type {
    const char* name;
    size_t bytes;
};
constexpr Type kTypes[] = {{"int8", 1},    {"uint8", 1},    {"int32", 4},      {"uint32", 4},
                           {"int64", 8},   {"uint64", 8},   {"float16", 2},    {"float32", 4},
                           {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1}};
static_assert(sizeof kTypes / sizeof *kTypes == ncclNumTypes);
constexpr const char* kReductions[] = {"sum", "prod", "max", "min", "avg"};
static_assert(sizeof kReductions / sizeof *kReductions == ncclNumOps);

// Integers wrap around like the GPU's. A maximum of a number and NaN is the number, as in NCCL's kernels (fmaxf).
template <class T>
T combine(T a, T b, ncclRedOp_t op) {
    if constexpr (std::is_integral_v<T>)
        return op == ncclMax ? std::max(a, b) : static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else
        return op == ncclMax ? std::fmax(a, b) : a + b;
}

template <class T>
void accumulate_as(void* sum, const void* values, size_t count, ncclRedOp_t op) {
    for (size_t i = 0; i < count; i++) {
        T a, b;
        std::memcpy(&a, static_cast<const char*>(sum) + i * sizeof(T), sizeof(T));
        std::memcpy(&b, static_cast<const char*>(values) + i * sizeof(T), sizeof(T));
        a = combine(a, b, op);
        std::memcpy(static_cast<char*>(sum) + i * sizeof(T), &a, sizeof(T));
    }
}

// nullptr for types that the program only moves.
auto reduction_of(ncclDataType_t type) -> void (*)(void*, const void*, size_t, ncclRedOp_t) {
    switch (type) {
        case ncclInt32:
            return accumulate_as<int32_t>;
        case ncclUint32:
            return accumulate_as<uint32_t>;
        case ncclUint64:
            return accumulate_as<uint64_t>;
        case ncclFloat32:
            return accumulate_as<float>;
        case ncclFloat64:
            return accumulate_as<double>;
        default:
            return nullptr;
    }
}

}  // namespace

size_t size_of(ncclDataType_t type) { return type >= 0 && type < ncclNumTypes ? kTypes[type].bytes : 0; }
const char* name_of(ncclDataType_t type) { return size_of(type) ? kTypes[type].name : "unknown type"; }
const char* name_of(ncclRedOp_t op) { return op >= 0 && op < ncclNumOps ? kReductions[op] : "unknown reduction"; }

bool can_reduce(ncclDataType_t type) { return reduction_of(type) != nullptr; }

void accumulate(void* sum, const void* values, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    reduction_of(type)(sum, values, count, op);
}

}  // namespace virtual_gpu::nccl
