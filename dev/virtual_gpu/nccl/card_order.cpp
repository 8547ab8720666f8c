// The order of launches on a card (card_order.h).
#include "dev/virtual_gpu/nccl/card_order.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>

#include "dev/virtual_gpu/nccl/launch.h"
#include "dev/virtual_gpu/options.h"

namespace virtual_gpu::nccl {
namespace {

struct Issued {
    std::mutex mutex;
    std::list<Launch*> launches;  // those of this process that have not ended
};
Issued& issued() {
    static auto* const one = new Issued;
    return *one;
}

bool order_is_implicit() {
    const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return options().nccl_version >= 22600 && order && std::strcmp(order, "1") == 0;
}

}  // namespace

void CardOrder::issue(Launch& launch) {
    const std::lock_guard lock(issued().mutex);
    issued().launches.push_back(&launch);
}

std::string CardOrder::holds_up(const Launch& launch) {
    static const bool implicit = order_is_implicit();
    const std::lock_guard lock(issued().mutex);
    bool before = true;
    for (const Launch* other : issued().launches) {
        if (other == &launch) {
            before = false;
            continue;
        }
        const bool same = &other->comm() == &launch.comm();
        if (other->comm().device != launch.comm().device) continue;
        if (before && same) return other->name();
        if (implicit ? before && !other->started() : other->started()) return other->name();
    }
    return {};
}

bool CardOrder::oldest(const Launch& launch) {
    const std::lock_guard lock(issued().mutex);
    for (const Launch* other : issued().launches)
        if (&other->comm() == &launch.comm()) return other == &launch;
    return false;
}

void CardOrder::end(Launch& launch) {
    const std::lock_guard lock(issued().mutex);
    issued().launches.remove(&launch);
}

}  // namespace virtual_gpu::nccl
