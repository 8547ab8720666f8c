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
// The check of communication sends a known pattern through every operation of every communicator of a run,
// one after the other, then through all communicators at once, each on its own stream, and compares every byte. The
// watchdog stops an operation that never ends.

struct NamedComm {
    std::string name;
    Comm comm;
};

// A collective of all ranks. If a byte is wrong, throws Error(communication) on every rank, with the operation, the
// communicator, the rank and the first wrong byte. Returns the rates of the first communicator.
Rates check_collectives(const std::vector<NamedComm>& comms, const Comm& world);

// ---- the worker process ---------------------------------------------------------------------------------------------
// The worker is a process of its own, so a kernel that hangs or breaks the device costs one item and not the run. It
// reads a CheckRequest from standard input and checks every item that is not among `found`. It reports to supervise()
// on standard output, one JSON object per line:
//
//   {"begin": item}                          the check of this item begins
//   {"begin": item, "way": {...}}            the trial of a product in this way begins
//   {"trial": item, "way": {...}, ...}       the result of that trial
//   {"end": item, "finding": {...}}          the result of the item
//   {"done": true}

constexpr const char* kWorkerArgument = "--worker";  // argument of `train_gpt check`

// The worker's main(). `use_of` derives the kernels to check from CheckRequest::run.
ExitCode check_worker(const std::function<KernelUse(const std::string& run)>& use_of);

// Runs workers until every item is checked. If a worker ends or makes no progress for `item_seconds`, that is the
// problem of its item (or of the way it tried to make a product), and the next worker continues after it. `program` is
// run with {"check", kWorkerArgument}. `alive` is called now and then.
Findings supervise(const CheckRequest& request, const std::string& program, const std::function<void()>& alive);

}  // namespace llmc
