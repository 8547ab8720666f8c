// Sets the weights of a run, and opens its records.
#include "llmc/run/start.h"

#include <filesystem>
#include <map>
#include <random>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/check/findings.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/log/provenance.h"
#include "llmc/model/model_file.h"
#include "llmc/train/state.h"

namespace llmc {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string new_run_id() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
}

// Throws unless the checkpoint holds exactly these tensors.
void require_tensors(const CheckpointReader& checkpoint, const std::vector<StateTensor>& tensors) {
    const auto needed_parts = [](const StateTensor& tensor) {  // a run can go on without an average
        std::vector<std::string> parts = tensor.parts;
        std::erase(parts, "average");
        return parts;
    };
    std::map<std::string, const StateTensor*> there;
    size_t needed = 0;
    for (const StateTensor& tensor : checkpoint.manifest().tensors)
        if (!tensor.is_residual()) there[tensor.name] = &tensor;
    for (const StateTensor& tensor : tensors) {
        if (tensor.is_residual()) continue;
        needed++;
        const auto found = there.find(tensor.name);
        if (found == there.end() || found->second->shape != tensor.shape ||
            needed_parts(*found->second) != needed_parts(tensor))
            throw Error(ExitCode::checkpoint, "{} {}: it holds another model, or the state of another optimizer",
                        checkpoint.directory(),
                        found == there.end() ? "has no tensor " + tensor.name
                                             : "has " + tensor.name + " with another shape or other parts");
    }
    if (there.size() != needed)
        throw Error(ExitCode::checkpoint, "{} has {} tensors, the model has {}: it holds another model",
                    checkpoint.directory(), there.size(), needed);
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
    const double began = monotonic_seconds();
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
    const double seconds = resumed.seconds + monotonic_seconds() - began;
    print_line("resumed from {}: step {} is done{} ({} checked and read in {:.2f} s)", checkpoint.directory(), m.step,
               m.world == trainer.comm().world() ? "" : (", on " + plural(m.world, "rank")), format_bytes(m.bytes()),
               seconds);
    for (const std::string& note : resumed.notes) print_line("note: {}", note);
    if (trainer.gradients().residuals() && state.residuals != trainer.comm().world())
        print_line("note: --reduce fp8 starts without residuals: the checkpoint has those of {} ranks",
                   state.residuals);
    const AverageRule& average = trainer.config().optimizer.average;
    if (average.kind != AverageKind::none && state.optimizer.average.kind != average.kind)
        print_line("note: the checkpoint has no average of the weights of this kind: --average begins with this run");
    if (!same_scales)
        print_line("note: FP8 scales are measured again in the next step: the recipe or the loss scale changed");
}

}  // namespace

void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts) {
    if (!directory.active()) return;
    const ModelConfig& m = options.model_config;
    const ordered_json start = {{"date", utc_now()},
                                {"command", options.command_line},
                                {"world", facts.world},
                                {"device", facts.device},
                                {"kernels", options.kernel_set.names()},
                                {"versions", versions_json()},
                                {"weights_hash", facts.weights_hash},
                                {"card_check", facts.card_check},
                                {"products", facts.products}};
    const std::string path = directory.file("run.json");
    ordered_json run;
    if (facts.resumed_at >= 0 && fs::exists(path)) {
        run = read_run_json(directory.path());
        if (!run.is_object()) run = ordered_json::object();
        if (!run["resumed"].is_array()) run["resumed"] = ordered_json::array();  // missing, or somebody edited it
        run["resumed"].push_back(start);
        run["resumed"].back()["step"] = facts.resumed_at;
        if (run["first_checkpoint"].is_null()) run["first_checkpoint"] = facts.resumed_at;
    } else {
        run = {{"run_id", facts.run_id}, {"first_checkpoint", nullptr}};  // note_checkpoint() puts the step here
        run.update(start);
        run["model"] = {{"name", m.name},       {"layers", m.layers},
                        {"heads", m.heads},     {"channels", m.channels},
                        {"vocab", m.vocab},     {"padded_vocab", m.padded_vocab()},
                        {"context", m.context}, {"parameters", m.parameters()}};
        if (m.architecture != &kGpt2) run["model"].update(model_json(m));
        run["micro_steps"] = options.micro_steps;
    }
    run["config"] = parse_json<ordered_json>(config_json(options));
    write_file(path, json_text(run, 2) + "\n");
}

void prepare_directory(RunDirectory& directory, const Options& o, const std::optional<Resumed>& resumed,
                       const ordered_json& findings) {
    if (!directory.active()) return;
    require_checkpoint_directory(directory.checkpoints());
    if (!resumed || resumed->position.saved < 0) directory.begin(o.overwrite, o.resume.value == ResumeFrom::automatic);
    remove_unfinished(system_calls(), directory.checkpoints());
    if (!findings.is_null()) write_file(directory.file("check.json"), json_text(findings, 1) + "\n");
}

template <class Real>
RunPosition set_weights(Trainer<Real>& trainer, const Options& o, Ranks& ranks, std::optional<Resumed>& resumed) {
    if (resumed) {
        restore(trainer, ranks, *resumed);
        if (o.plateau.text != "off") trainer.scale_rate(resumed->position.watch.rate_factor());
        if (const Decay& decay = resumed->position.decay; decay.has_begun()) trainer.decay(decay.from, decay.until);
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
void begin_records(RunDirectory& directory, Trainer<Real>& trainer, const Options& o, const ordered_json& card_check,
                   const Ranks& ranks, const RunPosition& position) {
    if (o.out.empty()) return;
    const std::string weights =
        fingerprint_text(weights_fingerprint(trainer.weights(), trainer.model().spare_memory(), trainer.stream()));
    trainer.comm().require_equal("weights to start from", weights);
    if (!directory.active()) return;
    if (position.saved >= 0) {
        // This run repeats their steps, but the next --resume would take the newer checkpoints.
        for (const FoundCheckpoint& found : find_checkpoints(directory.checkpoints()))
            if (found.step > position.step)
                print_line("note: {} is newer than the step that the run continues from: renamed to {}", found.path,
                           set_aside(system_calls(), found.path));
        directory.go_on(position.files);
        std::error_code ignored;
        fs::remove(directory.file("model.safetensors"), ignored);  // left from an earlier step
    }
    write_run_json(directory, o,
                   {trainer.comm().world(), ranks.device.name, weights, position.run_id, position.saved, card_check,
                    choices_json(trainer.config().products)});
}

template RunPosition set_weights(Trainer<float>&, const Options&, Ranks&, std::optional<Resumed>&);
template RunPosition set_weights(Trainer<bf16>&, const Options&, Ranks&, std::optional<Resumed>&);
template void begin_records(RunDirectory&, Trainer<float>&, const Options&, const ordered_json&, const Ranks&,
                            const RunPosition&);
template void begin_records(RunDirectory&, Trainer<bf16>&, const Options&, const ordered_json&, const Ranks&,
                            const RunPosition&);

}  // namespace llmc
