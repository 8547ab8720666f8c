// Which launches may run on a card at once. A kernel of NCCL waits on the card for those of the other ranks, so
// whatever it keeps from running may be what another rank waits for.
//
// Launches of one communicator run one after another, as issued. Those of several: before NCCL 2.26, and with
// NCCL_LAUNCH_ORDER_IMPLICIT not 1, one at a time, whichever comes first to the head of its streams; the documentation
// warns of deadlocks ("Using multiple NCCL communicators concurrently"), and this shows them. Otherwise each starts
// when all that the host issued before it have.
#pragma once
#include <string>

namespace virtual_gpu::nccl {

class Launch;

class CardOrder {
public:
    static void issue(Launch& launch);                  // host thread
    static std::string holds_up(const Launch& launch);  // the launch that it has to wait for; "": it may start
    static bool oldest(const Launch& launch);           // of its communicator
    static void end(Launch& launch);                    // any thread; may be called again
};

}  // namespace virtual_gpu::nccl
