// The card check: whether what a run will use is right on these very cards, and how its products are best made. Every
// rank has its own card checked, by a worker process, or finds that it was; then all agree: what is wrong on one is
// used on none, and products are made on all in the way that rank 0 has found fastest, so that all sum alike.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "llmc/check/findings.h"
#include "llmc/check/kept_results.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct CardCheck {
    CheckRequest request;
    nlohmann::ordered_json identity;  // of this rank's card: see KeptResults
    bool force = false;               // whatever is kept
    std::string program;              // see supervise()
    std::string cache;                // directory
    std::function<void()> alive = [] {};
};

// What came of it, the same on all ranks but for `findings`.
struct CardCheckResult {
    Findings findings;         // of this rank's card, of the items asked for
    int right = 0, items = 0;  // of them
    bool kept = false;         // all were known
    double seconds = 0;
    std::string keeping_problem;           // why they are not kept for the next run
    ProductChoices choices;                // how products are to be made, where not as the library's first
    std::set<std::string> wrong_variants;  // kernels to be left out, or kAllOfFp8
    std::vector<Product> wrong_products;   // that no way was right for
    std::vector<std::string> notes;        // what is not as the library or the program would have it, a line each
    std::vector<std::string> refusals;     // what is wrong, and nothing takes its place
};

// A collective.
CardCheckResult check_card(const CardCheck& check, const Comm& comm);

}  // namespace llmc
