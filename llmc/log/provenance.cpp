// Asks the compiler, CUDA, cuBLASLt, NCCL, OpenBLAS and oneDNN for their versions. Fingerprints are XXH64 over samples,
// and checksums of master weights on the device.
// build: per device, optimized
#include "llmc/log/provenance.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "llmc/comm/agreement.h"
#include "llmc/device/transfer.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/shard/weights.h"

#if LLMC_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <fstream>
#else
#include <cblas.h>

#include "llmc/linear/products_host.h"
#endif

#ifndef LLMC_VERSION
#define LLMC_VERSION "0.2.0"
#endif

namespace llmc {

extern const char kGitVersion[];  // build/git_version.cpp, which the Makefile writes

static std::string compiler() {
#ifdef __clang__
    return "clang " __clang_version__;
#else
    return "g++ " __VERSION__;
#endif
}

#if LLMC_CUDA

static void add_libraries(Json& versions) {
    versions["cuda"] = dotted_version(CUDART_VERSION, {1000, 10});
    int number = 0;
    if (cudaRuntimeGetVersion(&number) == cudaSuccess) versions["cuda_runtime"] = dotted_version(number, {1000, 10});
    if (cudaDriverGetVersion(&number) == cudaSuccess && number > 0)  // 0: there is no driver
        versions["cuda_of_driver"] = dotted_version(number, {1000, 10});
    std::string driver;
    if (std::ifstream("/sys/module/nvidia/version") >> driver) versions["driver"] = driver;
    versions["cublaslt"] = dotted_version(static_cast<int>(cublasLtGetVersion()), {10000, 100, 1});
    // Present only in runs that have opened it.
    void* const nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    if (!nccl) return;
    const auto nccl_version = reinterpret_cast<int (*)(int*)>(dlsym(nccl, "ncclGetVersion"));
    if (nccl_version && nccl_version(&number) == 0) versions["nccl"] = dotted_version(number, {10000, 100, 1});
    dlclose(nccl);
}

#else

static void add_libraries(Json& versions) {
    versions["openblas"] = openblas_get_config();
    versions["openblas_core"] = openblas_get_corename();
    const std::string onednn = host::OnednnProducts::version();
    if (!onednn.empty()) versions["onednn"] = onednn;
}

#endif

std::string version_number() { return LLMC_VERSION; }

std::string dotted_version(int number, const std::vector<int>& units) {
    std::string text;
    for (const int unit : units) {
        text += (text.empty() ? "" : ".") + std::to_string(number / unit);
        number %= unit;
    }
    return text;
}

Json versions_json() {
    Json versions = {{"train_gpt", version_number()},
                     {"git", std::string(kGitVersion)},
                     {"built_for", LLMC_BUILT_FOR},
                     {"compiler", compiler()}};
    add_libraries(versions);
    return versions;
}

std::string fingerprint_text(uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

void BatchFingerprint::add(const int* tokens, const int* targets, int B, int T, int64_t first) {
    for (int b = 0; b < B; b++) {
        const size_t row = static_cast<size_t>(b) * static_cast<size_t>(T);
        const uint64_t place = static_cast<uint64_t>(first + b);
        const uint64_t head = XXH64(tokens + row, static_cast<size_t>(T) * sizeof(int), place);
        sum_ += XXH64(targets + row + T - 1, sizeof(int), head);
    }
}

template <class Real>
uint64_t weights_fingerprint(const Weights<Real>& weights, void* workspace, stream_t stream) {
    const ShardLayout& layout = weights.layout();
    uint64_t* const sum = static_cast<uint64_t*>(workspace);
    set_bytes(sum, 0, sizeof *sum, stream);
    for (size_t u = 0; u < layout.units(); u++) {
        const ShardLayout::Part slice = layout.slice(u);
        const StateArray masters = weights.slice(u).master;
        for (const ParameterTensor& tensor : layout.table().unit(u).tensors) {
            const ShardLayout::Part part = ShardLayout::overlap(slice, tensor);
            const uint64_t key = XXH64(tensor.name.data(), tensor.name.size(), 0);
            checksum_values(sum, masters.from(part.begin - slice.begin), key, part.begin - tensor.offset, part.count,
                            stream);
        }
    }
    const uint64_t mine = read_back(sum, stream);
    if (!layout.is_sliced()) return mine;
    return sum_over_ranks(weights.comm(), std::vector{mine})[0];
}

template uint64_t weights_fingerprint(const Weights<float>&, void*, stream_t);
template uint64_t weights_fingerprint(const Weights<bf16>&, void*, stream_t);

}  // namespace llmc
