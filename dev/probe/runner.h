// Runs one case of the probe: fills the operands, makes the product twice, holds it against the reference, times it.
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
    std::string status;     // cuBLASLt's, or what was thrown
    std::string call;       // the call that had another status than success
    bool emulated = false;  // Matmul made it of BF16 products
    std::optional<Algorithm> algorithm;
    double error = 0;
    unsigned long long nonfinite = 0;
    bool repeatable = false;         // the second run had the same bits
    std::optional<bool> same_as_lt;  // Matmul and cuBLASLt asked directly had the same bits
    double us = 0, us_warm = 0;      // median with the caches swept before each; mean of one after the other
    int repeats = 0;

    bool right(const Case& c) const { return supported && nonfinite == 0 && error <= c.error_limit(); }
};

class Runner {
public:
    // Takes the memory that the largest of the cases needs.
    Runner(const std::vector<Case>& cases, stream_t stream);
    ~Runner();
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;

    Outcome run(const Case& c);

    // For tests: products are not made; and a function called after a product, to break its result.
    bool idle = false;
    void (*tamper)(void* result, const Product& product, stream_t stream) = nullptr;

private:
    struct Memory {
        void *first = nullptr, *second = nullptr, *result = nullptr, *bias = nullptr, *sweep = nullptr;
        float *first_scales = nullptr, *second_scales = nullptr;
        Summary* summary = nullptr;
        void* staging = nullptr;  // page-locked: allocating it for every case would cost more than the case
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
