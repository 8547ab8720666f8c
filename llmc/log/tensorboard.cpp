#include "llmc/log/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/log/metrics.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kPrefix[] = "events.out.tfevents.";

// ---- protocol buffers: a field is its number and wire type, then its value ------------------------------------------

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
}

template <class T>
std::string little_endian(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);  // as this machine has it: GPUs' hosts are little-endian
    return bytes;
}

std::string field(int number, WireType type, const std::string& value) {
    return varint(static_cast<uint64_t>(number << 3 | type)) + (type == kBytes ? varint(value.size()) : "") + value;
}

// tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto
std::string event(int64_t step, const std::string& what) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    return field(1, kFixed64, little_endian(seconds)) + field(2, kVarint, varint(static_cast<uint64_t>(step))) + what;
}

std::string version_event() { return event(0, field(3, kBytes, "brain.Event:2")); }

std::string start_event(int64_t step) {
    constexpr int kStart = 1;
    return event(step, field(7, kBytes, field(1, kVarint, varint(kStart))));  // SessionLog
}

std::string scalars_event(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
    std::string summary;
    for (const auto& [name, value] : scalars)
        summary += field(
            1, kBytes,
            field(1, kBytes, name) + field(2, kFixed32, little_endian(static_cast<float>(value))));  // Summary.Value
    return event(step, field(5, kBytes, summary));
}

// ---- framing -------------------------------------------------------------------------------------------------------

std::string masked_crc(std::string_view data) {
    const uint32_t crc = crc32c(data);
    return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

// TensorBoard reads files in the order of their names, which begin with the time they were made at. Two of one second
// must not change places.
int64_t time_after_others(const std::string& directory) {
    int64_t time = std::time(nullptr);
    for (const fs::directory_entry& entry : fs::directory_iterator(directory))
        if (const std::string name = entry.path().filename().string(); name.starts_with(kPrefix))
            time = std::max<int64_t>(time, std::atoll(name.c_str() + std::strlen(kPrefix)) + 1);
    return time;
}

void add_numbers(std::vector<std::pair<std::string, double>>& scalars, const std::string& prefix,
                 const ordered_json& object) {
    for (const auto& [key, value] : object.items())
        if (const std::optional<double> number = get_number(object, key); number && key != "step")
            scalars.emplace_back(prefix + key, *number);
}

}  // namespace

uint32_t crc32c(std::string_view data) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> made{};
        for (uint32_t byte = 0; byte < made.size(); byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);  // Castagnoli's, reflected
            made[byte] = crc;
        }
        return made;
    }();
    uint32_t crc = ~0u;
    for (const char byte : data) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
    return ~crc;
}

std::vector<std::pair<std::string, double>> scalars_of(const ordered_json& record) {
    std::vector<std::pair<std::string, double>> scalars;
    add_numbers(scalars, "", record);
    if (record.contains("products")) add_numbers(scalars, "products/", record["products"]);
    if (record.contains("fp8"))
        for (const ordered_json& tensor : record["fp8"])
            add_numbers(scalars, "fp8/" + tensor.value("tensor", "") + "/", tensor);
    if (record.contains("fp8_errors"))
        for (const ordered_json& layer : record["fp8_errors"])
            add_numbers(scalars, "fp8/" + layer.value("layer", "") + "/", layer);
    return scalars;
}

TensorBoardFile::TensorBoardFile(const std::string& directory, int64_t purge_step) {
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) fail_to_write(directory, error.value());
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    name_ = strprintf("%s/%s%010lld.%s.%d", directory.c_str(), kPrefix,
                      static_cast<long long>(time_after_others(directory)), host, static_cast<int>(::getpid()));
    file_.reset(std::fopen(name_.c_str(), "wb"));
    if (!file_) fail_to_write(name_, errno);
    write_event(version_event());
    if (purge_step >= 0) write_event(start_event(purge_step));
}

void TensorBoardFile::write(const ordered_json& record) {
    const std::vector<std::pair<std::string, double>> scalars = scalars_of(record);
    if (!scalars.empty()) write_event(scalars_event(record.value("step", int64_t{0}), scalars));
}

void TensorBoardFile::write_event(const std::string& event) {
    const std::string length = little_endian(static_cast<uint64_t>(event.size()));
    const std::string framed = length + masked_crc(length) + event + masked_crc(event);
    errno = 0;
    const bool written =
        std::fwrite(framed.data(), 1, framed.size(), file_.get()) == framed.size() && std::fflush(file_.get()) == 0;
    if (!written) fail_to_write(name_, errno);
}

}  // namespace llmc
