// check_card: tests on this card what a run with the given flags would use, each item against a plain counterpart:
// casts, copies and tensor cores, every kernel, every algorithm that the run may choose for a matmul, and the
// collectives of its ranks. Run it once on a kind of card that nobody has tried:
//
//     make check_card && ./check_card -e d12 -b 64 --precision fp8 [--json] [--only TEXT]
//     mpirun -np 8 ./check_card ...                                  every rank checks its own card
//
// Each item is named before it runs, so the last name is that of a kernel that hangs or loses the device. Prints a
// table, or with --json every item, and exits with 0, or with 1 if an item is wrong. Runs know the results of their
// kind of card (llmc/run/tuning.h), but not those of --only, which runs the items whose names contain the text.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/cache_file.h"
#include "llmc/base/clock.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/comm/agreement.h"
#include "llmc/commands/planning.h"
#include "llmc/flags/help.h"
#include "llmc/log/metrics.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/run/tuning.h"
#include "llmc/train/trainer.h"
#include "test/kernels/specifications/collectives.h"
#include "test/kernels/specifications/kernel_checks.h"
#include "test/kernels/specifications/product_checks.h"

using namespace llmc;
using Json = nlohmann::ordered_json;

namespace {

struct Result {
    std::string name, family, problem;
    double seconds;
};

struct Settings {
    bool json = false;
    std::string only;  // a part of the names of items to run; all items have ""
};

class Checks {
public:
    // Rank 0 writes the names of items, to standard error if standard output is for JSON.
    Checks(Ranks& ranks, const Settings& settings)
        : ranks_(ranks), only_(settings.only), progress_(settings.json ? stderr : stdout) {}

    // Runs an item, which returns what is wrong or "". After an item that loses the device, no other runs.
    template <class Run>
    void check(const std::string& name, const std::string& family, const Run& run) {
        if (is_lost_ || name.find(only_) == std::string::npos) return;
        ranks_.watchdog.alive();
        say(name + " ...");
        const double begin = monotonic_seconds();
        std::string problem;
        try {
            problem = run();
        } catch (const Error& error) {
            problem = error.what();
            is_lost_ = static_cast<bool>(failure_of([] { synchronize_device(); }));
        }
        results_.push_back({name, family, problem, monotonic_seconds() - begin});
        say(problem.empty() ? " right\n" : " WRONG: " + problem + "\n");
    }
    const std::vector<Result>& results() const { return results_; }
    bool is_lost() const { return is_lost_; }

private:
    void say(const std::string& text) {
        if (!ranks_.comm.is_main()) return;
        std::fputs(text.c_str(), progress_);
        std::fflush(progress_);
    }

