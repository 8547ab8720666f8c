// Requests and findings of the card check as JSON, and the file of kept results, which is written under a lock.
#include "llmc/check/findings.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/manifest.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

// ---- values as JSON -------------------------------------------------------------------------------------------------

void to_json(Json& json, const ProductChoice& way) {
    json = Json::object();
    if (!way.algorithm.empty()) json["algorithm"] = way.algorithm;
    if (way.emulated) json["emulated"] = true;
    if (way.separate_bias) json["separate_bias"] = true;
    if (way.workspace) json["workspace"] = *way.workspace;
}
void from_json(const Json& json, ProductChoice& way) {
    way = {json.value("algorithm", ""), json.value("emulated", false), json.value("separate_bias", false)};
    if (json.contains("workspace")) way.workspace = json["workspace"].get<size_t>();
}

static void to_json(Json& json, const Product& p) {
    json = {p.kind, p.type, p.N, p.C, p.OC, p.bias, p.accumulate, p.scaling};
}
static void from_json(const Json& j, Product& p) {
    p = {j.at(0), j.at(1), j.at(2), j.at(3), j.at(4), j.at(5), j.at(6), j.at(7)};
}

void to_json(Json& json, const ProductTrial& trial) {
    json = trial.way;
    if (!trial.problem.empty()) json["problem"] = trial.problem;
    if (trial.ms > 0) json["ms"] = trial.ms;
}
void from_json(const Json& json, ProductTrial& trial) {
    trial = {json.get<ProductChoice>(), json.value("problem", ""), json.value("ms", 0.0)};
}

void to_json(Json& json, const Finding& f) {
    json = {{"family", f.family}, {"right", f.problem.empty()}};
    if (!f.variant.empty()) json["variant"] = f.variant;
    if (!f.problem.empty()) json["problem"] = f.problem;
    json["seconds"] = f.seconds;
    if (!f.trials.empty()) json["ways"] = f.trials;
    if (!f.rates.empty()) json["rates"] = f.rates;
}
void from_json(const Json& json, Finding& f) {
    f = {json.at("family"),
         json.value("variant", ""),
         json.value("problem", ""),
         json.value("seconds", 0.0),
         json.value("ways", std::vector<ProductTrial>()),
         json.value("rates", Rates())};
}

void to_json(Json& json, const CheckRequest& r) {
    json = {{"device", r.device},
            {"run", r.run},
            {"tf32", r.tf32},
            {"fast_accumulation", r.fast_accumulation},
            {"tune", r.tune},
            {"preferred", r.preferred},
            {"item_seconds", r.item_seconds},
            {"found", r.found},
            {"products", r.products}};
}
void from_json(const Json& json, CheckRequest& r) {
    r.device = json.at("device");
    r.run = json.at("run");
    r.tf32 = json.at("tf32");
    r.fast_accumulation = json.at("fast_accumulation");
    r.tune = json.at("tune");
    r.preferred = json.at("preferred");
    r.item_seconds = json.at("item_seconds");
    r.found = json.at("found");
    r.products = json.at("products");
}

// ---- findings and requests ------------------------------------------------------------------------------------------

const ProductTrial* Finding::trial_of(const ProductChoice& way) const {
    const auto trial = std::find_if(trials.begin(), trials.end(), [&](const ProductTrial& t) { return t.way == way; });
    return trial == trials.end() ? nullptr : &*trial;
}

bool is_of_products(const std::string& rate) { return rate == "fp32" || rate == "bf16" || rate == "fp8"; }

Rates rates_of(const Findings& findings) {
    Rates highest;
    for (const auto& [item, finding] : findings)
        for (const auto& [name, rate] : finding.rates) highest[name] = std::max(highest[name], rate);
    return highest;
}

std::string CheckRequest::key(const Product& product) const {
    return Matmul(tf32, fast_accumulation, use.scaling).key(product);
}

std::string CheckRequest::preferred_for(const std::string& key) const {
    const auto algorithm = preferred.find(key);
    return algorithm == preferred.end() ? "" : algorithm->second;
}

// ---- kept results ---------------------------------------------------------------------------------------------------

namespace {

constexpr InputKind kKeptResults = {"results of the card check", "no file at all", ExitCode::failure, 64};

// A process holds this lock while it changes the file. On a file system without locks some results may get lost.
class Lock {
public:
    explicit Lock(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
        if (fd_ >= 0) flock(fd_, LOCK_EX);
    }
    ~Lock() {
        if (fd_ >= 0) close(fd_);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    const int fd_;
};

std::string today() {
    const std::time_t now = std::time(nullptr);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
    return text;
}

}  // namespace

std::string cache_directory() {
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::string(cache) + "/train_gpt";
    if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/train_gpt";
    return "";
}

KeptResults::KeptResults(const std::string& directory, const Json& identity) : identity_(identity) {
    const std::string text = json_text(identity);
    if (!directory.empty()) path_ = directory + fmt::format("/check-{:016x}.json", checksum(text.data(), text.size()));
}

// Returns the file's content, or null if the file belongs to another identity. Throws if there is no such file, or if
// it does not hold an object.
Json KeptResults::read() const {
    if (path_.empty()) return {};
    const Json json = read_json_or_null<Json>(path_, kKeptResults);
    return json.at("identity") == *identity_ ? json : Json();
}

Findings KeptResults::load() const {
    try {
        const Json json = read();
        if (!json.is_null()) return json.at("findings");
    } catch (const std::exception&) {  // treated as missing; it will be written again
    }
    return {};
}

std::string KeptResults::date() const {
    try {
        const Json json = read();
        if (!json.is_null()) return json.at("changed");
    } catch (const std::exception&) {
    }
    return "";
}

std::string KeptResults::add(const Findings& findings) const {
    if (path_.empty()) return "there is no home directory to store them in";
    try {
        std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
        const Lock lock(path_ + ".lock");
        Findings all = load();
        for (const auto& [name, finding] : findings) all[name] = finding;
        const Json json = {{"identity", *identity_}, {"changed", today()}, {"findings", all}};
        write_synced(system_calls(), path_, json_text(json, 1) + "\n");
        return "";
    } catch (const std::exception& error) {
        return error.what();
    }
}

}  // namespace llmc
