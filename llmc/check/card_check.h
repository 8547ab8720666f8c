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
#include "llmc/comm/comm.h"

namespace llmc {

struct CardCheck {
    CheckRequest request;
    nlohmann::ordered_json identity;  // identifies this rank's card, see KeptResults
    bool force = false;               // whatever is kept
    std::string program;              // see supervise()
    std::string cache;                // directory
    std::function<void()> alive = [] {};
};

// The result of the check, the same on all ranks except `findings`.
struct CardCheckResult {
    Findings findings;         // this rank's card, the items asked for
    int right = 0, items = 0;  // number of right findings, and of all
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

// ---- operations between ranks ---------------------------------------------------------------------------------------
// The card check's part between ranks: it sends a known pattern through every operation of every communicator of a run,
// one after the other, then through all communicators at once, each on its own stream, and compares every byte. The
// watchdog stops an operation that never ends.

struct NamedComm {
    std::string name;
    Comm comm;
};

// A collective of all ranks. Throws Error(communication) on every rank: which operation, of which communicator, on
// which rank, and the first byte that is wrong. Returns the rates of the first communicator.
Rates check_collectives(const std::vector<NamedComm>& comms, const Comm& world);

// ---- the worker process ---------------------------------------------------------------------------------------------
// The card check's worker: a process of its own, so that a kernel that hangs or breaks the device costs an item and not
// the run. It reads a CheckRequest from its standard input, makes every item that is not among `found`, and says on its
// standard output, a JSON object a line, what it begins and what it has found; supervise() is the other end.
//
//   {"begin": item}                          this item is being made
//   {"begin": item, "way": {...}}            ... of a product, in this way
//   {"trial": item, "way": {...}, ...}       how that way did
//   {"end": item, "finding": {...}}          what came of it
//   {"done": true}

constexpr const char* kWorkerArgument = "--worker";  // argument of `train_gpt check`

// The worker's main(). `use_of` derives the kernels to check from CheckRequest::run.
ExitCode check_worker(const std::function<KernelUse(const std::string& run)>& use_of);

// Runs workers, one after the other, until every item has been made: an item, or a way of making a product, in which
// the worker ends or stands still for `item_seconds` has that for a problem, and another worker goes on behind it.
// `program`: what to run with {"check", kWorkerArgument}. `alive` is called now and then.
Findings supervise(const CheckRequest& request, const std::string& program, const std::function<void()>& alive);

}  // namespace llmc
