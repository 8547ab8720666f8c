// The list of algorithms, the heuristic's proposals, and serialization (algorithms.h).
#include "dev/virtual_gpu/cublaslt/algorithms.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/planned_faults.h"

namespace virtual_gpu {
namespace {

constexpr uint64_t kMagic = 0x7669727475616c32;
constexpr uint64_t kWorkspace = 1 << 20;  // bytes that the first algorithm takes, if the caller allows a workspace

// In the usual order of proposals.
constexpr Way kWays[] = {
    {1, CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_STAGES_64x4, 1, CUBLASLT_REDUCTION_SCHEME_NONE},
    {2, CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_MATMUL_STAGES_64x3, 4, CUBLASLT_REDUCTION_SCHEME_NONE},
    {3, CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_STAGES_64x4, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    {4, CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_STAGES_32x4, 3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    {5, CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_STAGES_64x4, 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE},
};

// The properties on which an algorithm depends: shape, types, layouts, and how results are finished.
using Shape =
    std::tuple<uint64_t, uint64_t, uint64_t, int, int, int, int64_t, int64_t, int64_t, int, int, uint32_t, int, int>;
Shape shape_of(const Product& p) {
    const Operation& o = p.operation;
    return {p.m(),  p.n(),  p.k(),    p.a.type, p.b.type,   p.d.type, p.a.ld,
            p.b.ld, p.d.ld, o.transa, o.transb, o.epilogue, o.a_mode, o.b_mode};
}

// FNV-1a, word by word.
uint64_t fingerprint(const Product& p) {
    uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&](auto... words) { ((hash = (hash ^ static_cast<uint64_t>(words)) * 0x100000001b3), ...); };
    std::apply(add, shape_of(p));
    return hash;
}

// The number of elements along k that stay together: FP8 has scales per 32, and tensor cores take at least eight of the
// other types.
uint64_t unit_of(const Product& p) { return is_fp8(p.a.type) ? 32 : 8; }
uint64_t units_of(const Product& p) { return (p.k() + unit_of(p) - 1) / unit_of(p); }

// Workspace for the parts until they are added up.
uint64_t workspace_of(const Product& p, const Way& way, uint64_t allowed) {
    if (way.splits() > 1) {
        const bool rounds = way.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
        return p.m() * p.n() * static_cast<uint64_t>(way.parts) * (rounds ? bytes_of(p.d.type) : sizeof(float));
    }
    return way.parts == 1 && allowed >= kWorkspace ? kWorkspace : 0;
}

bool has(const Product& p, const Way& way, const Preference& wish) {
    if (way.reduction & ~wish.reductions) return false;
    // COMPUTE_TYPE rounds parts to FP32. FP8 results have scales, which parts do not know.
    if (way.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE && p.d.type != CUDA_R_16BF) return false;
    const auto parts = static_cast<uint64_t>(way.splits() > 1 ? way.parts : std::min(way.parts, 2));
    return units_of(p) >= parts && workspace_of(p, way, wish.workspace) <= wish.workspace;
}

Algorithm algorithm_of(const Product& p, const Way& way, uint64_t workspace, const uint32_t (&alignment)[4]) {
    Algorithm a{kMagic, fingerprint(p), workspace, options().cublas_version, card().capability, {}, way.id};
    std::memcpy(a.alignment, alignment, sizeof alignment);
    return a;
}

}  // namespace

cublasLtMatmulAlgo_t serialized(const Algorithm& algorithm) {
    cublasLtMatmulAlgo_t bytes = {};
    std::memcpy(&bytes, &algorithm, sizeof algorithm);
    return bytes;
}

Algorithm deserialized(const cublasLtMatmulAlgo_t& bytes) {
    Algorithm algorithm;
    std::memcpy(&algorithm, &bytes, sizeof algorithm);
    return algorithm;
}
const Way* way_of(const Algorithm& algorithm) {
    const Way* const way =
        std::find_if(std::begin(kWays), std::end(kWays), [&](const Way& w) { return w.id == algorithm.id; });
    return algorithm.magic == kMagic && way != std::end(kWays) ? way : nullptr;
}

std::vector<Algorithm> proposals(const Product& p, const Preference& wish) {
    std::vector<Algorithm> all;
    for (const Way& way : kWays)
        if (has(p, way, wish))
            all.push_back(algorithm_of(p, way, workspace_of(p, way, wish.workspace), wish.alignment));
    if (options().heuristic == kReversed)
        std::reverse(all.begin(), all.end());
    else
        std::rotate(all.begin(), all.begin() + options().heuristic % static_cast<int>(all.size()), all.end());
    return all;
}

Algorithm default_algorithm(const Product& p) { return algorithm_of(p, kWays[0], 0, Preference{}.alignment); }

cublasStatus_t restore(const cublasLtMatmulAlgo_t& bytes, const Product& p, Algorithm& algorithm, std::string& why) {
    algorithm = deserialized(bytes);
    if (!way_of(algorithm))
        why = "no algorithm";
    else if (algorithm.version != options().cublas_version)
        why = "an algorithm of another version";
    else if (algorithm.shape != fingerprint(p))
        why = "an algorithm of another product";
    if (!why.empty()) return CUBLAS_STATUS_INVALID_VALUE;
    if (algorithm.capability == card().capability) return CUBLAS_STATUS_SUCCESS;
    why = "an algorithm of another compute capability";
    return CUBLAS_STATUS_ARCH_MISMATCH;
}

// OpenBLAS splits a long sum on its own, into parts that never grow along k; their length depends on the core type.
// Here the first part is one unit shorter than the second, so no two algorithms have the same bits on any core type.
std::vector<uint64_t> part_bounds(const Product& p, const Way& way) {
    const uint64_t units = units_of(p), parts = std::min(static_cast<uint64_t>(way.parts), units);
    const uint64_t shorter = units >= 2 * parts ? 1 : 0;
    std::vector<uint64_t> bounds = {0};
    for (uint64_t i = 1; i < parts; i++) bounds.push_back((units * i / parts - shorter) * unit_of(p));
    bounds.push_back(p.k());
    return bounds;
}

std::string describe(const Product& p) {
    const Operation& o = p.operation;
    const auto letter = [](int32_t turned) { return turned == CUBLAS_OP_T ? 'T' : 'N'; };
    const bool tf32 = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    return format("%llux%llux%llu %c%c %s*%s->%s%s", static_cast<unsigned long long>(p.m()),
                  static_cast<unsigned long long>(p.n()), static_cast<unsigned long long>(p.k()), letter(o.transa),
                  letter(o.transb), tf32 ? "tf32" : name_of(p.a.type), tf32 ? "tf32" : name_of(p.b.type),
                  name_of(p.d.type), o.epilogue == CUBLASLT_EPILOGUE_BIAS ? " bias" : "");
}

uint64_t number_of(const Product& p) {
    static std::mutex mutex;
    static auto* const numbers = new std::map<Shape, uint64_t>;
    const std::lock_guard lock(mutex);
    return numbers->try_emplace(shape_of(p), numbers->size() + 1).first->second;
}

}  // namespace virtual_gpu
