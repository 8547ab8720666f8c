// The speed of cards: peaks from their data sheets, which MFU refers to, and the rates that predictions use. The tuning
// at a run's start measures rates on this card. Without one, a rate is a typical share of the data sheet's peak.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/device/runtime.h"
#include "llmc/linear/tune.h"
#include "llmc/train/config.h"

namespace llmc {

enum class Link { nvlink, pcie, network };

struct GpuSpec {
    std::string match;       // the part of the driver's device name that identifies the card
    std::string short_name;  // for --gpu
    double bf16_tflops;      // dense tensor-core peak with FP32 accumulation; data sheets often print the sparse one
    double fp8_tflops;       // the same for FP8; 0: the card has none
    double bandwidth_gbs;    // memory, 1e9 bytes a second
    double memory_gib;       // as the driver reports it, before anything is allocated
    int multiprocessors;
    int capability;   // compute capability, 90 for 9.0
    Link link;        // what joins all GPUs of a node of eight
    double link_gbs;  // its rate a GPU and direction, 1e9 bytes a second; data sheets often print both directions
    double host_gbs;  // of the link to the host, per direction
    bool shares_memory = false;  // with the host: there is one memory, so a copy in host memory takes the card's
};

// The card with this device name ("NVIDIA H100 80GB HBM3"), by its longest match. Nothing for unknown cards, and for
// laptop, power-limited and MIG variants, whose peaks differ from those of the card that they are named after.
std::optional<GpuSpec> find_gpu(std::string_view device_name);

// The card a user means by "h200", "H100 PCIe" or "rtx4090"; case, spaces and dashes do not matter.
std::optional<GpuSpec> find_gpu_by_short_name(std::string_view name);
std::vector<std::string> gpu_short_names();

// The peak for a run in this precision on this device, for MFU; nothing for unknown cards.
std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision);

// The rates that runs measured on the kind of card that is planned for; empty if no run has measured any.
struct MeasuredRates {
    Rates rates;
    std::string date;  // of the newest rate
};

struct CardRates {
    CardRates(const GpuSpec& gpu, const MeasuredRates& measured);

    double bf16_tflops, fp8_tflops;             // large matrix products
    double peak_tflops;                         // BF16 peak of the tensor cores, in attention
    double bandwidth_gbs;                       // memory, bytes that a copy reads and writes
    double all_gather_gbs, reduce_scatter_gbs;  // per direction, between the GPUs of a node
    double host_gbs, host_both_gbs;  // copies to or from host memory, and in both directions at once, added up
    double host_kernel_gbs;          // kernels that read host memory
};

// Says which rates of products and memory were measured, and which are from the table, in a sentence each.
std::string describe_rates(const MeasuredRates& measured, bool has_fp8);
// A sentence with the rates between GPUs, whether they are measured or assumed, and the assumptions about nodes.
std::string describe_links(const GpuSpec& gpu, const MeasuredRates& measured);

// A card that is not in the table: its measured rates serve as peaks, and its links are assumed to be PCIe. Nothing if
// the rate of BF16 products or of memory is unknown.
std::optional<GpuSpec> measured_card(const DeviceInfo& device, const MeasuredRates& measured);

constexpr int kNodeGpus = 8;
constexpr double kNicRate = 50e9;  // bytes per second and GPU to other nodes: the line rate of a 400 Gb/s NIC

}  // namespace llmc
