// Which GPUs a build runs on by CUDA's rules of binary compatibility, and the message for other GPUs.
#include "llmc/device/gpu_rules.h"

#include <doctest/doctest.h>

#include <vector>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const std::vector<int> kCapabilities = {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130};

std::vector<int> capabilities_of(const std::string& architectures) {
    std::vector<int> result;
    for (int capability : kCapabilities)
        if (has_code_for(architectures, capability)) result.push_back(capability);
    return result;
}

}  // namespace

TEST_CASE("gpu_rules: code runs on its own generation, with a letter on one capability, PTX on later ones too") {
    using Capabilities = std::vector<int>;
    CHECK(capabilities_of("sm_80") == Capabilities{80, 86, 87, 89});
    CHECK(capabilities_of("sm_89") == Capabilities{89});
    CHECK(capabilities_of("sm_90a") == Capabilities{90});
    CHECK(capabilities_of("sm_100") == Capabilities{100, 103});
    CHECK(capabilities_of("sm_120") == Capabilities{120, 121});
    CHECK(capabilities_of("compute_80") == Capabilities{80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130});
    CHECK(capabilities_of("compute_90a") == Capabilities{90});  // like its code, on one capability only
    CHECK(capabilities_of("sm_80 sm_90a") == Capabilities{80, 86, 87, 89, 90});
    CHECK(capabilities_of("sm_80 sm_89 sm_90a sm_100 sm_120 compute_120") ==
          Capabilities{80, 86, 87, 89, 90, 100, 103, 120, 121, 130});
    CHECK(capabilities_of("") == Capabilities{});
}

TEST_CASE("gpu_rules: the architecture that a GPU is told to build for has code for it") {
    const std::string all = "sm_80 sm_89 sm_90a sm_100 sm_120 compute_120";
    for (int capability : kCapabilities) {
        CAPTURE(capability);
        const std::string arch = gpu_arch_for(capability);
        CHECK(arch.empty() == (capability < 80 || capability == 110));
        if (!arch.empty()) CHECK(has_code_for(arch == "all" ? all : arch, capability));
    }
    CHECK(gpu_arch_for(86) == "sm_80");
    CHECK(gpu_arch_for(89) == "sm_89");  // not sm_80, which would convert to FP8 without the hardware instructions
    CHECK(gpu_arch_for(90) == "sm_90a");
    CHECK(gpu_arch_for(103) == "sm_100");
    CHECK(gpu_arch_for(130) == "all");
}

TEST_CASE("gpu_rules: the message names the GPU, what the build holds, and the command to type") {
    CHECK(no_code_message("sm_90a", "NVIDIA L40S", 89) ==
          "this build has no code for NVIDIA L40S (compute capability 8.9), only for sm_90a; build it for this GPU: "
          "make train_gpt GPU_ARCH=sm_89");
    CHECK(contains(no_code_message("sm_80 sm_90a", "NVIDIA B200", 100), "10.0), only for sm_80 sm_90a; "));
    CHECK(contains(no_code_message("sm_90a", "Tesla T4", 75), "there is none for it: train_gpt runs on 8.0 to 9.0"));
}
