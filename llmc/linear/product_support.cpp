// The rules of cuBLASLt's documentation for FP8 products, by card and version.
// build: per device
#include "llmc/linear/product_support.h"

#include <algorithm>

namespace llmc {
namespace {

// From the cuBLAS documentation, "Narrow precision data types usage" and "cublasLtMatmulMatrixScale_t". The versions
// are those of the headers in which the modes appear first; for Blackwell, see the release notes of CUDA 12.8.
struct Row {
    Fp8Scaling scaling;
    const char* what;
    const char* cards;  // that have it
    int first_capability, last_capability;
    size_t version, blackwell_version;
};
constexpr int kAny = 1 << 20;
constexpr Row kRows[] = {
    {Fp8Scaling::tensor, "FP8 matmuls", "GPUs from compute capability 8.9 on (Ada)", 89, kAny, 120000, 120800},
    {Fp8Scaling::block, "FP8 matmuls with one scale per 128 elements", "GPUs of compute capability 9.0 (Hopper)", 90,
     90, 120900, 120900},
    {Fp8Scaling::mx, "FP8 matmuls with MX scales", "GPUs from compute capability 10.0 on (Blackwell)", 100, kAny,
     120800, 120800},
};

const Row& row_of(Fp8Scaling scaling) {
    return *std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.scaling == scaling; });
}

}  // namespace

std::string lt_version_text(size_t version) {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string why_not_native(Fp8Scaling scaling, const LtVersions& versions, int compute_capability) {
    const Row& row = row_of(scaling);
    if (compute_capability < row.first_capability || compute_capability > row.last_capability)
        return fmt::format("cuBLASLt has {} on {}; this one has {}.{}", row.what, row.cards, compute_capability / 10,
                           compute_capability % 10);
    const size_t needed = compute_capability >= 100 ? row.blackwell_version : row.version;
    if (std::min(versions.compiled, versions.loaded) >= needed) return "";
    const std::string cuda = fmt::format("{}.{}", needed / 10000, needed / 100 % 100);
    if (versions.loaded < needed)
        return fmt::format("cuBLASLt has {} on this GPU from CUDA {} on; the library found here is {}", row.what, cuda,
                           lt_version_text(versions.loaded));
    return fmt::format("cuBLASLt has {} on this GPU from CUDA {} on; this program was built with the headers of {}",
                       row.what, cuda, lt_version_text(versions.compiled));
}

void EmulationSizes::cover(const Gemm& g) {
    first = std::max(first, g.first_size());
    second = std::max(second, g.second_size());
}

void EmulationSizes::cover(const Matmul::LinearShape& s) {
    for (const Product::Kind kind : {Product::forward, Product::dgrad, Product::wgrad})
        cover(Gemm({kind, OperandType::e4m3, s.N, s.C, s.OC, false, false}));
}

size_t Matmul::planned_bytes(const std::vector<LinearShape>& shapes, Fp8Scaling scaling, int compute_capability) {
    EmulationSizes room;
    if (scaling != Fp8Scaling::tensor && !why_not_native(scaling, kNewestLt, compute_capability).empty())
        for (const LinearShape& shape : shapes) room.cover(shape);
    return kLtWorkspaceBytes + room.bytes();
}

}  // namespace llmc
