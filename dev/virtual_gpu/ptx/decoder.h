// The interface between decode.cpp and decoders of one family of instructions.
#pragma once
#include <string>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/text.h"

namespace virtual_gpu {

class OperandDecoder {
public:
    virtual ~OperandDecoder() = default;
    virtual const Instruction& instruction() const = 0;
    virtual const Operand& operand(size_t n) const = 0;
    // The place of an operand; `kind` is as in LaneOp::operands.
    virtual uint32_t place(const Operand& o, char kind) = 0;
    virtual uint32_t constant(char kind, uint64_t bits) = 0;
    virtual uint64_t bits_of(const std::string& number) const = 0;
    // Decodes the instruction's memory operand into Op::immediate and Op::at[kBase].
    virtual void address(Op& op, const Operand& memory) = 0;
    virtual void need(bool condition, const char* what) const = 0;
    [[noreturn]] virtual void unknown() const = 0;
    virtual Code& code() = 0;

    // Decodes a further memory operand into three words of a list, for address_at().
    void address(std::vector<uint32_t>& list, const Operand& memory);
};

// The address that an OperandDecoder put into a list at `first`.
uint64_t address_at(Warp& w, const std::vector<uint32_t>& list, size_t first, int lane);

Code::Touch touch_of(const Instruction& i, const Body& body);

// Decodes Hopper's families: mbarrier, bulk copies, wgmma and related instructions. Returns false for other
// instructions.
bool decode_hopper(OperandDecoder& decoder, Op& op);

}  // namespace virtual_gpu
