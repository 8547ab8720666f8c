// Before a run begins: what it is to use is checked on the cards that are here (llmc/check), and what is not right
// gives way to what is. Kernels to their plain counterparts, products to other algorithms or to a bias of their own,
// layers to BF16; if nothing right is left, there is no run. All of it is said.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "llmc/check/card_check.h"
#include "llmc/check/collectives.h"
#include "llmc/flags/options.h"
#include "llmc/plan/cards.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

struct Admission {
    std::optional<KeptResults> kept;  // where results are kept; nothing: nothing was checked
    ProductChoices products;          // how they are to be made
    nlohmann::ordered_json summary;   // for run.json; null: nothing was checked
    nlohmann::ordered_json findings;  // for check.json: of this rank's card
    Rates rates;                      // that were reached on this rank's card; empty: nothing was timed
};

// What MFU is a share of: the data sheet's peak (cards.h), or for a card that is in no table the most that the
// check saw a product of this precision reach.
std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision, const Admission& admission);

// What earlier checks have measured of this card and kept.
MeasuredRates kept_rates(const DeviceInfo& device);

// Whether this run is one that is checked.
bool checks_cards(const Options& options, const DeviceInfo& device);
// Said, and kept where the card's other results are.
void note_links(const Rates& rates, const Comm& comm, Admission& admission);

// A collective. Changes `options` where something has to give way. `resumed`: its products are made as they were, if
// that is right here. Error(no_resources): nothing right is left, or with --strict something would have had to give
// way.
Admission admit(Options& options, Ranks& ranks, const Resumed* resumed);

// The communicators of a run with several ranks, before its first step. A collective.
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

// train_gpt check: the same for a run with these flags, as a table.
ExitCode check_cards(Options& options, Ranks& ranks);

}  // namespace llmc
