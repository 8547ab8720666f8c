// Matches architectures with compute capabilities (gpu_rules.h). Needs no CUDA, so tests run on every machine.
#include "llmc/device/gpu_rules.h"

#include <cctype>
#include <cstdlib>
#include <sstream>

namespace llmc {

static bool runs_on(const std::string& architecture, int capability) {
    const int own = std::atoi(architecture.c_str() + architecture.find('_') + 1);
    if (std::isalpha(static_cast<unsigned char>(architecture.back()))) return capability == own;
    if (architecture.starts_with("compute_")) return capability >= own;
    return capability / 10 == own / 10 && capability >= own;
}

bool has_code_for(const std::string& architectures, int capability) {
    std::istringstream list(architectures);
    for (std::string architecture; list >> architecture;)
        if (runs_on(architecture, capability)) return true;
    return false;
}

std::string gpu_arch_for(int capability) {
    switch (capability / 10) {
        case 8:
            return capability == 89 ? "sm_89" : "sm_80";
        case 9:
            return "sm_90a";
        case 10:
            return "sm_100";
        case 12:
            return "sm_120";
    }
    return capability > 120 ? "all" : "";  // GPUs newer than 12.0 run the PTX of this build
}

std::string no_code_message(const std::string& architectures, const std::string& gpu, int capability) {
    const std::string arch = gpu_arch_for(capability);
    const std::string advice = arch.empty() ? "there is none for it: train_gpt runs on 8.0 to 9.0, 10.0, 12.0 and later"
                                            : "build it for this GPU: make train_gpt GPU_ARCH=" + arch;
    return fmt::format("this build has no code for {} (compute capability {}.{}), only for {}; {}", gpu,
                       capability / 10, capability % 10, architectures, advice);
}

}  // namespace llmc
