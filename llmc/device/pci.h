// Which of the machine's cards the calling thread's device is.
#pragma once
#include <string>

#include "llmc/device/runtime.h"

namespace llmc {

// "00000000:3b:00.0", for libraries beside CUDA; "" on the host device.
std::string device_pci_bus_id();

// Unique in its machine, "00000000:3b:00.0 GPU-...": MIG slices of one card share its bus and differ in their UUID.
// "" on the host device.
inline std::string device_identity() {
    const std::string bus = device_pci_bus_id();
    return bus.empty() ? bus : bus + " " + device_info().uuid;
}

}  // namespace llmc
