// Energy that the cards consume, from NVML's energy counter (Volta and later), read once per step. NVML is loaded at
// run time; without it, and on the host device, there are no values.
#pragma once
#include <cmath>
#include <memory>
#include <optional>
#include <string>

namespace llmc {

// Energy and mean power of one step; sums over ranks. NaN if unknown.
struct Energy {
    double joules = NAN, watts = NAN;
};

class EnergyMeter {
public:
    // Reads the calling thread's device, or the card with this PCI bus id ("" reads nothing).
    EnergyMeter();
    explicit EnergyMeter(const std::string& pci_bus_id, const char* library = "libnvidia-ml.so.1");
    ~EnergyMeter();
    EnergyMeter(const EnergyMeter&) = delete;
    EnergyMeter& operator=(const EnergyMeter&) = delete;

    // Energy since the last call; the first call returns NaN. The counter moves about ten times a second, so for
    // shorter steps only the mean over many steps is meaningful.
    Energy since_last();

private:
    struct Nvml;
    struct Reading {
        unsigned long long millijoules;
        double time;  // monotonic_seconds()
    };
    std::optional<Reading> read() const;

    std::unique_ptr<Nvml> nvml_;  // nullptr if nothing can be read
    void* device_ = nullptr;      // nvmlDevice_t
    std::optional<Reading> last_;
};

}  // namespace llmc
