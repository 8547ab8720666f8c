// Finds a checkpoint that is complete and undamaged and fits the flags, reads where its run was, and sets the weights
// from it. A new run's weights are set here, too.
#include "llmc/run/resume.h"

#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/weight_source.h"
#include "llmc/flags/flags.h"
#include "llmc/log/provenance.h"
#include "llmc/model/model_file.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// Refuses to resume. The message is fmt::format(format, values...).
template <class... Values>
[[noreturn]] void fail(fmt::format_string<Values...> format, Values&&... values) {
    throw Error(ExitCode::checkpoint, fmt::format(format, std::forward<Values>(values)...));
}

// Rank 0's paths, on every rank. A zero byte, which no path contains, ends each of them on the way.
std::vector<std::string> broadcast_paths(const Comm& comm, const std::vector<std::string>& paths) {
    std::string text;
    for (const std::string& path : paths) text += path + '\0';
    std::vector<std::string> all = split(broadcast_text(comm, text), '\0');
    all.pop_back();
    return all;
}

// ---- choosing a checkpoint ------------------------------------------------------------------------------------------

struct Candidates {
    std::string directory;           // directory that was searched; "" if --resume names one checkpoint
    std::vector<std::string> paths;  // complete checkpoints, newest first
    int64_t all = 0;                 // number of checkpoints, complete or not
    bool changed = false;            // a checkpoint was deleted during the search
};

// Searches the directory that --resume names, or else `own`.
Candidates candidates_for(const Options& o, const std::string& own) {
    const bool is_path = o.resume == ResumeFrom::path;
    const std::string& named = o.text("resume");
    if (is_path && path_exists(named + "/" + kManifestName)) {
        if (o.rewind > 0) refuse("--rewind counts from the newest checkpoint, and --resume names one");
        return {"", {named}, 1, false};
    }
    Candidates candidates;
    candidates.directory = !is_path ? own : directory_exists(named + "/checkpoints") ? named + "/checkpoints" : named;
    if (is_path && !directory_exists(candidates.directory)) fail("--resume {}: there is no such directory", named);
    for (const FoundCheckpoint& found : find_checkpoints(candidates.directory)) {
        candidates.all++;
        if (found.has_manifest)
            candidates.paths.push_back(found.path);
        else if (!name_exists(found.path))
            candidates.changed = true;
        else if (found.is_link && !directory_exists(found.path))
            print_error("train_gpt: skipping {}: it is a link that leads nowhere", found.path);
        else
            print_error("train_gpt: skipping {}: it has no {}, so it is not complete", found.path, kManifestName);
    }
    return candidates;
}

// With --resume auto and no checkpoint: refuses to begin a new run if there may be checkpoints that cannot be seen.
void require_no_run(const std::string& out) {
    const std::string sign = find_earlier_run(out).why_not_restart();
    if (sign.empty()) return;
    fail(
        "--resume auto found no checkpoint in {}/checkpoints, but a run was here: {}. Nothing was changed. "
        "Bring the checkpoints back (mount their disk, repair the link, rename a .set_aside directory), or "
        "begin a new run with --overwrite or another --out",
        out, sign);
}

// Opens and checks one candidate; throws on every rank if it cannot be used.
std::unique_ptr<CheckpointReader> open_candidate(const std::string& path, Verify how, Ranks& ranks) {
    const Comm& comm = ranks.comm;
    std::string text;
    do_together(comm, [&] {
        if (comm.is_main()) text = CheckpointReader(path).manifest_text();
    });
    text = broadcast_text(comm, text);
    auto reader = std::make_unique<CheckpointReader>(path, text);
    do_together(comm, [&] {
        // A rank may not see the manifest yet, because its file system caches names.
        std::string mine = text;
        if (!comm.is_main()) failure_of([&] { mine = CheckpointReader(path).manifest_text(); });
        if (mine != text) refuse_data("{} is another checkpoint here than on rank 0", path);
        reader->verify(how, static_cast<size_t>(comm.rank()), static_cast<size_t>(comm.world()),
                       [&] { ranks.watchdog.alive(); });
    });
    return reader;
}

