// Code that all back-ends share: collectives that one lacks, the query for failures, the order of NCCL's collectives,
// texts from other ranks.
#include "llmc/comm/backend.h"

#include <cstdlib>
#include <cstring>

namespace llmc {

void Backend::reduce_scatter(float*, const float*, size_t, stream_t) {
    throw Error(ExitCode::failure, "this back-end has no reduce_scatter; exchange pieces and sum them");
}

void Backend::all_reduce(void*, size_t, ElementType, ReduceOp, stream_t) {
    throw Error(ExitCode::failure, "this back-end has no all_reduce; gather the values and reduce them");
}

bool nccl_keeps_order(int version, const char* order) {
    constexpr int kFirst = 22600;  // NCCL_VERSION_CODE of 2.26
    return version >= kFirst && order && std::atoi(order) != 0;
}

std::string peer_text(const char* data, size_t capacity) {
    std::string text(data, strnlen(data, capacity));
    for (char& c : text)
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
    return text;
}

void BackendList::add(const std::shared_ptr<Backend>& backend) {
    const std::lock_guard lock(mutex_);
    backends_.push_back(backend);
}

std::string BackendList::failure() {
    const std::lock_guard lock(mutex_);
    for (const auto& one : backends_)
        if (const auto backend = one.lock())
            if (std::string found = backend->failure(); !found.empty()) return found;
    return {};
}

void CollectiveChain::before(stream_t stream) {
    if (last_) wait(stream, last_);
}

void CollectiveChain::after(stream_t stream) {
    if (!last_) last_ = create_event();
    record(last_, stream);
}

}  // namespace llmc