    Ranks& ranks_;
    const std::string only_;
    FILE* const progress_;
    std::vector<Result> results_;
    bool is_lost_ = false;
};

void check_products(const Options& o, const ProductUses& products, Checks& checks, stream_t stream) {
    Matmul matmul(o.tf32, o.fast_accumulation, o.fp8_scaling());
    ProductChecks of_products(matmul, stream);
    for (const auto& [product, layers] : products) {
        if (checks.is_lost()) return;  // no more algorithms can be asked for
        const std::vector<std::string> algorithms = of_products.algorithms(product, std::max(o.tune, 1));
        for (size_t i = 0; i < algorithms.size(); i++) {
            const std::string number =
                algorithms.size() > 1 ? fmt::format(", algorithm {} of {}", i + 1, algorithms.size()) : "";
            checks.check(matmul.key(product) + number, "matmuls",
                         [&] { return of_products.problem_of(product, algorithms[i]); });
        }
    }
}

template <class Real>
std::vector<NamedComm> communicators_of(const Options& o, const Comm& world) {
    Trainer<Real> trainer(o, world);
    std::vector<NamedComm> comms;
    for (const NamedComm& named : {NamedComm{"the world", trainer.comm()},
                                   {"weights", trainer.weights().comm()},
                                   {"gradients", trainer.gradients().comm()},
                                   {"gradients of all groups", trainer.gradients().groups_comm()}})
        if (named.comm.world() > 1) comms.push_back(named);
    return comms;
}

// The results of all ranks: an item is wrong if it is wrong on one of them.
std::vector<Result> gather(const std::vector<Result>& mine, const Comm& comm) {
    Json json = Json::array();
    for (const Result& r : mine) json.push_back({r.name, r.family, r.problem, r.seconds});
    const std::vector<std::string> texts = gather_texts(comm, json_text(json));
    std::vector<Result> all;
    for (size_t rank = 0; rank < texts.size(); rank++)
        for (const Json& item : parse_json(texts[rank])) {
            Result result{item[0], item[1], item[2], item[3]};
            if (comm.world() > 1 && !result.problem.empty())
                result.problem = fmt::format("rank {}: {}", rank, result.problem);
            const auto known =
                std::find_if(all.begin(), all.end(), [&](const Result& r) { return r.name == result.name; });
            if (known == all.end())
                all.push_back(result);
            else if (known->problem.empty())
                known->problem = result.problem;
        }
    return all;
}

void print_table(const std::vector<Result>& results, const DeviceInfo& device) {
    std::map<std::string, std::vector<Result>> families;
    for (const Result& result : results) families[result.family].push_back(result);
    const auto line = [](const std::string& name, const std::vector<Result>& items) {
        double seconds = 0;
        for (const Result& item : items) seconds += item.seconds;
        const auto right = std::count_if(items.begin(), items.end(), [](const Result& r) { return r.problem.empty(); });
        print_line("{:14} {:4} of {:4} right {:8.1f} s", name, right, items.size(), seconds);
    };
    print_line("");
    for (const auto& [family, items] : families) line(family, items);
    line("all", results);
    print_line("on {}", device.name);
    for (const Result& result : results)
        if (!result.problem.empty()) print_line("WRONG: {}: {}", result.name, result.problem);
}

// Adds the results to those of earlier checks on this kind of card.
void keep(const std::vector<Result>& results, const DeviceInfo& device) {
    Json items = Json::object();
    for (const Result& result : results) items[result.name] = result.problem;
    const std::string problem = card_cache(device).add({{"check_card", {{"date", utc_now()}, {"items", items}}}});
    if (!problem.empty()) std::fprintf(stderr, "note: the results cannot be kept: %s\n", problem.c_str());
}

// Takes --json and --only TEXT out of the flags.
Settings take_settings(std::vector<const char*>& flags) {
    Settings settings;
    settings.json = std::erase_if(flags, [](const char* flag) { return std::string(flag) == "--json"; }) > 0;
    const auto only =
        std::find_if(flags.begin(), flags.end(), [](const char* flag) { return std::string(flag) == "--only"; });
    if (only == flags.end()) return settings;
    if (only + 1 == flags.end()) throw Error(ExitCode::bad_flags, "--only needs a part of an item's name");
    settings.only = only[1];
    flags.erase(only, only + 2);
    return settings;
}

ExitCode check_card(std::vector<const char*> flags, const LaunchInfo& launch) {
    const Settings settings = take_settings(flags);
    flags.push_back("--bench");  // a run that needs no data and writes nothing
    ParsedOptions parsed = parse_options(static_cast<int>(flags.size()), flags.data());
    Options& o = parsed.options;
    if (o.help || o.help_all)
        parsed.text = help_text(
            "Usage: check_card [--json] [--only TEXT] FLAGS\n\nTests on this card the kernels, matmuls and collectives "
            "of a "
            "training run with\nthese flags, or those whose names contain TEXT. It needs no data.\n",
            o.help_all, help_width());
    if (parsed.text) {
        std::fputs(parsed.text->c_str(), stdout);
        return ExitCode::ok;
    }
    only_bench(o);
    Inputs inputs(o);
    Ranks ranks(o, launch);
    ranks.connect(o, launch);
    ResolveInputs surroundings;
    inputs.describe(surroundings);
    ranks.describe(surroundings);
    resolve(o, surroundings);

    Checks checks(ranks, settings);
    const OwnedStream stream = create_stream();
    for (const CheckItem& item : kernel_checks(KernelUse(o, ranks.comm.world())))
        checks.check(item.name, item.family, [&] { return item.run(stream); });
    if (!checks.is_lost()) check_products(o, plan_rank(o, ranks.comm).products, checks, stream);
    if (ranks.comm.world() > 1 && ranks.comm.host_max(checks.is_lost()) == 0)
        checks.check("collectives", "collectives", [&] {
            check_collectives(o.precision == Precision::fp32 ? communicators_of<float>(o, ranks.comm)
                                                             : communicators_of<bf16>(o, ranks.comm),
                              ranks.comm);
            return std::string();
        });

    const std::vector<Result> results = gather(checks.results(), ranks.comm);
    ranks.finish();
    const bool is_right =
        std::all_of(results.begin(), results.end(), [](const Result& result) { return result.problem.empty(); });
    if (!ranks.comm.is_main()) return ExitCode::ok;  // mpirun may end rank 0 if another one fails
    if (results.empty())
        throw Error(ExitCode::bad_flags, fmt::format("--only {}: no item has this in its name", settings.only));
    if (settings.only.empty()) keep(results, ranks.device);
    if (settings.json) {
        Json items = Json::array();
        for (const Result& r : results)
            items.push_back({{"name", r.name}, {"family", r.family}, {"problem", r.problem}, {"seconds", r.seconds}});
        print_line("{}", json_text(Json{{"device", ranks.device.name}, {"items", items}}, 1));
    } else {
        print_table(results, ranks.device);
    }
    return is_right ? ExitCode::ok : ExitCode::failure;
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    LaunchInfo launch;
    try {
        launch = launch_environment();
        return static_cast<int>(check_card({argv, argv + argc}, launch));
    } catch (const Error& error) {
        std::fflush(stdout);
        if (!launch.alone()) leave(launch, error);
        std::fprintf(stderr, "check_card: %s\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "check_card: %s\n", error.what());
        return static_cast<int>(ExitCode::failure);
    }
}
