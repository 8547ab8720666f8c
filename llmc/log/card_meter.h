// Reads energy (Volta and later), clock and temperature of the cards with NVML. NVML is loaded at run time; without it,
// and on the host device, there are no values.
#pragma once
#include <cmath>
#include <memory>
#include <optional>
#include <string>

namespace llmc {

// NaN if unknown.
struct CardReading {
    double joules = NAN, watts = NAN;  // energy and mean power since the last reading; sums over ranks
    double sm_clock_mhz = NAN;         // of the slowest card
    double temperature_c = NAN;        // of the hottest card
};

class CardMeter {
public:
    // Reads the calling thread's device, or the card with this PCI bus id ("" reads nothing).
    CardMeter();
    explicit CardMeter(const std::string& pci_bus_id, const char* library = "libnvidia-ml.so.1");
    ~CardMeter();
    CardMeter(CardMeter&&) = delete;

    // The first call returns no energy. The counter moves about ten times a second, so for shorter steps only the mean
    // over many steps is meaningful. Clock and temperature are read at most once a second.
    CardReading since_last();

private:
    struct Nvml;
    struct Counter {
        unsigned long long millijoules;
        double time;  // monotonic_seconds()
    };

    std::unique_ptr<Nvml> nvml_;  // nullptr if nothing can be read
    void* device_ = nullptr;      // nvmlDevice_t
    std::optional<Counter> last_;
    CardReading sensors_;  // without energy
    double next_sensors_ = 0;
};

}  // namespace llmc
