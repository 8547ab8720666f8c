// Runs one case of the probe: fills the operands, makes the product twice, compares with the reference, and times it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dev/probe/lt.h"
#include "dev/probe/operands.h"

namespace llmc::probe {

struct Outcome {
    bool supported = false;
    std::string through;    // "matmul" (llmc::Matmul) or "cublaslt"
    std::string status;     // cuBLASLt's status, or the text of an exception
    std::string call;       // the call that did not succeed
    bool emulated = false;  // Matmul made it from BF16 products
    std::optional<Algorithm> algorithm;
    double error = 0;
    unsigned long long nonfinite = 0;
    bool repeatable = false;         // the second run had the same bits
    std::optional<bool> same_as_lt;  // Matmul and cuBLASLt asked directly had the same bits
    double us = 0, us_warm = 0;      // median with the caches flushed before each run; mean of consecutive runs
    int repeats = 0;

    bool right(const Case& c) const { return supported && nonfinite == 0 && error <= c.error_limit(); }
};

class Runner {
public:
    // Allocates the memory that the largest case needs.
    Runner(const std::vector<Case>& cases, stream_t stream);
    ~Runner();
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;

    Outcome run(const Case& c);

    // For tests: `idle` skips the products, and `tamper` runs after a product to break its result.
    bool idle = false;
    void (*tamper)(void* result, const Product& product, stream_t stream) = nullptr;

private:
    struct Memory {
        void *first = nullptr, *second = nullptr, *result = nullptr, *bias = nullptr, *sweep = nullptr;
        float *first_scales = nullptr, *second_scales = nullptr;
        Summary* summary = nullptr;
        void* staging = nullptr;  // pinned: allocating it for every case would cost more than the case
        size_t sweep_bytes = 0;
    };
    Matmul& matmul_for(const Case& c);
    ProductTensors fill_operands(const Product& p);
    void reset_result(const Product& p);
    void make(const Case& c, const ProductTensors& t, Outcome& outcome);
    Summary summary_of(const Product& p);
    std::vector<double> download(const Product& p, const std::vector<int>& rows, const std::vector<int>& columns);
    void check(const Case& c, const ProductTensors& t, Outcome& outcome);
    void time(const Case& c, const ProductTensors& t, Outcome& outcome);

    stream_t stream_;
    Memory memory_;
    std::unique_ptr<LtDirect> lt_;
    std::map<std::pair<FastAccumulation, Fp8Scaling>, std::unique_ptr<Matmul>> matmuls_;
};

}  // namespace llmc::probe
