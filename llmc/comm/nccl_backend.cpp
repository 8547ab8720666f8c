#include "llmc/comm/backend.h"
namespace llmc {
bool built_with_nccl() { return false; }
std::string gpu_identity() { return ""; }
std::unique_ptr<Backend> make_nccl_backend(Transport&, std::shared_ptr<OperationLog>, std::string) {
    throw Error(ExitCode::bad_flags, "this build has no NCCL");
}
}  // namespace llmc
