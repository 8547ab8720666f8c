// Builds, runs and repeats small PTX programs (ptx_program.h).
#include "test/virtual_gpu/ptx_program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "dev/virtual_gpu/ptx/counts.h"

namespace virtual_gpu::test {
namespace {

// Loads an operand of this kind from eight bytes at [%rd30]; sets `reg` to its register.
std::string load_operand(char kind, const std::string& n, std::string& reg) {
    if (kind == 'p') {
        reg = "%p" + n;
        return "ld.global.u32 %r5" + n + ", [%rd30];\nsetp.ne.s32 " + reg + ", %r5" + n + ", 0;\n";
    }
    const std::string type = kind == 'h'   ? "u16"
                             : kind == 'w' ? "u32"
                             : kind == 'l' ? "u64"
                             : kind == 'f' ? "f32"
                                           : "f64";
    reg = (kind == 'h' ? "%h" : kind == 'w' ? "%r" : kind == 'l' ? "%rd2" : kind == 'f' ? "%f" : "%d") + n;
    return "ld.global." + type + " " + reg + ", [%rd30];\n";
}

std::string store_result(char kind, std::string& reg) {
    reg = kind == 'p'   ? "%p9"
          : kind == 'h' ? "%h9"
          : kind == 'w' ? "%r9"
          : kind == 'l' ? "%rd29"
          : kind == 'f' ? "%f9"
                        : "%d9";
    if (kind == 'p') return "selp.u32 %r10, 1, 0, %p9;\nst.global.u32 [%rd28], %r10;\n";
    const std::string type = kind == 'h'   ? "u16"
                             : kind == 'w' ? "u32"
                             : kind == 'l' ? "u64"
                             : kind == 'f' ? "f32"
                                           : "f64";
    return "st.global." + type + " [%rd28], " + reg + ";\n";
}

}  // namespace

void run_text(const std::string& text, const std::vector<unsigned char>& parameters, const Shape& shape) {
    struct Module {
        std::string text;
        std::vector<std::unique_ptr<Kernel>> kernels;
    };
    auto module = std::make_unique<Module>();
    module->text = text;
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
    std::string loads, names, result, reg;
    const std::string store = store_result(kinds[0], result);
    for (size_t n = 0; n < operands.size(); n++) {
        loads += "add.s64 %rd30, %rd27, " + std::to_string(8 * padded * n) + ";\n";
        loads += load_operand(kinds.at(n + 1), std::to_string(n), reg);
        names += ", " + reg;
    }
    run_snippet(
        element_address(28, 0, 8) + element_address(27, 1, 8) + loads + opcode + " " + result + names + ";\n" + store,
        {out.address(), in.address()}, threads(kBlock, static_cast<uint32_t>(blocks)));
    std::vector<uint64_t> results = out.read<uint64_t>();
    results.resize(count);
    return results;
}

int run_tests_with(const std::string& variable, const std::string& prefix) {
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return -1;
    self[length] = '\0';
    const std::string command = variable + " '" + self + "' --minimal --no-skip --test-case='" + prefix + "*'";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace virtual_gpu::test
