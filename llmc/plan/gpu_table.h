// What common cards can do at most, from their data sheets: the denominator of MFU and the basis of --dry-run
// and --estimate-scaling.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/device/runtime.h"
#include "llmc/train/words.h"

namespace llmc {

enum class Link { nvlink, pcie };

struct GpuSpec {
    std::string match;       // the part of the driver's device name that identifies the card
    std::string short_name;  // for --gpu
    double bf16_tflops;    // dense tensor-core peak with FP32 accumulation; data sheets often print twice this (sparse)
    double fp8_tflops;     // the same for FP8; 0: the card has none
    double bandwidth_gbs;  // memory, 1e9 bytes a second
    double memory_gib;     // as the driver reports it, before anything is allocated
    Link link;             // what joins all GPUs of a node of eight
    double link_gbs;       // its rate a GPU and direction, 1e9 bytes a second; data sheets often print both directions
};

// The card with this device name ("NVIDIA H100 80GB HBM3"), by its longest match. Nothing for unknown cards, and for
// laptop, power-limited and MIG variants, whose peaks differ from those of the card that lends them its name.
std::optional<GpuSpec> find_gpu(std::string_view device_name);

// The card a user means by "h200", "H100 PCIe" or "rtx4090"; case, spaces and dashes do not matter.
std::optional<GpuSpec> find_gpu_by_short_name(std::string_view name);
std::vector<std::string> gpu_short_names();

// Of a run in this precision on this device, for MFU; nothing where it is not known.
std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision);

}  // namespace llmc
