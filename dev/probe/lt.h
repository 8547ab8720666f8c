// cuBLASLt asked directly, for the products that llmc::Matmul does not have, and beside it for those that it has: which
// algorithm the heuristic chooses, or with what status it refuses.
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
    static bool available();       // false on the host device, where nothing below may be called
    static std::string version();  // "13.1.0"; "none" on the host device

    LtDirect();
    ~LtDirect();
    LtDirect(const LtDirect&) = delete;
    LtDirect& operator=(const LtDirect&) = delete;

    // Makes the descriptors and asks the heuristic. Returns the status, "CUBLAS_STATUS_SUCCESS" if the product can run;
    // call() is then the call that said so.
    std::string prepare(const Case& c, const ProductTensors& tensors);
    const std::string& call() const;
    const Algorithm& algorithm() const;
    // Runs what was prepared. Returns the status.
    std::string run(const ProductTensors& tensors, stream_t stream);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace llmc::probe
