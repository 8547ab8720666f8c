// The functions that execute instructions other than lane-by-lane ones. The find_ functions return nullptr for unknown
// kinds.
#pragma once
#include <string_view>

#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

// memory_ops.cpp
Execute find_load(std::string_view type, bool wide, int count);
Execute find_store(std::string_view type, bool wide, int count);
Execute find_atomic(std::string_view operation, std::string_view type);
void load_parameter(Warp&, const Op&);
void pack(Warp&, const Op&);    // mov.b64 d, {a, b}
void unpack(Warp&, const Op&);  // mov.b64 {a, b}, d

// control.cpp
void branch(Warp&, const Op&);
void meet(Warp&, const Op&);
void end_lanes(Warp&, const Op&);
void trap(Warp&, const Op&);
void nothing(Warp&, const Op&);
void barrier(Warp&, const Op&);  // Op::mode: BarrierMode
enum BarrierMode : uint8_t { kSync, kArrive };

// collectives.cpp
void warp_barrier(Warp&, const Op&);
void shuffle(Warp&, const Op&);  // Op::mode: 'u', 'd', 'b' or 'i'
void vote(Warp&, const Op&);     // Op::mode: 'b'allot, an'y', a'l'l, 'u'ni; Op::immediate: 1 negates the operand
void active_mask(Warp&, const Op&);
Execute find_reduction(std::string_view operation, std::string_view type);  // redux.sync

// async_copy.cpp
void async_copy(Warp&, const Op&);
void async_commit(Warp&, const Op&);
// Op::immediate: groups that may remain; -1 waits for all copies, also those in no group.
void async_wait(Warp&, const Op&);

// tensor_core.cpp
void load_matrix(Warp&, const Op&);  // Op::mode: 1 transposed
Execute find_mma(std::string_view opcode);

}  // namespace virtual_gpu
