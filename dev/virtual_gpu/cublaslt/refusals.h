// The reason why cuBLASLt refused a product or called a call invalid.
#pragma once
#include <string>

namespace virtual_gpu {

// The reason from the calling thread's last failed call. It is also printed if CUBLASLT_LOG_LEVEL is 1 or more, like
// cuBLASLt's own log.
const std::string& last_refusal();

}  // namespace virtual_gpu
