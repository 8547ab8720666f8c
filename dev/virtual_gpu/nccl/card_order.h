// Which launches may run on a card at once. A kernel of NCCL waits on the card for those of the other ranks, so another
// rank may be waiting for whatever the kernel blocks.
//
// Launches of one communicator run one after another, as issued. Launches of several communicators run one at a time
// before NCCL 2.26 or if NCCL_LAUNCH_ORDER_IMPLICIT is not 1, in the order in which they reach the heads of their
// streams. The documentation warns of deadlocks ("Using multiple NCCL communicators concurrently"), and this shows
// them. Otherwise each starts when all that the host issued before it have started.
#pragma once
#include <string>

namespace virtual_gpu::nccl {

class Launch;

class CardOrder {
public:
    static void issue(Launch& launch);                  // host thread
    static std::string holds_up(const Launch& launch);  // the launch that it has to wait for; "" if it may start
    static bool oldest(const Launch& launch);           // in its communicator
    static void end(Launch& launch);                    // callable from any thread, also repeatedly
};

}  // namespace virtual_gpu::nccl
