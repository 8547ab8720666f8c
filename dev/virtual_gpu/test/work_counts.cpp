// The counts of products, copies, fills and collectives in VIRTUAL_GPU_COUNTS.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/counts_file.h"
#include "dev/virtual_gpu/test/lt_call.h"
#include "dev/virtual_gpu/test/nccl_ranks.h"

namespace virtual_gpu::test {

using nlohmann::json;

TEST_CASE("work counts: products and copies and fills") {
    if (!is_child()) {
        const CountsFile file;
        expect_child({{"VIRTUAL_GPU_COUNTS", file.path()}});
        const json product = file.lines("product").at(0);
        CHECK(product["launches"] == 2);
        CHECK(product["m"] == 32);
        CHECK(product["n"] == 48);
        CHECK(product["k"] == 64);
        CHECK(product["types"] == json::array({"bf16", "bf16", "fp32"}));
        CHECK(product["transposed"] == json::array({true, false}));
        CHECK(product["reads_c"] == false);
        const json fill = file.lines("fill").at(0);
        CHECK(fill["bytes"] == 4096);
        CHECK(fill["launches"] == 3);
        bool found = false;
        for (const json& copy : file.lines("copy"))
            found |= copy["bytes"] == 4096 && copy["copy"] == "host memory" && copy["from"] == "device memory" &&
                     copy["launches"] == 1;
        CHECK(found);
        return;
    }
    LtMatrix a = lt_matrix(CUDA_R_16BF, 64, 32, 1), b = lt_matrix(CUDA_R_16BF, 64, 48, 2),
             d = lt_matrix(CUDA_R_32F, 32, 48, 3);
    {
        LtCall call(a, b, d, true, false);
        CHECK(call.find() == CUBLAS_STATUS_SUCCESS);
        for (int i = 0; i < 2; i++) CHECK(call.run() == CUBLAS_STATUS_SUCCESS);
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
    }
    void* memory = nullptr;
    CHECK(cudaMalloc(&memory, 4096) == cudaSuccess);
    for (int i = 0; i < 3; i++) CHECK(cudaMemset(memory, i, 4096) == cudaSuccess);
    std::vector<char> host(4096);
    CHECK(cudaMemcpy(host.data(), memory, host.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(host[4095] == 2);
    cudaFree(memory);
    lt_free({a.device, b.device, d.device});
}

TEST_CASE("work counts: the most memory and what is never freed") {
    if (!is_child()) {
        const CountsFile file;
        expect_child({{"VIRTUAL_GPU_COUNTS", file.path()}});
        const std::vector<json> lines = file.lines("memory");
        CHECK(lines.at(0) == json{{"memory", "device"}, {"most", 3000}, {"left", 2000}});
        CHECK(lines.at(1) == json{{"memory", "pinned"}, {"most", 500}, {"left", 300}});
        return;
    }
    void *freed = nullptr, *kept = nullptr;
    CHECK(cudaMalloc(&freed, 1000) == cudaSuccess);
    CHECK(cudaMalloc(&kept, 2000) == cudaSuccess);
    CHECK(cudaMemset(kept, 0, 2000) == cudaSuccess);  // counts are written if the card has worked
    CHECK(cudaFree(freed) == cudaSuccess);
    CHECK(cudaMallocHost(&freed, 200) == cudaSuccess);
    CHECK(cudaHostAlloc(&kept, 300, cudaHostAllocDefault) == cudaSuccess);
    CHECK(cudaFreeHost(freed) == cudaSuccess);
}

TEST_CASE("work counts: collectives of every rank") {
    if (!is_rank()) {
        const CountsFile file;
        expect_success(run_ranks(2, {{"VIRTUAL_GPU_COUNTS", file.path()}}));
        const std::vector<json> calls = file.lines("collective");
        REQUIRE(calls.size() == 2);  // one line per process
        for (const json& call : calls) {
            CHECK(call["collective"] == "ncclAllGather");
            CHECK(call["sent_bytes"] == 400);
            CHECK(call["received_bytes"] == 800);
            CHECK(call["ranks"] == 2);
            CHECK(call["launches"] == 1);
        }
        return;
    }
    ncclComm_t comm = nullptr;
    CHECK(cudaSetDevice(rank()) == cudaSuccess);
    CHECK(ncclCommInitRank(&comm, ranks(), unique_id(0), rank()) == ncclSuccess);
    void *from = nullptr, *to = nullptr;
    CHECK(cudaMalloc(&from, 400) == cudaSuccess);
    CHECK(cudaMalloc(&to, 800) == cudaSuccess);
    CHECK(cudaMemset(from, 1, 400) == cudaSuccess);
    CHECK(ncclAllGather(from, to, 100, ncclFloat, comm, nullptr) == ncclSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

}  // namespace virtual_gpu::test