// The newest undamaged checkpoint after the newest --rewind of them, whose values need no check. Returns nothing if
// another process, which prunes its checkpoints, has deleted one that was to be read: there is a newer one.
std::unique_ptr<CheckpointReader> newest(const Candidates& candidates, const Options& o, Ranks& ranks) {
    const Comm& comm = ranks.comm;
    std::string problems;
    int64_t left_out = 0;
    for (const std::string& path : broadcast_paths(comm, candidates.paths)) {
        try {
            const Verify how = left_out < o.rewind ? Verify::none : o.verify;
            std::unique_ptr<CheckpointReader> reader = open_candidate(path, how, ranks);
            if (left_out++ == o.rewind) return reader;
        } catch (const Error& error) {
            if (error.code() != ExitCode::checkpoint) throw;
            if (comm.host_max(comm.is_main() && !name_exists(path)) > 0) return nullptr;
            problems += std::string("\n  ") + error.what();
            if (comm.is_main()) print_error("train_gpt: skipping {}: it is damaged: {}", path, sanitize(error.what()));
        }
    }
    if (comm.host_max(candidates.changed) > 0) return nullptr;
    if (left_out > 0)
        fail("--rewind {}: there are {} undamaged checkpoints, so --rewind can be at most {}", o.rewind, left_out,
             left_out - 1);
    fail("every checkpoint is damaged or incomplete, so nothing is resumed and nothing is overwritten:{}",
         problems.empty() ? " none has a manifest" : problems);
}

// ---- comparing it with the flags ------------------------------------------------------------------------------------

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : json_text(value); }

// Flags that older checkpoints lack, with the value that their runs had.
const Json kOldValues = {{"optimizer", "adamw"},   {"doc-mask", false},  {"batch-schedule", "off"},
                         {"seq-schedule", "off"},  {"master", "fp32"},   {"gradients", "fp32"},
                         {"adam-moments", "fp32"}, {"clip-kind", "norm"}};

// State that only means something with the settings and inputs under which it was collected. If one of them changes, it
// starts again. The functions return false if there was nothing to forget.
struct Restart {
    const char* state;
    const char* after_change_of;
    bool (*forget)(ValidationWatch& watch, TrainerState& state, const Options& o);
};
const Restart kRestarts[] = {
    {"the best validation loss, which --plateau and --early-stop compare with", "validation val-precision doc-mask",
     [](ValidationWatch& watch, TrainerState&, const Options& o) {
         return watch.forget_losses() && (o.plateau != PlateauRule{} || o.early_stop > 0);
     }},
    {"the factor by which --plateau had lowered the learning rate", "plateau",
     [](ValidationWatch& watch, TrainerState&, const Options& o) {
         if (o.plateau != PlateauRule{} || watch.rate_factor() == 1) return false;
         watch.forget_rate();
         return true;
     }},
    {"the statistics that find spikes", "fingerprint seq doc-mask z-loss",
     [](ValidationWatch&, TrainerState& state, const Options&) {
         SpikeState fresh{};
         fresh.loss_limit = fresh.norm_limit = std::numeric_limits<double>::infinity();
         return std::exchange(state.optimizer.spikes, fresh).accepted > 0;
     }},
    {"the counts of --fp8-fallback", "fp8-fallback",
     [](ValidationWatch&, TrainerState& state, const Options&) {
         bool counted = false;
         if (!state.fp8) return counted;
         for (Fp8SavedTensor& t : state.fp8->tensors) {
             counted |= t.watch.saturating > 0 || t.watch.underflowing > 0;
             t.watch = {t.state.elements, t.state.saturated, t.state.underflowed, 0, 0};
             t.verdict = {};
         }
         return counted;
     }},
};

std::string described(const Json& model) { return model.is_null() ? kGpt2.name : json_text(model); }

// "--lr 0.001", or "end_token 256".
std::string setting(const std::string& name, const Json& value) {
    return (find_flag(name) ? "--" : "") + name + " " + text_of(value);
}

std::string from_here_on(const std::string& name, const Json& now, const Json& then) {
    return setting(name, now) + " from here on; until now it was " + text_of(then);
}

