// The table of cards, and the rates that follow from it and from what was measured.
#include "llmc/plan/cards.h"

#include <cctype>

namespace llmc {

// Dense peaks, without 2:4 sparsity, at boost clock. Sources: NVIDIA's data sheets and architecture white papers of
// each product (A100, H100, H200, L4, L40S, RTX A6000, RTX 6000 Ada, DGX B200; GA102, AD102, GB202 and GH100 white
// papers). If only the sparse number is printed, the table has half of it. GeForce cards run tensor cores at half rate
// when they accumulate in FP32, and the table has that rate. RTX PRO cards do not.
//
// The rates of other cards come from other sources:
//   H800, A800        the H100's and A100's, with NVLink at 400 GB/s both ways (philisun.com, tumgag.com)
//   H20, H20-3e, L20  no public data sheet: 148 and 119.5 in BF16 (verl's flops_counter.py), twice that in FP8, and the
//                     memory of github.com/tile-ai/TileOPs #1658 (H20-3e), feifeibear/LLMRoofline and willitrunai.com
//   GeForce 40 and 50 predicted: multiprocessors x boost clock x 512 per clock. This rule also gives the white papers'
//                     165.2 of the RTX 4090 and 209.5 of the RTX 5090. Boost clocks in GHz: RTX 4070 46 x 2.475, 4070
//                     SUPER 56 x 2.475, 4070 Ti 60 x 2.61, 4070 Ti SUPER 66 x 2.61, 4080 76 x 2.505, 4080 SUPER 80 x
//                     2.55, 5060 30 x 2.497, 5060 Ti 36 x 2.572, 5070 48 x 2.512, 5070 Ti 70 x 2.452, 5080 84 x 2.617
//                     (club386.com, pcspecchart.com). FP8 is twice that. cuBLASLt reached 179 in BF16 and 354 in FP8 on
//                     an RTX 4090, but 254 and 774 on an RTX 5090 (github.com/xzwgit/gpu-flops-bench), and 47.0 and
//                     184.6 on an RTX 5060 Ti (QuantumDrizzy/BLACKWALL), so FP8 of the 50 series may have the full rate
//   RTX PRO 6000      503.8 and 1007.6 (hmc-tech.com): 188 multiprocessors x 2.617 GHz x 1024 per clock
//   GB10              predicted: an eighth and a quarter of the DGX Spark's 1,000 TFLOP/s in sparse FP4. 188 were
//                     measured in FP8 (forums.developer.nvidia.com/t/359960)
//   GH200             the GH100's rates (predicted), 96 GB of HBM3
//   GB200, B300       glennklockwood.com's tables: a GPU's share of GB200 NVL72 and of HGX B300
// Their memory, as drivers report it: 94.97 GiB (github.com/antirez/ds4 #431), 44.53 GiB for the L20
// (Tencent-Hunyuan/HunyuanCustom #36), 15.58 GiB for the RTX 4080 SUPER, and 15.45 GiB for the RTX 5060 Ti with 16 GB
// (Luce-Org/lucebox #407). Drivers list the same total for the H20 as for a GH200 and for the H20-3e as for an H200.
// The GB10 has what CUDA finds free on an idle one: 120,632 of 124,610 MiB. The others' is predicted from the share of
// the printed size that similar cards have.
//
// Multiprocessors are those that each product has enabled (the same white papers; hmc-tech.com for the newest cards).
//
// Link rates per direction are half of the data sheets' rates for both directions. SXM boards have NVLink (600, 900 and
// 1800 GB/s in the third, fourth and fifth generation). The others have PCIe x16 (64 GB/s in the fourth and 128 in the
// fifth generation; the RTX 5060 and 5060 Ti have 8 lanes). Bridges join only two or four cards, so a ring of eight
// still crosses PCIe. Data sheets of RTX cards name only the PCIe generation, and the table has the standard's rate.
// Grace superchips have a network between their GPUs: 200 Gb/s for the GB10, and 400 Gb/s for the GH200 480GB, whose
// NVLink-C2C only reaches its own CPU (dnhkng.github.io/posts/gh200-benchmarking).
//
// The last rate is that of a direction between card and host: PCIe x16 of the data sheet's generation, NVLink-C2C for
// Grace superchips, where the two GPUs of a GB200 share one (predicted), and the memory's own rate for the GB10. The
// B300 is assumed to reach its host over PCIe's fifth generation, as the B200 does.
// clang-format off
const GpuSpec kGpus[] = {
    // match                short name     BF16    FP8     GB/s  GiB   SMs  cc  link, GB/s, host GB/s
    {"A100-SXM4-40GB",     "a100-40gb",    312.0,  0,      1555, 39.6, 108, 80, Link::nvlink, 300, 32},
    {"A100-PCIE-40GB",     "a100-40gb-pcie", 312.0, 0,     1555, 39.6, 108, 80, Link::pcie, 32, 32},
    {"A100-SXM4-80GB",     "a100",         312.0,  0,      2039, 79.3, 108, 80, Link::nvlink, 300, 32},
    {"A100 80GB PCIe",     "a100-pcie",    312.0,  0,      1935, 79.3, 108, 80, Link::pcie, 32, 32},
    {"A800-SXM4-80GB",     "a800",         312.0,  0,      2039, 79.3, 108, 80, Link::nvlink, 200, 32},
    {"A800 80GB PCIe",     "a800-pcie",    312.0,  0,      1935, 79.3, 108, 80, Link::pcie, 32, 32},
    {"A40",                "a40",          149.7,  0,      696,  45.0, 84, 86, Link::pcie, 32, 32},
    {"A10",                "a10",          125.0,  0,      600,  22.5, 72, 86, Link::pcie, 32, 32},
    {"RTX A6000",          "a6000",        154.8,  0,      768,  47.5, 84, 86, Link::pcie, 32, 32},
    {"RTX 3090",           "rtx3090",      71.0,   0,      936,  23.7, 82, 86, Link::pcie, 32, 32},
    {"RTX 3090 Ti",        "rtx3090ti",    80.0,   0,      1008, 23.7, 84, 86, Link::pcie, 32, 32},
    {"L4",                 "l4",           121.0,  242.5,  300,  22.2, 58, 89, Link::pcie, 32, 32},
    {"L20",                "l20",          119.5,  239.0,  864,  44.5, 92, 89, Link::pcie, 32, 32},
    {"L40",                "l40",          181.0,  362.0,  864,  44.5, 142, 89, Link::pcie, 32, 32},
    {"L40S",               "l40s",         362.0,  733.0,  864,  44.5, 142, 89, Link::pcie, 32, 32},
    {"RTX 6000 Ada",       "rtx6000ada",   364.2,  728.5,  960,  47.5, 142, 89, Link::pcie, 32, 32},
    {"RTX 4070",           "rtx4070",      58.3,   116.6,  504,  11.6, 46, 89, Link::pcie, 32, 32},
    {"RTX 4070 SUPER",     "rtx4070super", 71.0,   141.9,  504,  11.6, 56, 89, Link::pcie, 32, 32},
    {"RTX 4070 Ti",        "rtx4070ti",    80.2,   160.4,  504,  11.6, 60, 89, Link::pcie, 32, 32},
    {"RTX 4070 Ti SUPER",  "rtx4070tisuper", 88.2, 176.4,  672,  15.5, 66, 89, Link::pcie, 32, 32},
    {"RTX 4080",           "rtx4080",      97.5,   194.9,  717,  15.5, 76, 89, Link::pcie, 32, 32},
    {"RTX 4080 SUPER",     "rtx4080super", 104.4,  208.9,  736,  15.5, 80, 89, Link::pcie, 32, 32},
    {"RTX 4090",           "rtx4090",      165.2,  330.3,  1008, 23.6, 128, 89, Link::pcie, 32, 32},
    {"RTX 4090 D",         "rtx4090d",     147.0,  294.0,  1008, 23.6, 114, 89, Link::pcie, 32, 32},
    {"RTX 5090",           "rtx5090",      209.5,  419.0,  1792, 31.4, 170, 120, Link::pcie, 64, 64},
    {"RTX 5080",           "rtx5080",      112.5,  225.1,  960,  15.4, 84, 120, Link::pcie, 64, 64},
    {"RTX 5070 Ti",        "rtx5070ti",    87.9,   175.8,  896,  15.4, 70, 120, Link::pcie, 64, 64},
    {"RTX 5070",           "rtx5070",      61.7,   123.5,  672,  11.5, 48, 120, Link::pcie, 64, 64},
    {"RTX 5060 Ti",        "rtx5060ti",    47.4,   94.8,   448,  15.4, 36, 120, Link::pcie, 32, 32},
    {"RTX 5060",           "rtx5060",      38.4,   76.7,   448,  7.5,  30, 120, Link::pcie, 32, 32},
    {"RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000", 503.8, 1007.6, 1792, 94.9, 188, 120, Link::pcie, 64, 64},
    {"H100 80GB HBM3",     "h100",         989.4,  1978.9, 3352, 79.2, 132, 90, Link::nvlink, 450, 64},
    {"H100 PCIe",          "h100-pcie",    756.4,  1512.9, 2039, 79.2, 114, 90, Link::pcie, 64, 64},
    {"H100 NVL",           "h100-nvl",     835.5,  1671.0, 3938, 93.1, 132, 90, Link::pcie, 64, 64},
    {"H800",               "h800",         989.4,  1978.9, 3352, 79.2, 132, 90, Link::nvlink, 200, 64},
    {"H800 PCIe",          "h800-pcie",    756.4,  1512.9, 2039, 79.2, 114, 90, Link::pcie, 64, 64},
    {"H20",                "h20",          148.0,  296.0,  4000, 95.0, 78, 90, Link::nvlink, 450, 64},
    {"H20-3e",             "h20-3e",       148.0,  296.0,  4800, 139.8, 78, 90, Link::nvlink, 450, 64},
    {"H200",               "h200",         989.4,  1978.9, 4800, 139.8, 132, 90, Link::nvlink, 450, 64},
    {"H200 NVL",           "h200-nvl",     835.5,  1671.0, 4800, 139.8, 132, 90, Link::pcie, 64, 64},
    {"GH200 480GB",        "gh200",        989.4,  1978.9, 4000, 94.5, 132, 90, Link::network, 50, 450},
    {"GB10",               "gb10",         125.0,  250.0,  273,  117.8, 48, 121, Link::network, 25, 273, true},
    {"B200",               "b200",         2250.0, 4500.0, 8000, 178.4, 148, 100, Link::nvlink, 900, 64},
    {"GB200",              "gb200",        2500.0, 5000.0, 8000, 184.2, 148, 100, Link::nvlink, 900, 225},
    {"B300",               "b300",         2250.0, 4500.0, 8000, 267.4, 148, 103, Link::nvlink, 900, 64},
};
// clang-format on

static std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// True when `part` occurs in `text` between word boundaries: "l4" is in "nvidia l4", not in "nvidia l40s".
static bool contains_words(const std::string& text, const std::string& part) {
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        const size_t end = at + part.size();
        const bool starts = at == 0 || !is_word(text[at - 1]);
        const bool ends = end == text.size() || !is_word(text[end]);
        if (starts && ends) return true;
    }
    return false;
}

