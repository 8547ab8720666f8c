// The rates that predictions go by: what the card check has measured of this very card, where that is known, else what
// is reached of the data sheet's peaks in the table of cards.
#pragma once
#include <optional>
#include <string>

#include "llmc/check/findings.h"
#include "llmc/plan/gpu_table.h"

namespace llmc {

// Of the card that is planned for; nothing where it is not here, or was not checked.
struct MeasuredRates {
    Rates rates;
    std::string date;  // of the newest
};

struct CardRates {
    CardRates(const GpuSpec& gpu, const MeasuredRates& measured);

    double bf16_tflops, fp8_tflops;             // of large products
    double peak_tflops;                         // in BF16: attention reaches a share of it
    double bandwidth_gbs;                       // of memory, read and written
    double all_gather_gbs, reduce_scatter_gbs;  // a direction, between GPUs of a node
};

// Which of a card's products and memory were measured, and which are from the table, a sentence each.
std::string describe_rates(const MeasuredRates& measured, bool has_fp8);
// The rates between GPUs, measured or assumed, with what is assumed of nodes, in a sentence.
std::string describe_links(const GpuSpec& gpu, const MeasuredRates& measured);

// A card that is in no table, as far as its rates were measured: these for peaks, and links assumed to be PCIe's.
// Nothing where too little was measured.
std::optional<GpuSpec> measured_card(const DeviceInfo& device, const MeasuredRates& measured);

constexpr int kNodeGpus = 8;
constexpr double kNicRate = 50e9;  // bytes a second to other nodes: 400 Gb/s, a NIC's line rate, for every GPU

}  // namespace llmc
