// Code that all back-ends share: collectives that one lacks, the query for failures,
// texts from other ranks.
#include "llmc/comm/backend.h"

#include <cstring>

namespace llmc {

void Backend::reduce_scatter(float*, const float*, size_t, stream_t) {
    throw Error(ExitCode::failure, "this back-end has no reduce_scatter; exchange pieces and sum them");
}

void Backend::all_reduce(void*, size_t, ElementType, ReduceOp, stream_t) {
    throw Error(ExitCode::failure, "this back-end has no all_reduce; gather the values and reduce them");
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

}  // namespace llmc
