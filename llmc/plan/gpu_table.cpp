#include "llmc/plan/gpu_table.h"

#include <cctype>

namespace llmc {
namespace {

// Dense peaks, without 2:4 sparsity, at boost clock. Sources: NVIDIA's data sheets and architecture white papers of
// each product (A100, H100, H200, L4, L40S, RTX A6000, RTX 6000 Ada, DGX B200; GA102, AD102, GB202 and GH100 white
// papers). Where only the sparse number is printed, half of it. GeForce cards run tensor cores at half rate when they
// accumulate in FP32: that rate is the one listed. RTX PRO cards do not.
//
// The youngest cards, whose papers were read where others quote them:
//   RTX PRO 6000      503.8 and 1007.6, as hmc-tech.com has it: 188 multiprocessors x 2.617 GHz x 1024 a clock
//   RTX 5080, 5070    predicted: multiprocessors x boost clock x 512 a clock (84 at 2.617 GHz, 70 at 2.452, 48 at
//   Ti, 5070, 5060 Ti 2.512, 36 at 2.572), which gives the 209.5 of the RTX 5090 too; FP8 twice that. An RTX 5060 Ti
//                     was measured at 47.0 in BF16 and 184.6 in FP8 (github.com/QuantumDrizzy/BLACKWALL): FP8 may
//                     not be halved
//   GH200             the GH100's rates (predicted), 96 GB of HBM3
//   GB200, B300       glennklockwood.com's tables: a GPU's share of GB200 NVL72 and of HGX B300
// Their memory: 94.97 GiB (github.com/antirez/ds4 #431) and, of the RTX 5060 Ti with 16 GB, 15.45 GiB (Luce-Org/lucebox
// #407) as drivers report it; the others' is predicted at the same share of the printed size as that of their like.
//
// Links, a direction: half of what the same data sheets print for both. NVLink of SXM boards (600, 900 and 1800 GB/s in
// the third, fourth and fifth generation); else PCIe x16, 64 GB/s in the fourth and 128 in the fifth. Bridges join two
// cards, or four, so that a ring of eight crosses PCIe all the same. Data sheets of RTX cards name only the PCIe
// generation: the rate is the standard's.
// clang-format off
const GpuSpec kGpus[] = {
    // match                short name     BF16    FP8     GB/s  GiB     link, GB/s
    {"A100-SXM4-40GB",     "a100-40gb",    312.0,  0,      1555, 39.6, Link::nvlink, 300},
    {"A100-PCIE-40GB",     "a100-40gb-pcie", 312.0, 0,     1555, 39.6, Link::pcie, 32},
    {"A100-SXM4-80GB",     "a100",         312.0,  0,      2039, 79.3, Link::nvlink, 300},
    {"A100 80GB PCIe",     "a100-pcie",    312.0,  0,      1935, 79.3, Link::pcie, 32},
    {"A40",                "a40",          149.7,  0,      696,  45.0, Link::pcie, 32},
    {"A10",                "a10",          125.0,  0,      600,  22.5, Link::pcie, 32},
    {"RTX A6000",          "a6000",        154.8,  0,      768,  47.5, Link::pcie, 32},
    {"RTX 3090",           "rtx3090",      71.0,   0,      936,  23.7, Link::pcie, 32},
    {"RTX 3090 Ti",        "rtx3090ti",    80.0,   0,      1008, 23.7, Link::pcie, 32},
    {"L4",                 "l4",           121.0,  242.5,  300,  22.2, Link::pcie, 32},
    {"L40",                "l40",          181.0,  362.0,  864,  44.5, Link::pcie, 32},
    {"L40S",               "l40s",         362.0,  733.0,  864,  44.5, Link::pcie, 32},
    {"RTX 6000 Ada",       "rtx6000ada",   364.2,  728.5,  960,  47.5, Link::pcie, 32},
    {"RTX 4090",           "rtx4090",      165.2,  330.3,  1008, 23.6, Link::pcie, 32},
    {"RTX 4090 D",         "rtx4090d",     147.0,  294.0,  1008, 23.6, Link::pcie, 32},
    {"RTX 5090",           "rtx5090",      209.5,  419.0,  1792, 31.4, Link::pcie, 64},
    {"RTX 5080",           "rtx5080",      112.5,  225.1,  960,  15.4, Link::pcie, 64},
    {"RTX 5070 Ti",        "rtx5070ti",    87.9,   175.8,  896,  15.4, Link::pcie, 64},
    {"RTX 5070",           "rtx5070",      61.7,   123.5,  672,  11.5, Link::pcie, 64},
    {"RTX 5060 Ti",        "rtx5060ti",    47.4,   94.8,   448,  15.4, Link::pcie, 32},
    {"RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000", 503.8, 1007.6, 1792, 94.9, Link::pcie, 64},
    {"H100 80GB HBM3",     "h100",         989.4,  1978.9, 3352, 79.2, Link::nvlink, 450},
    {"H100 PCIe",          "h100-pcie",    756.4,  1512.9, 2039, 79.2, Link::pcie, 64},
    {"H100 NVL",           "h100-nvl",     835.5,  1671.0, 3938, 93.1, Link::pcie, 64},
    {"H200",               "h200",         989.4,  1978.9, 4800, 139.8, Link::nvlink, 450},
    {"H200 NVL",           "h200-nvl",     835.5,  1671.0, 4800, 139.8, Link::pcie, 64},
    {"GH200 480GB",        "gh200",        989.4,  1978.9, 4000, 94.5, Link::nvlink, 450},
    {"B200",               "b200",         2250.0, 4500.0, 8000, 178.4, Link::nvlink, 900},
    {"GB200",              "gb200",        2500.0, 5000.0, 8000, 184.2, Link::nvlink, 900},
    {"B300",               "b300",         2250.0, 4500.0, 8000, 267.4, Link::nvlink, 900},
};
// clang-format on

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// True when `part` occurs in `text` between word boundaries: "l4" is in "nvidia l4", not in "nvidia l40s".
bool contains_words(const std::string& text, const std::string& part) {
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        const size_t end = at + part.size();
        const bool starts = at == 0 || !is_word(text[at - 1]);
        const bool ends = end == text.size() || !is_word(text[end]);
        if (starts && ends) return true;
    }
    return false;
}

// "NVIDIA H100-PCIe" -> "h100pcie": what is left when spelling habits are removed.
std::string bare(std::string_view name) {
    std::string text = lower(name), result;
    for (const char* prefix : {"nvidia", "geforce"}) {
        const size_t at = text.find(prefix);
        if (at != std::string::npos) text.erase(at, std::string(prefix).size());
    }
    for (char c : text) {
        if (is_word(c)) result += c;
    }
    return result;
}

}  // namespace

