#include "llmc/plan/card_rates.h"

#include "llmc/base/error.h"

namespace llmc {
namespace {

// Of the data sheet's peak, what the best public kernels reach on an H200: 750 of 989.4 TFLOP/s in large BF16 products
// (cuBLASLt, power-limited), 1350 of 1978.9 in FP8 ones, 4.2 of 4.8 TB/s in streaming kernels. Other cards are assumed
// to reach the same fractions.
constexpr double kProductFraction = 750.0 / 989.4;
constexpr double kFp8ProductFraction = 1350.0 / 1978.9;
constexpr double kBandwidthFraction = 4200.0 / 4800.0;

// Of a link's data-sheet rate, what NCCL reaches with large messages. NVLink: 350 of an H100's 450 GB/s, as estimates
// in public use; assumed for other cards. PCIe: the middle of the one range that is published, 35 to 45 of 64 GB/s
// between eight H100 PCIe; assumed for other cards, and too high for GeForce cards, which reach each other through host
// memory alone.
constexpr double kNvlinkFraction = 350.0 / 450;
constexpr double kPcieFraction = 40.0 / 64;

constexpr double kAssumedLink = 32;  // GB/s of a card that is in no table: PCIe's fourth generation, x16

double link_gbs(const GpuSpec& gpu) {
    return gpu.link_gbs * (gpu.link == Link::nvlink ? kNvlinkFraction : kPcieFraction);
}

bool knows(const MeasuredRates& measured, const char* name) { return measured.rates.count(name) > 0; }

// In units of 1e9, or 1e12 of products; `otherwise` where it was not measured.
double rate(const MeasuredRates& measured, const std::string& name, double otherwise) {
    const auto found = measured.rates.find(name);
    return found == measured.rates.end() ? otherwise : found->second / (is_of_products(name) ? 1e12 : 1e9);
}

}  // namespace

CardRates::CardRates(const GpuSpec& gpu, const MeasuredRates& measured)
    : bf16_tflops(rate(measured, "bf16", gpu.bf16_tflops * kProductFraction)),
      fp8_tflops(rate(measured, "fp8", gpu.fp8_tflops * kFp8ProductFraction)),
      peak_tflops(rate(measured, "bf16", 0) > 0 ? bf16_tflops / kProductFraction : gpu.bf16_tflops),
      bandwidth_gbs(rate(measured, "copy", gpu.bandwidth_gbs * kBandwidthFraction)),
      all_gather_gbs(rate(measured, "all_gather", link_gbs(gpu))),
      reduce_scatter_gbs(rate(measured, "reduce_scatter", link_gbs(gpu))) {}

std::string describe_rates(const MeasuredRates& measured, bool has_fp8) {
    std::string here, table;
    const auto add = [&](const char* name, const char* what) {
        std::string& text = knows(measured, name) ? here : table;
        text += (text.empty() ? "" : ", ") + std::string(what);
    };
    add("bf16", "matmuls in bf16");
    if (has_fp8) add("fp8", "matmuls in fp8");
    add("copy", "memory");
    if (here.empty()) return "The card's rates are from the table of cards.";
    return strprintf("Measured by the card check on this card (%s): %s.", measured.date.c_str(), here.c_str()) +
           (table.empty() ? "" : " From the table of cards: " + table + ".");
}

std::string describe_links(const GpuSpec& gpu, const MeasuredRates& measured) {
    const CardRates rates(gpu, measured);
    const std::string rest =
        strprintf("between nodes a NIC of %.0f GB/s for every GPU; the lowest latencies of NCCL's own model of a ring",
                  kNicRate / 1e9);
    if (knows(measured, "all_gather") && knows(measured, "reduce_scatter"))
        return strprintf(
                   "Links were measured by the card check on this card (%s): all_gather %.3g GB/s, reduce_scatter %.3g "
                   "GB/s per rank, in nodes of %d GPUs; the rest is assumed: ",
                   measured.date.c_str(), rates.all_gather_gbs, rates.reduce_scatter_gbs, kNodeGpus) +
               rest;
    return strprintf("Links are assumed: %s at %.0f GB/s a direction (%.0f %% of %.0f) in nodes of %d GPUs; ",
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
                   Link::pcie,
                   kAssumedLink};
}

}  // namespace llmc
