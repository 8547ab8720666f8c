// The card check tests whether everything that a run will use is right on its own cards, and finds the best way to make
// its products. A worker process checks each rank's card, unless kept results exist. Then the ranks agree: no rank uses
// what is wrong on one of them, and all make products in the way that rank 0 found fastest, so that all sums have the
// same order.
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

// The result of the check, the same on all ranks except `findings`.
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
