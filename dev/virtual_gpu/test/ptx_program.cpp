// Builds, runs and repeats small PTX programs (ptx_program.h).
#include "dev/virtual_gpu/test/ptx_program.h"

#include <memory>

#include "dev/virtual_gpu/ptx/counts.h"

namespace virtual_gpu::test {
namespace {

// How values of an operand's kind are named and moved.
struct OperandKind {
    char letter;
    std::string type, reg;
};
const OperandKind kKinds[] = {{'h', "u16", "%h"}, {'w', "u32", "%r"}, {'l', "u64", "%rd2"},
                              {'f', "f32", "%f"}, {'d', "f64", "%d"}, {'p', "", "%p"}};

const OperandKind& kind_of(char letter) {
    return *std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& kind) { return kind.letter == letter; });
}

// Loads operand n from eight bytes at [%rd30].
std::string load_operand(const OperandKind& kind, size_t n) {
    if (kind.letter == 'p') return ptx("ld.global.u32 %r5$1, [%rd30]; setp.ne.s32 %p$1, %r5$1, 0; ", n);
    return ptx("ld.global.$1 $2$3, [%rd30]; ", kind.type, kind.reg, n);
}

}  // namespace

void run_text(const std::string& text, const std::vector<unsigned char>& parameters, const Shape& shape) {
    struct Module {
        std::string text;
        std::vector<std::unique_ptr<Kernel>> kernels;
    };
    auto module = std::make_unique<Module>();
    module->text = text;
    for (size_t at = 0; (at = module->text.find("; ", at)) != std::string::npos;) module->text[++at] = '\n';
    module->kernels = read_module(module->text);
    Launch launch{module->kernels.at(0).get(), {}, {}, shape.dynamic_shared_bytes, parameters};
    std::copy_n(shape.grid, 3, launch.grid);
    std::copy_n(shape.block, 3, launch.block);
    run_grid(launch);
    if (counting()) (void)module.release();  // kept, because counts are written at the end of the process
}

std::vector<uint64_t> run_lane_op(const std::string& opcode, const std::string& kinds,
                                  const std::vector<std::vector<uint64_t>>& operands) {
    constexpr size_t kBlock = 128;
    const size_t count = operands.at(0).size(), blocks = (count + kBlock - 1) / kBlock, padded = blocks * kBlock;
    std::vector<uint64_t> inputs;
    for (const auto& operand : operands) {
        inputs.insert(inputs.end(), operand.begin(), operand.end());
        inputs.resize((inputs.size() + padded - 1) / padded * padded, 1);
    }
    const Buffer in(inputs), out(std::vector<uint64_t>(padded, 0));
    const OperandKind& result = kind_of(kinds[0]);
    std::string text = element_address(28, 0, 8) + element_address(27, 1, 8), names = result.reg + "9";
    for (size_t n = 0; n < operands.size(); n++) {
        const OperandKind& kind = kind_of(kinds.at(n + 1));
        text += ptx("add.s64 %rd30, %rd27, $1; ", 8 * padded * n) + load_operand(kind, n);
        names += ptx(", $1$2", kind.reg, n);
    }
    text += opcode + " " + names + "; ";
    text += result.letter == 'p' ? "selp.u32 %r10, 1, 0, %p9; st.global.u32 [%rd28], %r10;"
                                 : ptx("st.global.$1 [%rd28], $29;", result.type, result.reg);
    run_snippet(text, {out.address(), in.address()}, threads(kBlock, static_cast<uint32_t>(blocks)));
    std::vector<uint64_t> results = out.read<uint64_t>();
    results.resize(count);
    return results;
}

}  // namespace virtual_gpu::test
