// Starts ranks as processes (nccl_ranks.h).
#include "dev/virtual_gpu/test/nccl_ranks.h"

#include <cstdlib>

namespace virtual_gpu::test {
namespace {

constexpr double kRankLimit = 30;  // seconds until ranks are killed

std::string hexadecimal(const ncclUniqueId& id) {
    std::string text;
    for (const char c : id.internal) {
        text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
        text += "0123456789abcdef"[c & 15];
    }
    return text;
}

int number(const char* name) { return std::atoi(std::getenv(name)); }

}  // namespace

std::vector<Child> run_ranks(int ranks, const Variables& all, const std::map<int, Variables>& of_rank) {
    Variables variables = {{"TEST_NCCL_RANKS", std::to_string(ranks)}, {"VIRTUAL_GPU_DEVICES", std::to_string(ranks)}};
    for (int which = 0; which < kIds; which++) {
        ncclUniqueId id;
        REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
        variables["TEST_NCCL_ID" + std::to_string(which)] = hexadecimal(id);
    }
    for (const auto& [name, value] : all) variables[name] = value;
    std::vector<Variables> processes(static_cast<size_t>(ranks), variables);
    for (int r = 0; r < ranks; r++) processes[static_cast<size_t>(r)]["TEST_NCCL_RANK"] = std::to_string(r);
    for (const auto& [r, own] : of_rank)
        for (const auto& [name, value] : own) processes[static_cast<size_t>(r)][name] = value;
    return run_processes(this_case(), processes, kRankLimit);
}

void expect_success(const std::vector<Child>& ended) {
    for (size_t r = 0; r < ended.size(); r++) {
        CAPTURE(r);
        CAPTURE(ended[r].output);
        CHECK(ended[r].status == 0);
        CHECK(contains(ended[r], "test cases: 1 | 1 passed"));
    }
}

bool is_rank() { return std::getenv("TEST_NCCL_RANK") != nullptr; }
int rank() { return number("TEST_NCCL_RANK"); }
int ranks() { return number("TEST_NCCL_RANKS"); }

ncclUniqueId unique_id(int which) {
    const std::string text = std::getenv(("TEST_NCCL_ID" + std::to_string(which)).c_str());
    ncclUniqueId id;
    for (size_t i = 0; i < sizeof id.internal; i++)
        id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return id;
}

ncclComm_t communicator(int which, int nranks, int as) {
    REQUIRE(cudaSetDevice(rank()) == cudaSuccess);
    ncclComm_t comm = nullptr;
    REQUIRE(ncclCommInitRank(&comm, nranks, unique_id(which), as) == ncclSuccess);
    return comm;
}

ncclResult_t await_error(ncclComm_t comm) {
    ncclResult_t code = ncclSuccess;
    eventually([&] { return ncclCommGetAsyncError(comm, &code) != ncclSuccess || code != ncclSuccess; });
    return code;
}

cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}

}  // namespace virtual_gpu::test
