// The request of a card check to its worker process, and its findings: as values, and as JSON between processes and in
// the file of kept results.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/check/kernel_checks.h"
#include "llmc/check/product_checks.h"

namespace llmc {

// Measured rates per second, by name: "fp32", "bf16" and "fp8" are FLOPs of products, "copy" counts bytes that a copy
// of memory reads and writes, "all_gather" and "reduce_scatter" count bytes that a rank sends to others.
using Rates = std::map<std::string, double>;
bool is_of_products(const std::string& rate);

struct Finding {
    std::string family, variant;  // those of the CheckItem; empty in a worker's findings
    std::string problem;          // empty if the item is right
    double seconds = 0;
    std::vector<ProductTrial> trials;  // empty unless the item is a product
    Rates rates = {};

    const ProductTrial* trial_of(const ProductChoice& way) const;  // nullptr if this way was not tried
};
using Findings = std::map<std::string, Finding>;  // by the item's name

Rates rates_of(const Findings& findings);  // the highest rate of each name

// The request to check everything that a run will use on one card.
struct CheckRequest {
    int device = 0;
    KernelUse use;    // not in the JSON: the worker derives it from `run`
    std::string run;  // the run's configuration, which the worker's program reads (see check_worker())
    std::vector<Product> products;
    bool tf32 = false;
    FastAccumulation fast_accumulation = FastAccumulation::forward;
    int tune = 8;                                  // number of algorithms per product that are timed; 0 or 1: none
    std::map<std::string, std::string> preferred;  // algorithms to use if they are right, by Matmul::key()
    double item_seconds = 60;                      // an item that takes longer has failed
    Findings found;                                // items that are done, and finished trials of unfinished products

    std::string key(const Product& product) const;            // see Matmul::key()
    std::string preferred_for(const std::string& key) const;  // "" if no algorithm is preferred
};

constexpr const char* kProductFamily = "products";

// nlohmann::json finds these functions by their names.
void to_json(nlohmann::ordered_json& json,
             const ProductChoice& way);  // {algorithm, emulated, separate_bias, workspace}
void from_json(const nlohmann::ordered_json& json, ProductChoice& way);
void to_json(nlohmann::ordered_json& json, const ProductTrial& trial);
void from_json(const nlohmann::ordered_json& json, ProductTrial& trial);
void to_json(nlohmann::ordered_json& json, const Finding& finding);
void from_json(const nlohmann::ordered_json& json, Finding& finding);
void to_json(nlohmann::ordered_json& json, const CheckRequest& request);
void from_json(const nlohmann::ordered_json& json, CheckRequest& request);

// ---- kept results ---------------------------------------------------------------------------------------------------
// Results of card checks are stored from one run to the next: a readable JSON file for each card, driver, set of
// libraries and program. Several processes, and several machines with one home directory, may write at the same time:
// each adds its findings.

// $XDG_CACHE_HOME/train_gpt or ~/.cache/train_gpt; "" without a home directory.
std::string cache_directory();

class KeptResults {
public:
    // `identity` names everything that results depend on besides the items: card, driver, libraries, program. With ""
    // as directory, nothing is stored.
    KeptResults(const std::string& directory, const nlohmann::ordered_json& identity);

    const std::string& path() const { return path_; }
    // The stored results. Empty if there is no file, or if the file is unreadable or has another identity.
    Findings load() const;
    // The day of the last addition; empty if load() returns nothing.
    std::string date() const;
    // Adds findings; newer ones replace older ones. Returns a description of an error, which does not stop a run.
    std::string add(const Findings& findings) const;

private:
    nlohmann::ordered_json read() const;

    JsonValue identity_;
    std::string path_;
};

}  // namespace llmc
