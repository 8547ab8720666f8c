// Code that all back-ends share: the order of NCCL's collectives, the query for failures, and texts from other ranks.
#include "llmc/comm/backend.h"

#include <cstdlib>
#include <cstring>

namespace llmc {

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

CollectiveChain::~CollectiveChain() {
    if (!any_) return;
    try {
        destroy_event(last_);
    } catch (...) {  // the device is already lost and its error reported
    }
}

void CollectiveChain::before(stream_t stream) {
    if (any_) wait(stream, last_);
}

void CollectiveChain::after(stream_t stream) {
    if (!any_) last_ = create_event();
    any_ = true;
    record(last_, stream);
}

}  // namespace llmc
