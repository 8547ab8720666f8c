// The table of lane-by-lane instructions (lanes.h).
#include "dev/virtual_gpu/ptx/lanes.h"

#include <algorithm>
#include <unordered_map>

namespace virtual_gpu {
namespace {

std::unordered_map<std::string, LaneOp>& table() {
    static auto* const ops = new std::unordered_map<std::string, LaneOp>;
    return *ops;
}

const std::unordered_map<std::string, LaneOp>& filled_table() {
    static const bool once = [] {
        define_integers();
        define_floats();
        define_conversions();
        return true;
    }();
    (void)once;
    return table();
}

}  // namespace

void define_lane_op(const std::string& opcode, LaneOp op) { table()[opcode] = std::move(op); }

const LaneOp* find_lane_op(std::string_view opcode) {
    const auto found = filled_table().find(std::string(opcode));
    return found == filled_table().end() ? nullptr : &found->second;
}

std::vector<std::string> lane_opcodes() {
    std::vector<std::string> opcodes;
    for (const auto& [opcode, op] : filled_table()) opcodes.push_back(opcode);
    std::sort(opcodes.begin(), opcodes.end());
    return opcodes;
}

}  // namespace virtual_gpu
