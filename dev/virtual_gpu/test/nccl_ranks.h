// Test cases that run as several ranks: the test starts its own program again, once per rank, with itself as the only
// test case. So each rank is a fresh process.
//
//   TEST_CASE("nccl: something") {
//       if (!is_rank()) return expect_success(run_ranks(2));
//       ...  // what each rank does, with CHECK
//   }
//
// Names of such cases must not contain a comma, which would end a filter.
#pragma once
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "dev/virtual_gpu/test/child.h"

namespace virtual_gpu::test {

// Runs the ranks of the current test case, with a card each and the streams in plain order.
std::vector<Child> run_ranks(int ranks, const Variables& all = {}, const std::map<int, Variables>& of_rank = {});
void expect_success(const std::vector<Child>& ended);

// For use in such a process:
bool is_rank();
int rank();
int ranks();
ncclUniqueId unique_id(int which);  // one of kIds, the same on all ranks
constexpr int kIds = 8;
ncclComm_t communicator(int which = 0, int nranks = ranks(), int as = rank());  // on card `rank`

ncclResult_t await_error(ncclComm_t comm);  // an asynchronous error; ncclSuccess if none came

template <class T>
class Array {  // in device memory
public:
    explicit Array(size_t n) : n_(n) {
        void* p = nullptr;
        REQUIRE(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess);
        p_ = static_cast<T*>(p);
    }
    explicit Array(const std::vector<T>& values) : Array(values.size()) {
        REQUIRE(cudaMemcpy(p_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // a copy from pageable memory may end after the call
    }
    ~Array() { cudaFree(p_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    T* get() const { return p_; }
    T* at(size_t i) const { return p_ + i; }
    std::vector<T> values() const {
        std::vector<T> result(n_);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        REQUIRE(cudaMemcpy(result.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
        return result;
    }

private:
    size_t n_;
    T* p_ = nullptr;
};

cudaStream_t new_stream();  // a stream of the current device

}  // namespace virtual_gpu::test
