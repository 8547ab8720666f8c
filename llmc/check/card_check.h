// The card check tests every kernel and matmul of a run on the run's own cards, and finds the best cuBLASLt algorithm
// for each matmul. A worker process checks each rank's card, unless results of an earlier run are stored. Then the
// ranks agree: what is wrong on one rank is used by none, and all use the algorithms that rank 0 found fastest, so that
// all sums have the same order.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "llmc/check/findings.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct CardCheck {
    KeptResults kept;             // results of earlier checks of this rank's card
    std::function<void()> alive;  // see supervise()
    bool force = false;           // check even if results are stored
    CheckRequest request = {};
};

// The result of the check, the same on all ranks except `findings`.
struct CardCheckResult {
    Findings findings;         // results of the requested items on this rank's card
    int right = 0, items = 0;  // number of right items, and of all
    bool kept = false;         // all results were stored already
    double seconds = 0;
    std::string keeping_problem;           // why the results cannot be stored for the next run
    ProductChoices choices;                // for products that do not use the library's first algorithm
    std::set<std::string> wrong_variants;  // kernel variants to leave out, or kAllOfFp8
    std::vector<Product> wrong_products;   // no algorithm computes these right
    std::vector<std::string> notes;        // one line for everything that is replaced
    std::vector<std::string> refusals;     // one line for everything that is wrong and cannot be replaced
};

// A collective.
CardCheckResult check_card(const CardCheck& check, const Comm& comm);

// ---- operations between ranks ---------------------------------------------------------------------------------------
// Sends known values through every operation of every communicator of a run, one after the other, then through all
// communicators at once, each on its own stream, and compares every byte. The watchdog stops an operation that never
// ends.

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
//   {"begin": item, "way": {...}}            the trial of a product with this algorithm begins
//   {"trial": item, "way": {...}, ...}       the result of that trial
//   {"end": item, "finding": {...}}          the result of the item
//   {"done": true}

constexpr const char* kWorkerArgument = "--worker";     // argument of `train_gpt check`
constexpr const char* kThisProgram = "/proc/self/exe";  // the file that this process runs

// The worker's main(). `use_of` derives the kernels to check from CheckRequest::run.
ExitCode check_worker(const std::function<KernelUse(const std::string& run)>& use_of);

// Runs workers until every item is checked. If a worker ends or makes no progress for `item_seconds`, the item that it
// was checking (or the algorithm that it was trying) counts as wrong, and the next worker continues after it. `program`
// is run with {"check", kWorkerArgument}. `alive` is called between two lines of a worker.
Findings supervise(const CheckRequest& request, const std::string& program, const std::function<void()>& alive);

}  // namespace llmc
