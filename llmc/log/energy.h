// What the cards take from the socket, where their driver counts it: NVML's energy counter (Volta and later), read
// once a step. NVML is looked for at run time; without it, or on the host device, nothing is known.
#pragma once
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

namespace llmc {

// Of one step; sums over ranks. Not a number where it is not known.
struct Energy {
    double joules = NAN, watts = NAN;
};

class EnergyMeter {
public:
    // Of the calling thread's device, or of the card with this id; "": none.
    EnergyMeter();
    explicit EnergyMeter(const std::string& pci_bus_id, const char* library = "libnvidia-ml.so.1");
    ~EnergyMeter();
    EnergyMeter(const EnergyMeter&) = delete;
    EnergyMeter& operator=(const EnergyMeter&) = delete;

    // Since the last call, whatever was done between; the first only begins. The counter moves some ten times a second:
    // of steps much shorter than that only the mean over many says something.
    Energy since_last();

private:
    struct Nvml;
    struct Reading {
        unsigned long long millijoules;
        std::chrono::steady_clock::time_point time;
    };
    std::optional<Reading> read() const;

    std::unique_ptr<Nvml> nvml_;  // null: nothing can be read
    void* device_ = nullptr;      // nvmlDevice_t
    std::optional<Reading> last_;
};

}  // namespace llmc
