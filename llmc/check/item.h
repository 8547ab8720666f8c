// What the card check consists of: items, each of which holds one thing that a run will use against a plain counterpart
// on this very card. An item knows nothing of time limits, processes or what follows from it (worker.h, card_check.h).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

// A variant that stands for all of FP8, without which a run can go on in BF16.
constexpr const char* kAllOfFp8 = "fp8";

struct CheckItem {
    // Says what it is and everything that its result depends on, but for the card and the program: results are kept
    // under it. "layernorm_forward bf16 C=768"
    std::string name;
    std::string family;  // "casts", "tensor cores", "kernels", "products": a line of the table
    // The kernel that is left out if this is wrong (kernels/variants.h), or kAllOfFp8; "": nothing takes its place.
    std::string variant;
    // What is wrong, with place, found and expected numbers; "" if all is right. Errors of the device may be thrown.
    std::function<std::string(stream_t)> run;
    // What it reaches a second, where that is worth knowing; 0: it could not be timed.
    std::function<double(stream_t)> rate = {};
};

}  // namespace llmc
