// Before its first step, a run chooses algorithms for its matmuls on this card, and measures rates
// (llmc/linear/tune.h). Results are kept in the user's cache for the next start on this kind of card, so that
// running a command twice gives the same bits.
#pragma once
#include <optional>

#include "llmc/base/json.h"
#include "llmc/linear/tune.h"
#include "llmc/plan/cards.h"

namespace llmc {

class CacheFile;
struct Options;
struct Ranks;
struct Resumed;

// The cache for this kind of card with this driver and cuBLASLt: {"algorithms": {product: algorithm}, "rates":
// {name: rate}, "measured": day of the newest rate, "check_card": {"date", "items": {name: problem, "" if it is
// right}}}.
CacheFile card_cache(const DeviceInfo& device);
// The rates that earlier starts measured on this kind of card.
MeasuredRates kept_rates(const DeviceInfo& device);

// The peak that MFU refers to: the data sheet's (cards.h), or the highest measured rate of matmuls in this precision,
// if the card is not in the table.
std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision, const Rates& rates);

struct Tuning {
    ProductChoices products;  // algorithms of matmuls, the same on all ranks
    Rates rates;              // measured on this kind of card; empty if nothing was
    JsonValue summary;        // for run.json; null on a CPU, where there is nothing to choose
};

// Rank 0 chooses for all ranks, and prints what it measured. A resumed run keeps the algorithms of the checkpoint's
// run, if the library has the same version. A collective.
Tuning tune_run(const Options& options, const ProductUses& products, Ranks& ranks, const Resumed* resumed);

}  // namespace llmc
