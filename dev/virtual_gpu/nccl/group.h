// Groups of calls: everything that a thread calls from ncclGroupStart to the matching ncclGroupEnd becomes one launch
// per communicator. A call outside a group forms its own group.
#pragma once
#include "dev/virtual_gpu/nccl/communicator.h"
#include "dev/virtual_gpu/nccl/operation.h"

namespace virtual_gpu::nccl {

void group_start();
void group_end();  // throws Error, also if the group's calls cannot run together
bool in_group();

// Checks a call, then launches it or keeps it for the end of the group. Throws Error.
void enqueue(ncclComm& comm, const Call& call);
// The same for ncclCommInitRank and related calls: waits for the other ranks at the end of the group.
void enqueue_join(ncclComm& comm);

}  // namespace virtual_gpu::nccl
