// The energy counter and the sensors of a card, read through a library that stands in for NVML.
#include "llmc/log/card_meter.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// Compiles NVML's stand-in: its counter is in the file ENERGY, in millijoules, and cards other than 3b:00.0 are
// unknown.
struct FakeNvml {
    fs::path path = fs::temp_directory_path() / ("llmc_card_meter_" + std::to_string(::getpid()));

    explicit FakeNvml(const std::string& flags = "") {
        fs::remove_all(path);
        fs::create_directories(path);
        std::ofstream(path / "nvml.c") << R"(#include <stdio.h>
            #include <string.h>
            int nvmlInit_v2(void) { return INIT; }
            int nvmlShutdown(void) { return 0; }
            int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
                *device = device;
                return strcmp(id, "00000000:3b:00.0") != 0;
            }
            #ifndef OLD
            int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
                FILE* file = fopen(ENERGY, "r");
                const int read = file && fscanf(file, "%llu", millijoules) == 1;
                if (file) fclose(file);
                return device == NULL || !read;
            }
            int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
                *mhz = 1980;
                return device == NULL || kind != 1;
            }
            #endif
            #ifdef SENSOR
            int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
                static unsigned read = 60;
                *celsius = ++read;
                return device == NULL || sensor != 0 || SENSOR;
            }
            #endif
        )";
        const std::string command =
            "gcc -shared -fPIC " + flags + (flags.find("INIT") == flags.npos ? " -DINIT=0" : "") + " -DENERGY='\"" +
            (path / "energy").string() + "\"' " + (path / "nvml.c").string() + " -o " + library();
        REQUIRE(std::system(command.c_str()) == 0);
        set(1000000);
    }
    ~FakeNvml() { fs::remove_all(path); }

    std::string library() const { return (path / "libnvidia-ml.so.1").string(); }
    void set(unsigned long long millijoules) const { std::ofstream(path / "energy") << millijoules; }
};

constexpr char kCard[] = "00000000:3b:00.0";

bool is_unknown(const CardReading& energy) { return std::isnan(energy.joules) && std::isnan(energy.watts); }

}  // namespace

TEST_CASE("card meter: joules and watts since the last reading") {
    const FakeNvml nvml;
    CardMeter meter(kCard, nvml.library().c_str());
    const auto begin = std::chrono::steady_clock::now();
    CHECK(is_unknown(meter.since_last()));
    nvml.set(1002500);
    ::usleep(20000);
    const CardReading energy = meter.since_last();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    CHECK(energy.joules == doctest::Approx(2.5));
    CHECK(energy.watts >= 2.5 / seconds);
    CHECK(energy.watts <= 2.5 / 0.02);
    nvml.set(7);  // the driver was loaded again
    CHECK(is_unknown(meter.since_last()));
    nvml.set(1007);
    CHECK(meter.since_last().joules == doctest::Approx(1));
    fs::remove(nvml.path / "energy");  // a card that gives no reading
    CHECK(is_unknown(meter.since_last()));
    nvml.set(2007);
    CHECK(is_unknown(meter.since_last()));
    CHECK(meter.since_last().joules == 0);
}

TEST_CASE("card meter: no values without a card, without NVML, or with an old NVML") {
    const auto unknown = [](const char* card, const std::string& library) {
        CardMeter meter(card, library.c_str());
        meter.since_last();
        return is_unknown(meter.since_last());
    };
    {
        const FakeNvml nvml;
        CHECK(!unknown(kCard, nvml.library()));
        CHECK(unknown("", nvml.library()));
        CHECK(unknown("00000000:01:00.0", nvml.library()));
        CHECK(unknown(kCard, (nvml.path / "nowhere.so").string()));
        CHECK(unknown(kCard, (nvml.path / "nvml.c").string()));
    }
    CHECK(unknown(kCard, FakeNvml("-DOLD").library()));
    CHECK(unknown(kCard, FakeNvml("-DINIT=9").library()));
}

TEST_CASE("card meter: clock and temperature, at most once a second") {
    {
        const FakeNvml nvml("-DSENSOR=0");
        CardMeter meter(kCard, nvml.library().c_str());
        for (int i = 0; i < 2; i++) {
            const CardReading reading = meter.since_last();
            CHECK(reading.sm_clock_mhz == 1980);
            CHECK(reading.temperature_c == 61);
        }
    }
    for (const char* flags : {"", "-DSENSOR=9"}) {  // no such function, or no such sensor
        const FakeNvml nvml(flags);
        const CardReading reading = CardMeter(kCard, nvml.library().c_str()).since_last();
        CHECK(reading.sm_clock_mhz == 1980);
        CHECK(std::isnan(reading.temperature_c));
    }
    CHECK(std::isnan(CardMeter("").since_last().sm_clock_mhz));
}
