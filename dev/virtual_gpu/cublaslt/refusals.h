// Why cuBLASLt has refused a product, or called a call invalid.
#pragma once
#include <string>

namespace virtual_gpu {

// Of the calling thread's last call that ended so. Printed as well where CUBLASLT_LOG_LEVEL is 1 or more, as cuBLASLt's
// own log is.
const std::string& last_refusal();

}  // namespace virtual_gpu
