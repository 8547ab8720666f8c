// Device names as drivers report them, and the names people type.
#include "llmc/plan/gpu_table.h"

#include <doctest/doctest.h>

#include <set>

using namespace llmc;

namespace {

std::string short_name_of(const char* device) {
    const auto gpu = find_gpu(device);
    return gpu ? gpu->short_name : "(unknown)";
}

}  // namespace

TEST_CASE("gpu table: names that drivers report") {
    CHECK(short_name_of("NVIDIA H100 80GB HBM3") == "h100");
    CHECK(short_name_of("NVIDIA H100 PCIe") == "h100-pcie");
    CHECK(short_name_of("NVIDIA H100 NVL") == "h100-nvl");
    CHECK(short_name_of("NVIDIA H200") == "h200");
    CHECK(short_name_of("NVIDIA H200 NVL") == "h200-nvl");  // the longest match wins
    CHECK(short_name_of("NVIDIA A100-SXM4-40GB") == "a100-40gb");
    CHECK(short_name_of("NVIDIA A100-SXM4-80GB") == "a100");
    CHECK(short_name_of("NVIDIA A100 80GB PCIe") == "a100-pcie");
    CHECK(short_name_of("NVIDIA L4") == "l4");
    CHECK(short_name_of("NVIDIA L40S") == "l40s");
    CHECK(short_name_of("NVIDIA GeForce RTX 3090") == "rtx3090");
    CHECK(short_name_of("NVIDIA GeForce RTX 4090") == "rtx4090");
    CHECK(short_name_of("NVIDIA GeForce RTX 4090 D") == "rtx4090d");
    CHECK(short_name_of("NVIDIA GeForce RTX 5090") == "rtx5090");
    CHECK(short_name_of("NVIDIA RTX A6000") == "a6000");
    CHECK(short_name_of("NVIDIA B200") == "b200");
    CHECK(short_name_of("NVIDIA GB200") == "gb200");
    CHECK(short_name_of("NVIDIA B300 SXM6 AC") == "b300");
    CHECK(short_name_of("NVIDIA GH200 480GB") == "gh200");
    CHECK(short_name_of("NVIDIA GeForce RTX 5080") == "rtx5080");
    CHECK(short_name_of("NVIDIA GeForce RTX 5070") == "rtx5070");
    CHECK(short_name_of("NVIDIA GeForce RTX 5070 Ti") == "rtx5070ti");
    CHECK(short_name_of("NVIDIA GeForce RTX 5060 Ti") == "rtx5060ti");
    CHECK(short_name_of("NVIDIA RTX PRO 6000 Blackwell Workstation Edition") == "rtxpro6000");
}

TEST_CASE("gpu table: look-alikes are unknown") {
    CHECK(short_name_of("NVIDIA GeForce RTX 4090 Laptop GPU") == "(unknown)");
    CHECK(short_name_of("NVIDIA H200 MIG 1g.18gb") == "(unknown)");
    CHECK(short_name_of("NVIDIA RTX A4000") == "(unknown)");  // holds the letters A40
    CHECK(short_name_of("NVIDIA A100X") == "(unknown)");
    CHECK(short_name_of("NVIDIA GB300") == "(unknown)");  // holds the letters B300
    CHECK(short_name_of("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition") == "(unknown)");
    CHECK(short_name_of("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "(unknown)");
    CHECK(short_name_of("NVIDIA GH200 144G HBM3e") == "(unknown)");
    CHECK(short_name_of("Tesla T4") == "(unknown)");
    CHECK(short_name_of("host (2 threads)") == "(unknown)");
    CHECK(short_name_of("") == "(unknown)");
}

TEST_CASE("gpu table: short names in any spelling") {
    CHECK(find_gpu_by_short_name("h200")->short_name == "h200");
    CHECK(find_gpu_by_short_name("H100-PCIe")->short_name == "h100-pcie");
    CHECK(find_gpu_by_short_name("h100 pcie")->short_name == "h100-pcie");
    CHECK(find_gpu_by_short_name("RTX 4090")->short_name == "rtx4090");
    CHECK(find_gpu_by_short_name("NVIDIA H100 80GB HBM3")->short_name == "h100");
    CHECK(find_gpu_by_short_name("GeForce rtx4090")->short_name == "rtx4090");
    CHECK(find_gpu_by_short_name("l4")->short_name == "l4");
    CHECK(!find_gpu_by_short_name("h300"));
    CHECK(!find_gpu_by_short_name(""));
    std::set<std::string> seen;
    for (const std::string& name : gpu_short_names()) {
        CAPTURE(name);
        CHECK(seen.insert(name).second);
        REQUIRE(find_gpu_by_short_name(name));
        CHECK(find_gpu_by_short_name(name)->short_name == name);
    }
}

TEST_CASE("gpu table: numbers are dense and plausible") {
    const GpuSpec h100 = *find_gpu_by_short_name("h100"), h200 = *find_gpu_by_short_name("h200");
    CHECK(h100.bf16_tflops == 989.4);
    CHECK(h100.fp8_tflops == 1978.9);
    CHECK(h100.bandwidth_gbs == doctest::Approx(3350).epsilon(0.001));
    CHECK(h200.bf16_tflops == h100.bf16_tflops);
    CHECK(h200.bandwidth_gbs == 4800);
    CHECK(find_gpu_by_short_name("a100")->fp8_tflops == 0);
    CHECK((h200.link == Link::nvlink && h200.link_gbs == 450));
    CHECK((find_gpu_by_short_name("h100-pcie")->link == Link::pcie));
    for (const std::string& name : gpu_short_names()) {
        CAPTURE(name);
        const GpuSpec gpu = *find_gpu_by_short_name(name);
        // Every FP8 tensor core so far has twice the BF16 rate.
        if (gpu.fp8_tflops > 0) CHECK(gpu.fp8_tflops == doctest::Approx(2 * gpu.bf16_tflops).epsilon(0.015));
        CHECK(gpu.memory_gib > 10);
        CHECK((gpu.link == Link::nvlink ? gpu.link_gbs >= 300 && gpu.link_gbs <= 900
                                        : gpu.link_gbs == 32 || gpu.link_gbs == 64));
        CHECK(gpu.memory_gib < 300);
        CHECK(gpu.bandwidth_gbs >= 300);
        CHECK(gpu.bandwidth_gbs <= 8000);
    }
}
