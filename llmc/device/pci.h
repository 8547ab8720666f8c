// Which of the machine's cards a device is, for libraries beside CUDA.
#pragma once
#include <string>

namespace llmc {

// Of the calling thread's device, "00000000:3b:00.0"; "" on the host device.
std::string device_pci_bus_id();

}  // namespace llmc