// Notes kernels other than those of the checkpoint's run, as on another kind of card.
void compare_kernels(const Options& o, Resumed& resumed) {
    const std::string then = kernels_in_use(resumed.checkpoint->manifest().run->value("kernels", Json()));
    if (then.empty() || then == o.kernels_in_use) return;
    resumed.notes.push_back(fmt::format(
        "the checkpoint's run used other kernels (\"{}\"; this run: \"{}\"), so results may round differently", then,
        o.kernels_in_use));
}

// Compares the settings and inputs of the checkpoint's run with those of this run, by kResumeRules.
void compare_settings(const Options& o, const Inputs& inputs, Resumed& resumed) {
    const Manifest& manifest = resumed.checkpoint->manifest();
    const std::string& directory = resumed.checkpoint->directory();
    const Json no_model, model_then = manifest.run->value("model", no_model);
    const Json model_now = o.model.architecture == &kGpt2 ? no_model : model_json(o.model);
    if (model_then != model_now)
        fail(
            "{} holds another model: {}, this run has {}; leave out the flags that choose the model to "
            "continue that run, or start a new run of another model in another --out",
            directory, described(model_then), described(model_now));
    Json then = kOldValues, now = inputs.facts(o);
    then.update(current_config(*manifest.config));
    for (const auto& [name, value] : then.items()) {
        const RemovedFlag* const removed = find_removed_flag(name);
        if (removed && !removed->goes_on(value))
            fail("{} was written with --{} {}, and {}; a new run can start from its weights with --init-from",
                 directory, name, text_of(value), removed->text());
    }
    // Earlier FP8 runs were validated in FP8.
    if (!then.contains("val-precision")) then["val-precision"] = then["precision"] == "fp8" ? "run" : "bf16";
    then.update(manifest.run->at("data"));
    now.update(parse_json(config_json(o)));
    if (text_of(then["fingerprint"]).find(':') == std::string::npos) now["fingerprint"] = inputs.earlier_fingerprint();
    for (const auto& [name, value] : now.items()) {
        if (!then.contains(name) || then[name] == value) continue;
        resumed.changed.push_back(name);
        const ResumeRule& rule = resume_rule(name);
        // Without --doc-mask, training does not depend on where documents begin.
        const OnChange change = name == "end_token" && !o.doc_mask ? OnChange::noted : rule.change;
        const bool is_data = change == OnChange::new_data;
        if (name == "fingerprint" && !o.new_data)
            fail(
                "{} was written in a run on other training data than --train {}{}; give that, or take the new "
                "data with --new-data",
                directory, o.train, inputs.sources.is_mixture() ? ", or with other weights or stages" : "");
        if (change == OnChange::refused || (is_data && !o.new_data))
            fail("{} was written with {}, this run has {}{}", directory, setting(name, then[name]),
                 setting(name, value), rule.advice);
        if (name == "fingerprint")
            resumed.notes.push_back(
                "--new-data: the training data has changed; the run continues at the same place in its order");
        else if (name == "init-from" && !value.is_null())
            resumed.notes.push_back(setting(name, value) + " is not read: the weights are those of the checkpoint");
        else if (change != OnChange::free)
            resumed.notes.push_back(from_here_on(name, value, then[name]));
    }
}

TrainerState state_of(const CheckpointReader& checkpoint) {
    try {
        return state_from_json(*checkpoint.manifest().state);
    } catch (const Error& error) {
        throw Error(error.code(), checkpoint.directory() + "/" + error.what());
    }
}

// A number that is small enough to be multiplied by the tokens of a step.
int64_t small_number(const Json& value) {
    if (value.is_number_unsigned() && value.get<uint64_t>() < (uint64_t{1} << 40)) return value.get<int64_t>();
    throw Json::type_error::create(302, "a number that cannot be", nullptr);
}

