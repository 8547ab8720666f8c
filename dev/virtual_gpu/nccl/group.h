// Groups of calls: from ncclGroupStart to the ncclGroupEnd that belongs to it, what a thread calls becomes one launch a
// communicator. A call outside of a group is a group of itself.
#pragma once
#include "dev/virtual_gpu/nccl/communicator.h"
#include "dev/virtual_gpu/nccl/operation.h"

namespace virtual_gpu::nccl {

void group_start();
void group_end();  // throws Error, also where the group holds what cannot be together
bool in_group();

// Checks a call and launches it, or keeps it for the group's end. Throws Error.
void enqueue(ncclComm& comm, const Call& call);
// The same for ncclCommInitRank and its relatives: waits for the other ranks, at the group's end.
void enqueue_join(ncclComm& comm);

}  // namespace virtual_gpu::nccl
