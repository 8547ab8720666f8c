// Reads cards through NVML, which is loaded at run time.
#include "llmc/log/card_meter.h"

#include <dlfcn.h>

#include <type_traits>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/device/runtime.h"

namespace llmc {

// The functions of nvml.h that are used. They return 0 on success.
struct CardMeter::Nvml {
    void* library;
    int (*init)();
    int (*shutdown)();
    int (*device_by_bus_id)(const char* id, void** device);
    int (*total_energy)(void* device, unsigned long long* millijoules);
    int (*clock)(void* device, int kind, unsigned* mhz);              // nullptr if this NVML lacks it
    int (*temperature)(void* device, int sensor, unsigned* celsius);  // nullptr if this NVML lacks it
};
constexpr int kSmClock = 1, kGpuSensor = 0;  // NVML_CLOCK_SM, NVML_TEMPERATURE_GPU

CardMeter::CardMeter() : CardMeter(device_pci_bus_id()) {}

CardMeter::CardMeter(const std::string& pci_bus_id, const char* library) {
    void* const handle = pci_bus_id.empty() ? nullptr : dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    const auto find = [handle](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
        return function != nullptr;
    };
    Nvml nvml{};
    nvml.library = handle;
    const bool begun = find(nvml.shutdown, "nvmlShutdown") && find(nvml.init, "nvmlInit_v2") &&
                       find(nvml.device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2") &&
                       find(nvml.total_energy, "nvmlDeviceGetTotalEnergyConsumption") && nvml.init() == 0;
    find(nvml.clock, "nvmlDeviceGetClockInfo");
    find(nvml.temperature, "nvmlDeviceGetTemperature");
    if (begun && nvml.device_by_bus_id(pci_bus_id.c_str(), &device_) == 0) {
        nvml_ = std::make_unique<Nvml>(nvml);
        return;
    }
    if (begun) nvml.shutdown();
    dlclose(handle);
}

CardMeter::~CardMeter() {
    if (nvml_ == nullptr) return;
    nvml_->shutdown();
    dlclose(nvml_->library);
}

CardReading CardMeter::since_last() {
    if (nvml_ == nullptr) return {};
    const double time = monotonic_seconds();
    if (time >= next_sensors_) {
        next_sensors_ = time + 1;
        const auto read = [this](auto function, int which) {
            unsigned value = 0;
            return function != nullptr && function(device_, which, &value) == 0 ? value : NAN;
        };
        sensors_.sm_clock_mhz = read(nvml_->clock, kSmClock);
        sensors_.temperature_c = read(nvml_->temperature, kGpuSensor);
    }
    CardReading reading = sensors_;
    const std::optional<Counter> before = std::exchange(last_, Counter{0, time});
    if (nvml_->total_energy(device_, &last_->millijoules) != 0) last_.reset();
    // The counter restarts when the driver is loaded again.
    if (last_ && before && last_->millijoules >= before->millijoules) {
        reading.joules = 1e-3 * static_cast<double>(last_->millijoules - before->millijoules);
        reading.watts = reading.joules / (last_->time - before->time);
    }
    return reading;
}

}  // namespace llmc
