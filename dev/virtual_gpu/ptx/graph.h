// A body's basic blocks, where diverged lanes meet again, and where its registers lie.
#pragma once
#include <cstdint>
#include <vector>

#include "dev/virtual_gpu/ptx/text.h"

namespace virtual_gpu {

struct BasicBlock {
    size_t first, last;       // instructions [first, last)
    std::vector<int> next;    // blocks: the branch's target, then the one behind it
    int meet = -1;            // the immediate post-dominator: where lanes that part here meet; -1: at their end
    bool is_meeting = false;  // of lanes that part somewhere
};

bool is_branch(const Instruction& i);
bool ends_thread(const Instruction& i);  // ret, exit, trap

// A branch to a ret becomes one: lanes that leave early have ended then, and nobody waits for them.
void return_at_once(Body& body);

// Throws Fault for a body that falls off its end.
std::vector<BasicBlock> find_blocks(const Body& body);

struct RegisterFile {
    uint32_t words = 0;       // of 4 bytes: 32 a register of up to 32 bits, 64 one of 64
    uint32_t predicates = 2;  // the first two are the constants false and true
};

// Gives every register its place. One that a single block alone names, and writes before it reads, shares its place
// with others of that block: so the file of a warp stays in the cache.
RegisterFile place_registers(Body& body, const std::vector<BasicBlock>& blocks);

}  // namespace virtual_gpu
