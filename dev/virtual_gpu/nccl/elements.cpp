// Reductions of NCCL's data types on the host (elements.h).
#include "dev/virtual_gpu/nccl/elements.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

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

// Calls `function` with a value of the type.
template <class Function>
void with_type(ncclDataType_t type, Function function) {
    switch (type) {
        case ncclInt8:
            return function(int8_t{});
        case ncclUint8:
            return function(uint8_t{});
        case ncclInt32:
            return function(int32_t{});
        case ncclUint32:
            return function(uint32_t{});
        case ncclInt64:
            return function(int64_t{});
        case ncclUint64:
            return function(uint64_t{});
        case ncclFloat16:
            return function(__half{});
        case ncclFloat32:
            return function(float{});
        case ncclFloat64:
            return function(double{});
        case ncclBfloat16:
            return function(__nv_bfloat16{});
        case ncclFloat8e4m3:
            return function(__nv_fp8_e4m3{});
        case ncclFloat8e5m2:
            return function(__nv_fp8_e5m2{});
        case ncclNumTypes:
            break;
    }
}

// Types below 32 bits are computed in FP32. Integers wrap around like the GPU's. A maximum or minimum of a number and
// NaN is the number, as in NCCL's kernels (fmaxf).
template <class T>
T combine(T a, T b, ncclRedOp_t op) {
    if constexpr (std::is_integral_v<T>) {
        if (op == ncclMax) return std::max(a, b);
        if (op == ncclMin) return std::min(a, b);
        const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
        return static_cast<T>(op == ncclProd ? x * y : x + y);
    } else {
        using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
        const Wide x = static_cast<Wide>(a), y = static_cast<Wide>(b);
        if (op == ncclMax) return static_cast<T>(std::fmax(x, y));
        if (op == ncclMin) return static_cast<T>(std::fmin(x, y));
        return static_cast<T>(op == ncclProd ? x * y : x + y);
    }
}

}  // namespace

size_t size_of(ncclDataType_t type) { return type >= 0 && type < ncclNumTypes ? kTypes[type].bytes : 0; }
const char* name_of(ncclDataType_t type) { return size_of(type) ? kTypes[type].name : "unknown type"; }
const char* name_of(ncclRedOp_t op) { return op >= 0 && op < ncclNumOps ? kReductions[op] : "unknown reduction"; }
bool is_fp8(ncclDataType_t type) { return type == ncclFloat8e4m3 || type == ncclFloat8e5m2; }

void accumulate(void* sum, const void* values, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    with_type(type, [&](auto example) {
        using T = decltype(example);
        for (size_t i = 0; i < count; i++) {
            T a, b;
            std::memcpy(&a, static_cast<const char*>(sum) + i * sizeof(T), sizeof(T));
            std::memcpy(&b, static_cast<const char*>(values) + i * sizeof(T), sizeof(T));
            a = combine(a, b, op);
            std::memcpy(static_cast<char*>(sum) + i * sizeof(T), &a, sizeof(T));
        }
    });
}

void divide(void* sum, int ranks, size_t count, ncclDataType_t type) {
    with_type(type, [&](auto example) {
        using T = decltype(example);
        for (size_t i = 0; i < count; i++) {
            T a;
            std::memcpy(&a, static_cast<const char*>(sum) + i * sizeof(T), sizeof(T));
            if constexpr (std::is_integral_v<T>)
                a = static_cast<T>(std::is_signed_v<T>
                                       ? static_cast<T>(static_cast<int64_t>(a) / ranks)
                                       : static_cast<T>(static_cast<uint64_t>(a) / static_cast<uint64_t>(ranks)));
            else if constexpr (std::is_same_v<T, double>)
                a = a / ranks;
            else
                a = static_cast<T>(static_cast<float>(a) / static_cast<float>(ranks));
            std::memcpy(static_cast<char*>(sum) + i * sizeof(T), &a, sizeof(T));
        }
    });
}

}  // namespace virtual_gpu::nccl