std::optional<GpuSpec> find_gpu(std::string_view device_name) {
    const std::string name = lower(device_name);
    for (const char* variant : {"laptop", "max-q", "mobile", "mig"}) {
        if (contains_words(name, variant)) return std::nullopt;
    }
    const GpuSpec* best = nullptr;
    for (const GpuSpec& gpu : kGpus) {
        const bool longer = best == nullptr || gpu.match.size() > best->match.size();
        if (longer && contains_words(name, lower(gpu.match))) best = &gpu;
    }
    if (best == nullptr) return std::nullopt;
    return *best;
}

std::optional<GpuSpec> find_gpu_by_short_name(std::string_view name) {
    const std::string wanted = bare(name);
    for (const GpuSpec& gpu : kGpus) {
        if (bare(gpu.short_name) == wanted || bare(gpu.match) == wanted) return gpu;
    }
    return find_gpu(name);  // a full device name is welcome as well
}

std::vector<std::string> gpu_short_names() {
    std::vector<std::string> names;
    for (const GpuSpec& gpu : kGpus) names.push_back(gpu.short_name);
    return names;
}

std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision) {
    const std::optional<GpuSpec> gpu = device.is_host ? std::nullopt : find_gpu(device.name);
    if (!gpu) return std::nullopt;
    return precision == Precision::fp8 ? gpu->fp8_tflops : gpu->bf16_tflops;
}

}  // namespace llmc
