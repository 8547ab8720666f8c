// What goes wrong on purpose: VIRTUAL_GPU_FAULT=KIND[:WHERE][,KIND[:WHERE]...]. What each kind does, and where:
// README.md of cuda/ and nccl/. A kind that does not exist and a WHERE that its kind does not have end the process.
#pragma once
#include <cstdint>
#include <string>

namespace virtual_gpu {

// Of a fault that hits one of many: which, from 1 on; 1 where it is not said, 0 where no such fault is planned.
long planned_fault(const char* kind);

// Of a fault that stays: whether it hits all that has this name, of which WHERE is a part.
bool lies(const char* kind, const std::string& name);

// Of a fault of products: whether it hits the shape that came as the `shape`-th, or whose description WHERE is a part
// of, with this algorithm; wrong-workspace: with an algorithm that takes so many MiB.
bool lies(const char* kind, uint64_t shape, const std::string& description, int algorithm);

// For what differs from run to run: counts, from another number in each process.
uint64_t unsteady_number();

}  // namespace virtual_gpu