void read_position(const Options& o, const Inputs& inputs, Resumed& resumed) {
    const CheckpointReader& checkpoint = *resumed.checkpoint;
    const Json& run = *checkpoint.manifest().run;
    RunPosition& position = resumed.position;
    try {
        run.at("data").at("fingerprint").get<std::string>();  // throws if it is missing or no text
        position.data_step = small_number(run.at("data").at("next_step")) + o.skip_data;
        position.evaluation_due = run.at("reports_due").get<bool>();
        if (run.contains("validation")) position.watch = ValidationWatch::from_json(run.at("validation"));
        if (run.contains("decay") && (o.schedule.decay_from >= 0 || !takes_decay_from(o.schedule.kind)))
            resumed.notes.push_back("the decay of the learning rate that was begun by hand is over: " +
                                    std::string(o.schedule.decay_from >= 0 ? "--decay-from" : "--schedule") +
                                    " replaces it");
        else if (run.contains("decay"))
            position.decay = {small_number(run.at("decay").at("from")), small_number(run.at("decay").at("until"))};
        position.files.metrics = small_number(run.at("files").at("metrics.jsonl"));
        position.files.main_log = small_number(run.at("files").at("main.log"));
    } catch (const Json::exception& error) {
        fail("{}/{}: its \"run\" is not complete ({})", checkpoint.directory(), kManifestName, error.what());
    }
    if (position.decay.has_begun())
        resumed.notes.push_back(fmt::format("the decay of the learning rate that began after step {} ends with step {}",
                                            with_commas(position.decay.from), with_commas(position.decay.until)));
    position.run_id = checkpoint.manifest().run_id;
    position.step = checkpoint.manifest().step;
    if (o.skip_data > 0 && o.batches.grows_after(position.step))
        fail("--skip-data counts steps of --total-batch tokens, which --batch-schedule has not reached yet");
    inputs.require_enough(o, position.data_step - position.step);
}

}  // namespace

const std::vector<ResumeRule> kResumeRules = {
    {OnChange::free,
     "train val out init-from model stop-after max-minutes recompute offload zero shard-within comm "
     "timeout-start timeout-step timeout-save log-every checkpoint-every checkpoint-minutes keep verify "
     "on-save-error checkpoint-local after-checkpoint val-batches sample-every sample-tokens tokenizer "
     "prompt temperature top-k top-p signals-every fp8-log-every tune verify-every hellaswag task tokens"},
    {OnChange::noted,
     "batch depth max-steps epochs lr warmup schedule final-lr-fraction decay-from cooldown restart-every "
     "plateau early-stop val-every weight-decay cautious-decay beta1 beta2 eps master gradients adam-moments "
     "momentum nesterov muon-ns muon-scale adamw-lr "
     "adamw-weight-decay clip clip-kind qk-clip z-loss average precision tf32 kernels fp8-recipe fp8-layers fp8-grad "
     "fp8-history fp8-margin fp8-amax-algo fp8-pow2-scales fp8-fast-accum fp8-emulation fp8-fallback fp8-until "
     "val-precision loss-scale max-skips skip-spikes reduce reduce-order tokenizer_hash validation"},
    {OnChange::new_data, "seq seed doc-mask end_token fingerprint", ", which is other data; --new-data accepts it"},
    {OnChange::refused, "layers heads channels vocab context",
     "; its weights fit that shape alone: leave the flag out (with --train, add --config DIR/run.json for the run's "
     "flags), or start a new run in another --out"},
    {OnChange::refused, "total-batch batch-schedule seq-schedule optimizer",
     "; a new run can start from its weights with --init-from"},
};

std::string kernels_in_use(const Json& of_run) {
    if (of_run.is_null()) return "";
    const std::string text = text_of(of_run);
    if (!of_run.is_array()) return text;
    return text.find("hopper_") != text.npos ? "hopper" : text.find("host_") != text.npos ? "loops" : "portable";
}

const ResumeRule& resume_rule(const std::string& name) {
    for (const ResumeRule& rule : kResumeRules)
        if (contains(words_in(rule.names), name)) return rule;
    throw Error(ExitCode::failure, "kResumeRules has no {}", name);
}

