// Identifies the physical card behind the calling thread's device.
#pragma once
#include <string>

#include "llmc/device/runtime.h"

namespace llmc {

// PCI bus address, for example "00000000:3b:00.0", for libraries other than CUDA's runtime. "" on the host device.
std::string device_pci_bus_id();

// An identity that is unique on its machine: "00000000:3b:00.0 GPU-...". MIG slices of one card share the bus address
// and differ in the UUID. "" on the host device.
inline std::string device_identity() {
    const std::string bus = device_pci_bus_id();
    return bus.empty() ? bus : bus + " " + device_info().uuid;
}

}  // namespace llmc
