// Which GPUs a build runs on by CUDA's rules of binary compatibility, the message for other GPUs, and the rule for
// requesting shared memory, on cards with 99 and 227 KB per block.
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

namespace {

constexpr size_t KB = 1024;

SharedMemory fresh_kernel(size_t static_bytes, size_t block_limit) {
    return {static_bytes, kSharedWithoutAsking - static_bytes, block_limit};
}

}  // namespace

TEST_CASE("shared memory: static arrays count towards the 48 KB that need no request") {
    const SharedMemory plain = fresh_kernel(0, 227 * KB), with_arrays = fresh_kernel(8 * KB, 227 * KB);
    CHECK(!plain.must_ask(48 * KB));
    CHECK(!with_arrays.must_ask(40 * KB));
    CHECK(plain.must_ask(48 * KB + 16));
    CHECK(with_arrays.must_ask(40 * KB + 16));
}

TEST_CASE("shared memory: a limit is raised, never lowered") {
    const SharedMemory granted_before{KB, 150 * KB, 227 * KB};  // granted to an earlier launch
    for (const size_t bytes : {10 * KB, 149 * KB, 150 * KB}) CHECK(!granted_before.must_ask(bytes));
    CHECK(granted_before.must_ask(150 * KB + 16));
}

TEST_CASE("shared memory: static and dynamic bytes together must fit the card") {
    CHECK(fresh_kernel(8 * KB, 99 * KB).fits(91 * KB));
    CHECK(!fresh_kernel(8 * KB, 99 * KB).fits(91 * KB + 1));
    CHECK(fresh_kernel(8 * KB, 227 * KB).fits(219 * KB));
    CHECK(!fresh_kernel(0, 227 * KB).fits(227 * KB + 1));
}