Json position_json(const RunPosition& p, const Options& o, const Inputs& inputs, const Json& facts) {
    const int64_t samples = inputs.train->samples(o.seq), at = o.batches.tokens_until(p.data_step) / o.seq;
    Json data = facts;
    data["next_step"] = p.data_step;
    if (!inputs.sources.is_mixture()) {
        data["epoch"] = at / samples;
        data["sample"] = at % samples;
    }
    for (const SourceUse& use : inputs.sources_after(o, p.data_step)) data["sources"][use.pattern] = use.tokens;
    Json position = {{"data", data},
                     {"reports_due", p.evaluation_due},
                     {"validation", p.watch.to_json()},
                     {"files", {{"metrics.jsonl", p.files.metrics}, {"main.log", p.files.main_log}}}};
    if (p.decay.has_begun()) position["decay"] = {{"from", p.decay.from}, {"until", p.decay.until}};
    return position;
}

std::optional<Resumed> find_checkpoint(const Options& o, const Inputs& inputs, Ranks& ranks) {
    const bool is_auto = o.resume == ResumeFrom::automatic;
    if (o.resume == ResumeFrom::nothing) return std::nullopt;
    const double began = monotonic_seconds();
    const Comm& comm = ranks.comm;
    const std::string own = o.out.empty() ? "" : o.out + "/checkpoints";
    Resumed resumed;
    while (!resumed.checkpoint) {
        Candidates mine;  // empty except on rank 0
        do_together(comm, [&] {
            if (!comm.is_main()) return;
            mine = candidates_for(o, own);
            if (is_auto && mine.all == 0) require_no_run(o.out);
        });
        if (comm.host_max(mine.all) == 0) {
            if (is_auto) return std::nullopt;
            fail("--resume {}: there is no checkpoint in {}{}", o.text("resume"),
                 comm.is_main() ? mine.directory : "the run directory",
                 o.resume == ResumeFrom::latest ? "; --resume auto starts a new run if there is none" : "");
        }
        resumed.checkpoint = newest(mine, o, ranks);
    }
    read_position(o, inputs, resumed);
    compare_settings(o, inputs, resumed);
    compare_kernels(o, resumed);
    resumed.state = state_of(*resumed.checkpoint);
    for (const Restart& restart : kRestarts)
        for (const std::string& name : words_in(restart.after_change_of))
            if (contains(resumed.changed, name) && restart.forget(resumed.position.watch, resumed.state, o))
                resumed.notes.push_back(std::string("begun again after this change: ") + restart.state);
    bool in_place = false;  // on rank 0: the checkpoint is in --out, so its logs continue
    do_together(comm, [&] {
        if (!comm.is_main() || own.empty()) return;
        std::error_code ignored;
        const fs::path parent = fs::path(resumed.checkpoint->directory() + "/x").parent_path().parent_path();
        in_place = fs::equivalent(parent.empty() ? "." : parent, own, ignored);
        const Json run = read_run_json(o.out);
        const std::string& id = resumed.position.run_id;
        if (in_place && run.is_object() && run.value("run_id", Json(id)) != id)
            fail(
                "{} is a checkpoint of run {}, and {}/run.json is that of run {}: move the checkpoint away, or "
                "continue it with --resume PATH in another --out",
                resumed.checkpoint->directory(), id, o.out, text_of(run["run_id"]));
    });
    if (comm.host_max(in_place) > 0) resumed.position.saved = resumed.position.step;
    resumed.seconds = monotonic_seconds() - began;
    return resumed;
}

// ---- setting the weights --------------------------------------------------------------------------------------------

static std::string new_run_id() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
}

// Throws unless the checkpoint holds exactly these tensors.
static void require_tensors(const CheckpointReader& checkpoint, const std::vector<StateTensor>& tensors) {
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
            fail("{} {}: it holds another model, or the state of another optimizer", checkpoint.directory(),
                 found == there.end() ? "has no tensor " + tensor.name
                                      : "has " + tensor.name + " with another shape or other parts");
    }
    if (there.size() != needed)
        fail("{} has {} tensors, the model has {}: it holds another model", checkpoint.directory(), there.size(),
             needed);
}

