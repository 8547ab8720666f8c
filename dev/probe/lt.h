// Calls cuBLASLt directly, for products that llmc::Matmul does not support, and in addition for those that it does:
// which algorithm the heuristic chooses, or with which status it refuses.
#pragma once
#include <memory>
#include <string>

#include "dev/probe/cases.h"

namespace llmc::probe {

struct Algorithm {
    int id = -1, tile = 0, stages = 0, split_k = 0, reduction = 0;
    size_t workspace = 0;
    float waves = 0;
};

class LtDirect {
public:
    static bool available();       // false on the host device, where the functions below must not be called
    static std::string version();  // "13.1.0"; "none" on the host device

    LtDirect();
    ~LtDirect();
    LtDirect(const LtDirect&) = delete;
    LtDirect& operator=(const LtDirect&) = delete;

    // Makes the descriptors and asks the heuristic. Returns "CUBLAS_STATUS_SUCCESS" if the product can run; otherwise
    // the status, and call() names the call that returned it.
    std::string prepare(const Case& c, const ProductTensors& tensors);
    const std::string& call() const;
    const Algorithm& algorithm() const;
    // Runs the prepared product and returns the status.
    std::string run(const ProductTensors& tensors, stream_t stream);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace llmc::probe
