// Tensor maps: cuTensorMapEncodeTiled, and how a program of the runtime finds it. Arguments are checked against
// cuda.h's description of each. Valid arguments that are not simulated (element strides, interleaving, packed types,
// other swizzles) are refused by name.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/ptx/tensor_map.h"

namespace virtual_gpu {
namespace {

constexpr uint64_t kMostSize = uint64_t{1} << 32, kMostStride = uint64_t{1} << 40;
constexpr uint32_t kMostBox = 256, kMostRank = 5, kMostElementStride = 8;

// 0 if the type is not known here.
uint8_t bytes_of(CUtensorMapDataType type) {
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8:
            return 1;
        case CU_TENSOR_MAP_DATA_TYPE_UINT16:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
            return 2;
        case CU_TENSOR_MAP_DATA_TYPE_UINT32:
        case CU_TENSOR_MAP_DATA_TYPE_INT32:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
            return 4;
        case CU_TENSOR_MAP_DATA_TYPE_UINT64:
        case CU_TENSOR_MAP_DATA_TYPE_INT64:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
            return 8;
        default:
            return 0;
    }
}

bool swizzle_of(CUtensorMapSwizzle swizzle, uint8_t& bytes) {
    bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_32B    ? 32
            : swizzle == CU_TENSOR_MAP_SWIZZLE_64B  ? 64
            : swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128
                                                    : 0;
    return bytes || swizzle == CU_TENSOR_MAP_SWIZZLE_NONE;
}

// The rule that the tensor's dimensions break, or "" if they break none. Strides may come in any order: cuda.h shows
// increasing ones, but an outer dimension for heads that lie within a row is widely used.
std::string broken_rule(const TensorMap& map, const cuuint32_t* element_strides) {
    for (unsigned d = 0; d < map.rank; d++) {
        const unsigned long long size = map.size[d], stride = map.stride[d];
        if (size == 0 || size > kMostSize) return format("globalDim[%u] = %llu: 1 to 2^32", d, size);
        if (map.box[d] == 0 || map.box[d] > kMostBox) return format("boxDim[%u] = %u: 1 to 256", d, map.box[d]);
        if (element_strides[d] == 0 || element_strides[d] > kMostElementStride)
            return format("elementStrides[%u] = %u: 1 to 8", d, element_strides[d]);
        if (d > 0 && element_strides[d] != 1)
            return format("elementStrides[%u] = %u: not played", d, element_strides[d]);
        if (d == 0) continue;
        if (stride % 16 || stride >= kMostStride)
            return format("globalStrides[%u] = %llu: a multiple of 16, below 2^40", d - 1, stride);
    }
    const uint32_t row = uint32_t{map.box[0]} * map.element_bytes;
    if (row % 16) return format("boxDim[0] is %u bytes, which is no multiple of 16", row);
    if (map.swizzle_bytes && row > map.swizzle_bytes)
        return format("boxDim[0] is %u bytes, more than the swizzle's %d", row, map.swizzle_bytes);
    return {};
}

CUresult refused(const std::string& why) {
    report("cuTensorMapEncodeTiled: %s", why.c_str());
    return CUDA_ERROR_INVALID_VALUE;
}

cudaError_t find_entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
    if (!symbol || !function) return returned(cudaErrorInvalidValue);
    const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    if (!known) report("cudaGetDriverEntryPoint: %s is not played", symbol);
    return cudaSuccess;
}

}  // namespace
}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                        const cuuint64_t* size, const cuuint64_t* strides, const cuuint32_t* box,
                                        const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                        CUtensorMapFloatOOBfill fill) {
    if (card().capability < 90) return refused("the card has no tensor maps");
    if (!to || reinterpret_cast<uint64_t>(to) % 64) return refused("tensorMap is not aligned to 64 bytes");
    if (rank == 0 || rank > kMostRank) return refused(format("tensorRank = %u: 1 to 5", rank));
    if (!size || !box || !element_strides || (rank > 1 && !strides)) return refused("an array is missing");
    TensorMap map;
    map.element_bytes = bytes_of(type);
    if (map.element_bytes == 0) return refused(format("tensorDataType %d: not played", static_cast<int>(type)));
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return refused("interleave: not played");
    if (!swizzle_of(swizzle, map.swizzle_bytes))
        return refused(format("swizzle %d: not played", static_cast<int>(swizzle)));
    if (promotion < CU_TENSOR_MAP_L2_PROMOTION_NONE || promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
        return refused("l2Promotion");
    if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) return refused("oobFill: not played");
    if (!address || reinterpret_cast<uint64_t>(address) % 16)
        return refused("globalAddress is not aligned to 16 bytes");
    map.address = reinterpret_cast<uint64_t>(address);
    map.rank = static_cast<uint8_t>(rank);
    for (cuuint32_t d = 0; d < rank; d++) {
        map.size[d] = size[d];
        map.stride[d] = d ? strides[d - 1] : map.element_bytes;
        map.box[d] = static_cast<uint16_t>(std::min<cuuint32_t>(box[d], kMostBox + 1));
    }
    if (const std::string rule = broken_rule(map, element_strides); !rule.empty()) return refused(rule);
    static_assert(sizeof *to == kTensorMapBytes);
    std::memcpy(static_cast<void*>(to), &map, sizeof map);
    return CUDA_SUCCESS;
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                                       unsigned long long, cudaDriverEntryPointQueryResult* result) {
    return find_entry_point(symbol, function, result);
}
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                              cudaDriverEntryPointQueryResult* result) {
    return find_entry_point(symbol, function, result);
}

}  // extern "C"
