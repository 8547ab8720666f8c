// Prepares the directory of a run, and opens its records.
#include "llmc/run/start.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/log/provenance.h"
#include "llmc/model/model_file.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

namespace fs = std::filesystem;

void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts) {
    if (!directory.active()) return;
    const ModelConfig& m = options.model;
    const Json start = {{"date", utc_now()},
                        {"command", options.command_line},
                        {"world", facts.world},
                        {"device", facts.device},
                        {"kernels", options.kernels_in_use},
                        {"versions", versions_json()},
                        {"weights_hash", facts.weights_hash},
                        {"tuning", *facts.tuning},
                        {"products", *facts.products}};
    const std::string path = directory.file("run.json");
    Json run;
    if (facts.resumed_at >= 0 && fs::exists(path)) {
        run = read_run_json(directory.path());
        if (!run.is_object()) run = Json::object();
        if (!run["resumed"].is_array()) run["resumed"] = Json::array();  // missing, or somebody edited it
        run["resumed"].push_back(start);
        run["resumed"].back()["step"] = facts.resumed_at;
        if (run["first_checkpoint"].is_null()) run["first_checkpoint"] = facts.resumed_at;
        run["wrote"] = directory.wrote();
    } else {
        run = {{"run_id", facts.run_id}, {"first_checkpoint", nullptr}};  // note_checkpoint() puts the step here
        run.update(start);
        run["model"] = {{"name", m.name},       {"layers", m.layers},
                        {"heads", m.heads},     {"channels", m.channels},
                        {"vocab", m.vocab},     {"padded_vocab", m.padded_vocab()},
                        {"context", m.context}, {"parameters", m.parameters()}};
        if (m.architecture != &kGpt2) run["model"].update(model_json(m));
        run["micro_steps"] = options.micro_steps;
        run["wrote"] = directory.wrote();
    }
    run["config"] = parse_json(config_json(options));
    run["derived"] = derived_flags(options);
    write_file(path, json_text(run, 2) + "\n");
}

void prepare_directory(RunDirectory& directory, const Options& o, const Inputs& inputs,
                       const std::optional<Resumed>& resumed) {
    if (!directory.active()) return;
    require_checkpoint_directory(directory.checkpoints());
    if (resumed && resumed->position.saved >= 0)
        directory.require_own_files();
    else
        directory.require_room(o.overwrite, o.resume == ResumeFrom::automatic,
                               [&](const std::string& path) { return inputs.is_input(path); });
    remove_unfinished(system_calls(), directory.checkpoints());
}

template <class Real>
void begin_records(RunDirectory& directory, Trainer<Real>& trainer, const Options& o, const Json& tuning,
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
        const int64_t last = directory.last_step_after(position.files.metrics);
        directory.go_on(position.files);
        // Next to the checkpoints of this run, weights of an earlier or a lost step would be taken for its newest.
        if (directory.remove_weights() && last > position.step)
            print_line(
                "note: the run trains {} after step {} again: their records are cut, and model.safetensors, "
                "which has the weights of step {}, is deleted",
                plural(last - position.step, "step"), position.step, last);
    } else {
        directory.begin(o.overwrite);
    }
    write_run_json(directory, o,
                   {trainer.comm().world(), ranks.device.name, weights, position.run_id, position.saved, tuning,
                    Json(trainer.config().products)});
}

template void begin_records(RunDirectory&, Trainer<float>&, const Options&, const Json&, const Ranks&,
                            const RunPosition&);
template void begin_records(RunDirectory&, Trainer<bf16>&, const Options&, const Json&, const Ranks&,
                            const RunPosition&);

}  // namespace llmc