template <class Real>
static void restore(Trainer<Real>& trainer, Ranks& ranks, const Resumed& resumed) {
    const CheckpointReader& checkpoint = *resumed.checkpoint;
    const double began = monotonic_seconds();
    require_tensors(checkpoint, trainer.state_tensors());
    TrainerState state = resumed.state;
    state.step = resumed.position.step;
    // Earlier versions did not save the alignment, which depends on --adam-moments alone.
    if (state.residual_alignment == 0 && !contains(resumed.changed, "adam-moments"))
        state.residual_alignment = trainer.table().alignment();
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
    if (trainer.gradients().residuals() && !trainer.continues_residuals(state))
        print_line("note: --reduce fp8 starts without residuals: the checkpoint has those of {}",
                   state.residuals == trainer.comm().world() ? "another --adam-moments, with other places for tensors"
                                                             : plural(state.residuals, "rank"));
    if (trainer.config().optimizer.averages() && state.optimizer.averaged == 0)
        print_line("note: the checkpoint has no average of the weights: --average begins with this run");
    const Fp8Registry* const fp8 = trainer.fp8();
    const int64_t until = trainer.config().fp8.until;
    if (fp8 && state.fp8 && static_cast<int>(state.fp8->left.size()) == fp8->layers() && state.step < until)
        print_line(
            "note: all layers left FP8 earlier and stay in BF16, although the run is now to train in FP8 until {}; to "
            "do that, resume from a checkpoint in FP8",
            until == Fp8Until::kNever ? "its end" : fmt::format("step {}", until));
    if (!same_scales)
        print_line("note: FP8 scales are measured again in the next step: the recipe or the loss scale changed");
}

template <class Real>
void decay(Trainer<Real>& trainer, const Options& o, const Decay& decay) {
    trainer.optimizer().decay(decay.from, decay.until);
    if (trainer.fp8() && o.fp8_until.is_percentage)
        trainer.fp8()->leave_after(std::max(o.fp8_until.step(decay.until), decay.from + 1));
}

template void decay(Trainer<float>&, const Options&, const Decay&);
template void decay(Trainer<bf16>&, const Options&, const Decay&);

// The fields of a model that the shapes of its tensors do not show.
static Json fields_without_tensors(const ModelConfig& model) {
    Json fields = model_json(model);
    for (const char* shown : {"architecture", "layers", "channels", "vocab", "context", "hidden", "tied"})
        fields.erase(shown);
    return fields;
}

template <class Real>
RunPosition set_weights(Trainer<Real>& trainer, const Options& o, const Inputs& inputs, Ranks& ranks,
                        std::optional<Resumed>& resumed) {
    if (resumed) {
        restore(trainer, ranks, *resumed);
        if (o.plateau != PlateauRule{}) trainer.optimizer().scale_rate(resumed->position.watch.rate_factor());
        if (resumed->position.decay.has_begun()) decay(trainer, o, resumed->position.decay);
        resumed->checkpoint.reset();  // closes its files, which may have to be deleted
        return resumed->position;
    }
    if (o.init_from.empty()) {
        trainer.initialize(o.seed);
    } else {
        const double start = monotonic_seconds();
        const auto alive = [&] { ranks.watchdog.alive(); };
        std::unique_ptr<WeightSource> weights;
        do_together(ranks.comm, [&] { weights = open_weights(o.init_from, o.model); });
        verify_weights(*weights, ranks.comm, alive);
        load_weights(trainer, *weights, o.init_from, alive);
        if (ranks.comm.is_main())
            print_line("weights read from {} in {:.2f} s", weights->place, monotonic_seconds() - start);
        if (ranks.comm.is_main() && !weights->describes_model)
            print_line("note: {} has no config.json next to it, so these values of the model are from -e and flags: {}",
                       o.init_from, json_text(fields_without_tensors(o.model)));
        const std::optional<std::string> then = weights->tokenizer_hash, now = inputs.train->sidecar().tokenizer_hash;
        if (ranks.comm.is_main() && then && now && *then != *now)
            print_line("note: {}", from_here_on("tokenizer_hash", *now, *then));
    }
    RunPosition position;
    position.run_id = new_run_id();
    return position;
}

template RunPosition set_weights(Trainer<float>&, const Options&, const Inputs&, Ranks&, std::optional<Resumed>&);
template RunPosition set_weights(Trainer<bf16>&, const Options&, const Inputs&, Ranks&, std::optional<Resumed>&);

}  // namespace llmc
