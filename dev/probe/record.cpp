// Turns a case and its outcome into JSON (record.h).
#include "dev/probe/record.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

namespace llmc::probe {
namespace {

using nlohmann::ordered_json;

// The first line of a command's output, or "" if it cannot run.
std::string first_line_of(const char* command) {
    std::string line;
    FILE* pipe = popen(command, "r");
    if (!pipe) return line;
    char text[256];
    if (std::fgets(text, sizeof text, pipe)) line = text;
    pclose(pipe);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    return line;
}

ordered_json rounded(double value) {  // rounds to four digits; no clock here is more precise
    if (!std::isfinite(value)) return nullptr;
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return std::strtod(text, nullptr);
}

ordered_json what_it_is(const Case& c) {
    const Product& p = c.product;
    return {{"case", c.key()},
            {"model", c.model},
            {"layer", c.layer},
            {"product", c.kind()},
            {"types", word_of(p.type)},
            {"N", p.N},
            {"C", p.C},
            {"OC", p.OC},
            {"epilogue", p.bias ? "bias" : "none"},
            {"beta", p.accumulate ? 1 : 0},
            {"mode", c.mode()},
            {"scaling", c.scaling()},
            {"used", c.used}};
}

}  // namespace

ordered_json record_of(const Case& c, const Outcome& o) {
    ordered_json record = what_it_is(c);
    record["through"] = o.through;
    record["supported"] = o.supported;
    record["status"] = o.status;
    if (!o.call.empty()) record["call"] = o.call;
    if (o.emulated) record["emulated"] = true;
    if (o.algorithm) {
        const Algorithm& a = *o.algorithm;
        record["algorithm"] = {{"id", a.id},           {"tile", a.tile},           {"stages", a.stages},
                               {"split_k", a.split_k}, {"reduction", a.reduction}, {"workspace", a.workspace},
                               {"waves", a.waves}};
    }
    if (!o.supported) return record;
    record["right"] = o.right(c);
    record["error"] = rounded(o.error);
    record["error_limit"] = c.error_limit();
    record["nonfinite"] = o.nonfinite;
    record["repeatable"] = o.repeatable;
    if (o.same_as_lt) record["same_as_lt"] = *o.same_as_lt;
    record["us"] = rounded(o.us);
    record["us_warm"] = rounded(o.us_warm);
    record["repeats"] = o.repeats;
    record["tflops"] = rounded(c.flops() / o.us * 1e-6);
    return record;
}

ordered_json failed_record(const Case& c, const std::string& status) {
    ordered_json record = what_it_is(c);
    record["supported"] = nullptr;
    record["status"] = status;
    return record;
}

ordered_json header_of(const std::string& command) {
    const DeviceInfo device = device_info();
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    std::string driver;
    if (!device.is_host) driver = first_line_of("nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1");
    return {{"format", 1},
            {"what", "products of GPT layers: support, error and time"},
            {"date", date},
            {"command", command},
            {"card", device.name},
            {"compute_capability", device.compute_capability},
            {"multiprocessors", device.multiprocessors},
            {"memory_bytes", device.total_memory},
            {"driver", driver},
            {"cublaslt", LtDirect::version()},
            {"measured", !device.is_host}};
}

}  // namespace llmc::probe
