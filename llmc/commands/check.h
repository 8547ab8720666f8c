// The card check of a run: before the run starts, everything that it will use is checked on these cards (llmc/check).
// What is wrong is replaced and reported: kernels by their plain counterparts, products by other algorithms or a
// separate bias, FP8 layers by BF16. If nothing correct is left, the run does not start.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>

#include "llmc/check/card_check.h"
#include "llmc/flags/options.h"
#include "llmc/plan/cards.h"
#include "llmc/run/ranks.h"
#include "llmc/run/start.h"
#include "llmc/train/trainer.h"

namespace llmc {

struct Admission {
    Options options;                  // the run's options, without the kernels and FP8 layers that are wrong here
    ProductChoices products;          // algorithms of products
    std::optional<KeptResults> kept;  // where results are kept; nothing if nothing was checked
    JsonValue summary;                // for run.json; null if nothing was checked
    JsonValue findings;               // for check.json: the results of this rank's card
    Rates rates;                      // measured on this rank's card; empty if nothing was timed
};

// The peak that MFU refers to: the data sheet's (cards.h), or the highest rate of products in this precision that the
// check measured, if the card is not in the table.
std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision, const Admission& admission);

// The rates that earlier checks measured on this card.
MeasuredRates kept_rates(const DeviceInfo& device);

// True if --card-check asks for a check of this run.
bool checks_cards(const Options& options, const DeviceInfo& device);
// Prints the rates between ranks and keeps them with the card's other results.
void note_links(const Rates& rates, const Comm& comm, Admission& admission);

// Checks the cards for a run with these options, if it is to be checked. A collective. `resumed`: products use the
// algorithms of the checkpoint's run, if those are correct here. Throws Error(no_resources) if nothing correct is left,
// or with --strict if anything would have to be replaced.
Admission admit(const Options& options, Ranks& ranks, const Resumed* resumed);

// The run's configuration as the card check's worker gets it, and the kernels that the worker derives from it.
std::string checked_run_text(const Options& options, int ranks);
KernelUse kernel_use_from_text(const std::string& text);

// Makes every product once. cuBLASLt may load a kernel at its first use, which waits for the device. Next to a
// collective that waits for another rank, it could wait forever, so call this before a run over NCCL begins.
void load_products(const std::map<Product, std::set<std::string>>& products, Matmul& matmul, stream_t stream);

// Checks the communicators of a run with several ranks, before its first step. A collective.
template <class Real>
void check_communicators(const Options& options, Trainer<Real>& trainer, const Ranks& ranks, Admission& admission) {
    if (trainer.comm().world() == 1 || !checks_cards(options, ranks.device)) return;
    std::vector<NamedComm> comms;
    const auto add = [&](const char* name, const Comm& comm) {
        if (comm.world() > 1) comms.push_back({name, comm});
    };
    add("the world", trainer.comm());
    add("weights", trainer.weights().comm());
    add("gradients", trainer.gradients().comm());
    add("gradients of all groups", trainer.gradients().groups_comm());
    note_links(check_collectives(comms, trainer.comm()), trainer.comm(), admission);
}

// train_gpt check: the same check for a run with these flags, printed as a table.
ExitCode check_cards(const Options& options, Ranks& ranks);

}  // namespace llmc
