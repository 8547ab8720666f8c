// Tensor maps for TMA, encoded by the driver: hopper.cuh's host side.
#include "llmc/device/keywords.cuh"
#include "llmc/device/runtime.h"

#if LLMC_ON_GPU
#include "llmc/device/cuda_calls.h"
#include "llmc/device/hopper.cuh"

namespace llmc {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, or nullptr if the driver is older than CUDA 12. Asking the runtime for it keeps libcuda out
// of the program's link line.
static EncodeTiled encode_tiled() {
    static const EncodeTiled function = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
        const cudaError_t status =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
        const cudaError_t status =
            cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
        if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) {
            cudaGetLastError();
            found = nullptr;
        }
        return reinterpret_cast<EncodeTiled>(found);
    }();
    return function;
}

bool has_tensor_maps() { return encode_tiled() != nullptr; }

bool is_hopper() {
    static const bool is = device_info().compute_capability == 90 && has_tensor_maps();
    return is;
}

CUtensorMap hopper::tensor_map(const bf16* base, int batches, int rows, size_t columns, int tile_rows) {
    if (!has_tensor_maps())
        throw Error(ExitCode::failure, "the driver cannot encode tensor maps (cuTensorMapEncodeTiled)");
    const cuuint64_t sizes[3] = {columns, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(batches)};
    const cuuint64_t strides[2] = {columns * sizeof(bf16), columns * sizeof(bf16) * static_cast<cuuint64_t>(rows)};
    const cuuint32_t box[3] = {kTileColumns, static_cast<cuuint32_t>(tile_rows), 1}, steps[3] = {1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(base), sizes, strides, box, steps,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        throw Error(ExitCode::failure, "cuTensorMapEncodeTiled failed: error {} for a tensor of {} x {} x {}", result,
                    batches, rows, columns);
    return map;
}

}  // namespace llmc

#else

namespace llmc {
bool has_tensor_maps() { return false; }
bool is_hopper() { return false; }
}  // namespace llmc

#endif
