// A body's basic blocks, the points where diverged lanes meet again, and the places of its registers.
#pragma once
#include <cstdint>
#include <vector>

#include "dev/virtual_gpu/ptx/text.h"

namespace virtual_gpu {

struct BasicBlock {
    size_t first, last;       // instructions [first, last)
    std::vector<int> next;    // successors: the branch's target, then the following block
    int meet = -1;            // the immediate post-dominator, where lanes that diverge here meet; -1 if at their end
    bool is_meeting = false;  // lanes that diverge somewhere meet here
};

bool is_branch(const Instruction& i);
bool ends_thread(const Instruction& i);  // ret, exit, trap

// Turns a branch to a ret into a ret: lanes that leave early then have ended, and no lane waits for them.
void return_at_once(Body& body);

// Throws Fault if the body does not end with a return.
std::vector<BasicBlock> find_blocks(const Body& body);

struct RegisterFile {
    uint32_t words = 0;       // words of 4 bytes: 32 for a register of up to 32 bits, 64 for one of 64 bits
    uint32_t predicates = 2;  // the first two are the constants false and true
};

// Assigns a place to every register. A register that only one block uses, and writes before it reads, shares its place
// with others of that block, so that the register file of a warp stays in the cache.
RegisterFile place_registers(Body& body, const std::vector<BasicBlock>& blocks);

}  // namespace virtual_gpu
