// Sets the weights of a run and opens its records.
#include "llmc/run/start.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>

#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/check/findings.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/log/fingerprint.h"
#include "llmc/log/versions.h"
#include "llmc/model/model_file.h"
#include "llmc/train/state.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using llong = long long;

std::string new_run_id() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
}

TrainerState state_of(const CheckpointReader& checkpoint) {
    try {
        return state_from_json(checkpoint.manifest().state);
    } catch (const Error& error) {
        throw Error(error.code(), checkpoint.directory() + "/" + error.what());
    }
}

template <class Real>
void restore(Trainer<Real>& trainer, Ranks& ranks, const Resumed& resumed) {
    const CheckpointReader& checkpoint = *resumed.checkpoint;
    const auto began = std::chrono::steady_clock::now();
    require_tensors(checkpoint, trainer.state_tensors());
    TrainerState state = state_of(checkpoint);
    state.step = resumed.position.step;
    const bool same_scales = trainer.restore(
        state, [&](const std::string& tensor, const std::string& part, uint64_t start, uint64_t count, float* values) {
            ranks.watchdog.alive();
            checkpoint.read(tensor, part, start, count, values);
        });
    if (!trainer.comm().is_main()) return;
    const Manifest& m = checkpoint.manifest();
    const double seconds =
        resumed.seconds + std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    std::printf("resumed from %s: step %lld is done%s (%s checked and read in %.2f s)\n",
                checkpoint.directory().c_str(), llong{m.step},
                m.world == trainer.comm().world() ? "" : (", on " + plural(m.world, "rank")).c_str(),
                format_bytes(m.bytes()).c_str(), seconds);
    for (const std::string& note : resumed.notes) std::printf("note: %s\n", note.c_str());
    if (trainer.gradients().residuals() && state.residuals != trainer.comm().world())
        std::printf("note: --reduce fp8 starts without residuals: the checkpoint has those of %d ranks\n",
                    state.residuals);
    if (!same_scales)
        std::printf("note: FP8 scales are measured again in the next step: the recipe or the loss scale changed\n");
}

}  // namespace

void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts) {
    if (!directory.active()) return;
    const ModelConfig& m = options.model_config;
    const ordered_json versions = versions_json();
    const std::string path = directory.file("run.json");
    if (facts.resumed_at >= 0 && fs::exists(path)) {
        ordered_json run = read_run_json(directory.path());
        if (!run.is_object()) run = ordered_json::object();
        if (!run["resumed"].is_array()) run["resumed"] = ordered_json::array();  // missing, or somebody edited it
        run["resumed"].push_back({{"date", utc_now()},
                                  {"step", facts.resumed_at},
                                  {"command", options.command_line},
                                  {"world", facts.world},
                                  {"device", facts.device},
                                  {"kernels", options.kernel_set.names()},
                                  {"versions", versions},
                                  {"weights_hash", facts.weights_hash},
                                  {"card_check", facts.card_check},
                                  {"products", facts.products}});
        if (run["first_checkpoint"].is_null()) run["first_checkpoint"] = facts.resumed_at;
        run["config"] = parse_json<ordered_json>(config_json(options));
        return write_file(path, json_text(run, 2) + "\n");
    }
    ordered_json run;
    run["run_id"] = facts.run_id;
    run["first_checkpoint"] = nullptr;  // note_checkpoint() puts the step here
    run["date"] = utc_now();
    run["command"] = options.command_line;
    run["world"] = facts.world;
    run["device"] = facts.device;
    run["kernels"] = options.kernel_set.names();
    run["versions"] = versions;
    run["model"] = {{"name", m.name},       {"layers", m.layers},
                    {"heads", m.heads},     {"channels", m.channels},
                    {"vocab", m.vocab},     {"padded_vocab", m.padded_vocab()},
                    {"context", m.context}, {"parameters", m.parameters()}};
    if (m.architecture != &kGpt2) run["model"].update(model_json(m));
    run["micro_steps"] = options.micro_steps;
    run["weights_hash"] = facts.weights_hash;
    run["card_check"] = facts.card_check;
    run["products"] = facts.products;
    run["config"] = parse_json<ordered_json>(config_json(options));
    write_file(path, json_text(run, 2) + "\n");
}

void prepare_directory(RunDirectory& directory, const Options& o, const std::optional<Resumed>& resumed) {
    if (!directory.active()) return;
    require_checkpoint_directory(directory.checkpoints());
    if (!resumed || !resumed->in_place) directory.begin(o.overwrite, o.resume.value == ResumeFrom::automatic);
    remove_unfinished(system_calls(), directory.checkpoints());
}

template <class Real>
RunPosition set_weights(Trainer<Real>& trainer, const Options& o, Ranks& ranks, std::optional<Resumed>& resumed) {
    if (resumed) {
        restore(trainer, ranks, *resumed);
        if (o.plateau.text != "off") trainer.scale_rate(resumed->position.watch.rate_factor());
        resumed->checkpoint.reset();  // closes its files, which may have to be deleted
        return resumed->position;
    }
    if (o.init_from.empty())
        trainer.initialize(o.seed);
    else
        load_weights(trainer, o.init_from);
    RunPosition position;
    position.run_id = new_run_id();
    return position;
}

template <class Real>
void begin_records(RunDirectory& directory, const Trainer<Real>& trainer, const Options& o,
                   const ordered_json& card_check, const Ranks& ranks, const RunPosition& position) {
    if (o.out.empty()) return;
    const std::string weights = fingerprint_text(weights_fingerprint(trainer.weights(), trainer.stream()));
    trainer.comm().require_equal("weights to start from", weights);
    if (!directory.active()) return;
    if (position.saved >= 0) {
        // This run repeats their steps, but the next --resume would take the newer checkpoints.
        for (const FoundCheckpoint& found : find_checkpoints(directory.checkpoints()))
            if (found.step > position.step)
                std::printf("note: %s is newer than the step that the run continues from: renamed to %s\n",
                            found.path.c_str(), set_aside(system_calls(), found.path).c_str());
        directory.go_on(position.files);
        std::error_code ignored;
        fs::remove(directory.file("model.safetensors"), ignored);  // of an earlier step
    }
    write_run_json(directory, o,
                   {trainer.comm().world(), ranks.device.name, weights, position.run_id, position.saved, card_check,
                    choices_json(trainer.config().products)});
}

template RunPosition set_weights(Trainer<float>&, const Options&, Ranks&, std::optional<Resumed>&);
template RunPosition set_weights(Trainer<bf16>&, const Options&, Ranks&, std::optional<Resumed>&);
template void begin_records(RunDirectory&, const Trainer<float>&, const Options&, const ordered_json&, const Ranks&,
                            const RunPosition&);
template void begin_records(RunDirectory&, const Trainer<bf16>&, const Options&, const ordered_json&, const Ranks&,
                            const RunPosition&);

}  // namespace llmc
