// Reads energy counters through NVML, which is loaded at run time.
#include "llmc/log/energy.h"

#include <dlfcn.h>

#include <type_traits>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/device/runtime.h"

namespace llmc {

// The functions of nvml.h that are used. They return 0 on success.
struct EnergyMeter::Nvml {
    void* library;
    int (*init)();
    int (*shutdown)();
    int (*device_by_bus_id)(const char* id, void** device);
    int (*total_energy)(void* device, unsigned long long* millijoules);
};

EnergyMeter::EnergyMeter() : EnergyMeter(device_pci_bus_id()) {}

EnergyMeter::EnergyMeter(const std::string& pci_bus_id, const char* library) {
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
    if (begun && nvml.device_by_bus_id(pci_bus_id.c_str(), &device_) == 0) {
        nvml_ = std::make_unique<Nvml>(nvml);
        return;
    }
    if (begun) nvml.shutdown();
    dlclose(handle);
}

EnergyMeter::~EnergyMeter() {
    if (nvml_ == nullptr) return;
    nvml_->shutdown();
    dlclose(nvml_->library);
}

std::optional<EnergyMeter::Reading> EnergyMeter::read() const {
    Reading reading{0, monotonic_seconds()};
    if (nvml_ == nullptr || nvml_->total_energy(device_, &reading.millijoules) != 0) return std::nullopt;
    return reading;
}

Energy EnergyMeter::since_last() {
    const std::optional<Reading> now = read(), before = std::exchange(last_, now);
    // The counter restarts when the driver is loaded again.
    if (!now || !before || now->millijoules < before->millijoules) return {};
    const double joules = 1e-3 * static_cast<double>(now->millijoules - before->millijoules);
    return {joules, joules / (now->time - before->time)};
}

}  // namespace llmc