// "NVIDIA H100-PCIe" -> "h100pcie": what is left when spelling habits are removed.
static std::string bare(std::string_view name) {
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

// The share of the data sheet's peak that large products and streaming kernels reach. Products: 790 of 989.4 TFLOP/s in
// BF16 and 1450 of 1978.9 in FP8, the median of five measurements on an H100 (cuBLASLt 13.1, 2026-11-26 and
// 27: 781 to 803, and 1404 to 1500). Published for older versions are 750 and 1350. Memory: 4.2 of 4.8
// TB/s, published for an H200. Other cards are assumed to reach the same shares.
constexpr double kProductFraction = 790.0 / 989.4;
constexpr double kFp8ProductFraction = 1450.0 / 1978.9;
constexpr double kBandwidthFraction = 4200.0 / 4800.0;

// The share of a link's data-sheet rate that NCCL reaches with large messages. NVLink: 350 of an H100's 450 GB/s, as in
// public estimates. PCIe: the middle of the only published range, 35 to 45 of 64 GB/s between eight H100 PCIe. Other
// cards are assumed to reach the same shares. That is too high for GeForce cards, which can only exchange data through
// host memory.
constexpr double kNvlinkFraction = 350.0 / 450;
constexpr double kPcieFraction = 40.0 / 64;

// The share of the host link's rate that copies of pinned memory reach in one direction: 25 GB/s of an A100's 32
// (forums.developer.nvidia.com/t/352186) and 346 of a GH200's 450 (github.com/NVIDIA/nvbandwidth #23). In both
// directions at once the A100 copied 35 GB/s in all. Kernels of an H100 read 35 of 64 GB/s from host memory
// (nvbandwidth #24). Other cards are assumed to reach the same shares.
constexpr double kHostFraction = 25.0 / 32, kBothFraction = 35.0 / 32, kKernelHostFraction = 35.0 / 64;

constexpr double kAssumedLink = 32;  // GB/s of a card that is not in the table: PCIe's fourth generation, x16

// The share of a card's link rate that collectives reach. A network counts at its line rate, as kNicRate does.
static double link_share(Link link) {
    return link == Link::nvlink ? kNvlinkFraction : link == Link::pcie ? kPcieFraction : 1;
}

static double link_gbs(const GpuSpec& gpu) { return gpu.link_gbs * link_share(gpu.link); }

static bool knows(const MeasuredRates& measured, const char* name) { return measured.rates.count(name) > 0; }

// The measured rate in units of 1e9 bytes, or 1e12 FLOPs for products; `otherwise` if it was not measured.
static double rate(const MeasuredRates& measured, const std::string& name, double otherwise) {
    const auto found = measured.rates.find(name);
    return found == measured.rates.end() ? otherwise : found->second / (is_of_products(name) ? 1e12 : 1e9);
}

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

CardRates::CardRates(const GpuSpec& gpu, const MeasuredRates& measured)
    : bf16_tflops(rate(measured, "bf16", gpu.bf16_tflops * kProductFraction)),
      fp8_tflops(rate(measured, "fp8", gpu.fp8_tflops * kFp8ProductFraction)),
      peak_tflops(rate(measured, "bf16", 0) > 0 ? bf16_tflops / kProductFraction : gpu.bf16_tflops),
      bandwidth_gbs(rate(measured, "copy", gpu.bandwidth_gbs * kBandwidthFraction)),
      all_gather_gbs(rate(measured, "all_gather", link_gbs(gpu))),
      reduce_scatter_gbs(rate(measured, "reduce_scatter", link_gbs(gpu))),
      host_gbs(gpu.host_gbs * kHostFraction),
      host_both_gbs(gpu.host_gbs * kBothFraction),
      host_kernel_gbs(gpu.host_gbs * kKernelHostFraction) {}

std::string describe_rates(const MeasuredRates& measured, bool has_fp8) {
    std::string here, table;
    const auto add = [&](const char* name, const char* what) {
        std::string& text = knows(measured, name) ? here : table;
        text += (text.empty() ? "" : ", ") + std::string(what);
    };
    add("bf16", "matmuls in bf16");
    if (has_fp8) add("fp8", "matmuls in fp8");
    add("copy", "memory");
    if (here.empty()) return "Rates: built-in table for this card, not measured here.";
    return fmt::format("Measured on this kind of card ({}): {}.", measured.date, here) +
           (table.empty() ? "" : " From the table of cards: " + table + ".");
}

std::string describe_links(const GpuSpec& gpu, const MeasuredRates& measured) {
    const CardRates rates(gpu, measured);
    const std::string rest = fmt::format(
        "between nodes a NIC of {:.0f} GB/s for every GPU; the lowest latencies of NCCL's own model of a ring",
        kNicRate / 1e9);
    if (knows(measured, "all_gather") && knows(measured, "reduce_scatter"))
        return fmt::format(
                   "Links were measured on this kind of card ({}): all_gather {:.3g} GB/s, reduce_scatter "
                   "{:.3g} GB/s per rank, in nodes of {} GPUs; the rest is assumed: ",
                   measured.date, rates.all_gather_gbs, rates.reduce_scatter_gbs, kNodeGpus) +
               rest;
    if (gpu.link == Link::network)
        return fmt::format(
            "Links are assumed: a network of {:.0f} GB/s a direction for every GPU; the lowest latencies of NCCL's own "
            "model of a ring",
            gpu.link_gbs);
    return fmt::format("Links are assumed: {} at {:.0f} GB/s a direction ({:.0f} % of {:.0f}) in nodes of {} GPUs; ",
                       gpu.link == Link::nvlink ? "NVLink" : "PCIe", link_gbs(gpu), link_gbs(gpu) / gpu.link_gbs * 100,
                       gpu.link_gbs, kNodeGpus) +
           rest;
}

std::optional<GpuSpec> measured_card(const DeviceInfo& device, const MeasuredRates& measured) {
    if (!knows(measured, "bf16") || !knows(measured, "copy")) return std::nullopt;
    return GpuSpec{device.name,
                   "",
                   rate(measured, "bf16", 0),
                   rate(measured, "fp8", 0),
                   rate(measured, "copy", 0),
                   static_cast<double>(device.total_memory) / (size_t{1} << 30),
                   device.multiprocessors,
                   device.compute_capability,
                   Link::pcie,
                   kAssumedLink,
                   kAssumedLink};
}

}  // namespace llmc
