// resolve(): checks the options against each other and fills in those that follow from others.
// build: fuzzed
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "llmc/data/order.h"
#include "llmc/flags/flags.h"

namespace llmc {

template <class... Values>
static void add_note(Options& o, fmt::format_string<Values...> format, Values&&... values) {
    const std::string note = fmt::format(format, std::forward<Values>(values)...);
    if (!contains(o.notes, note)) o.notes.push_back(note);
}

// FP8 matmuls take whole blocks of scales, or multiples of 16 tokens. Returns the number of sequences of `length`
// tokens that has to divide those of a micro-batch.
static int64_t multiple_of_sequences(const Options& o, int64_t length) {
    const Fp8Scaling scaling = scaling_of(o.fp8.recipe);
    const int64_t tokens = scaling == Fp8Scaling::tensor ? 16 : block_length(scaling);
    return tokens / std::gcd(tokens, length);
}

// ---- the model -----------------------------------------------------------------------------------------------------

constexpr int kDefaultSeq = 1024;
constexpr int kDefaultVocab = 50257;  // GPT-2's

// The shape of `base` with the fields that flags change.
static void resolve_shape(ModelConfig& m, const ModelConfig& base, const ModelConfig& given) {
    if (given.layers > 0) m.layers = given.layers;
    if (given.heads > 0) m.heads = given.heads;
    if (given.channels > 0) m.channels = given.channels;
    if (m.layers != base.layers || m.heads != base.heads || m.channels != base.channels) m.name = "custom";
}

static void resolve_vocab(ModelConfig& m, const ModelConfig& given, const std::string& model_name, int data_vocab) {
    if (is_model_name(model_name) && data_vocab > 0) m.vocab = data_vocab;
    if (m.vocab == 0) m.vocab = data_vocab > 0 ? data_vocab : kDefaultVocab;
    if (given.vocab > 0) m.vocab = given.vocab;
    if (m.vocab < data_vocab)
        refuse("--vocab {} is less than the data's {} token ids; use --vocab {} or leave it out", m.vocab, data_vocab,
               data_vocab);
}

// The model of -e, with the fields that flags change. Without -e, a shape given by flags is the user's own, and its
// context follows -t.
static void resolve_model(Options& o, const ResolveInputs& inputs) {
    const ModelConfig given = o.model;
    const bool own_shape = o.model_name.empty() && (given.layers > 0 || given.heads > 0 || given.channels > 0);
    if (o.model_name.empty()) o.model_name = "d12";
    const ModelConfig base = inputs.model ? *inputs.model : find_model(o.model_name);
    o.model = base;
    resolve_shape(o.model, base, given);
    resolve_vocab(o.model, given, o.model_name, inputs.data_vocab);
    if (own_shape) o.model.context = 0;
    if (given.context > 0) o.model.context = given.context;
    if (o.model.context == 0) o.model.context = o.seq > 0 ? o.seq : kDefaultSeq;
    o.model.validate();
    o.end_token = inputs.end_token;
}

static void resolve_seq(Options& o) {
    const int context = o.model.context;
    if (o.seq == 0) o.seq = std::min(kDefaultSeq, context);
    if (o.seq <= context) return;
    const int64_t multiple = multiple_of_sequences(o, o.batch), whole = context / multiple * multiple;
    const std::string shorter = whole > 0 ? fmt::format("-t {}", whole) : "";
    const std::string larger = fmt::format("--context {}", o.seq);
    if (!o.from.empty())  // a command, such as eval, which cannot change the model
        refuse("-t {} is above the context {} of model {}; use {}", o.seq, context, o.model.name,
               shorter.empty() ? "a shorter -t" : shorter);
    refuse("-t {} is above the context {} of model {}; use {}", o.seq, context, o.model.name,
           shorter.empty() ? larger : shorter + " or " + larger);
}

// ---- tokens of a step and a sequence, and the length of the run -----------------------------------------------------

// Refuses micro-batches that kernels refuse: attention's have sequences in the third dimension of their grid, and the
// embedding's count tokens.
static void check_micro_batch(const Options& o) {
    constexpr int64_t kMostSequences = 65535, kMostTokens = 1 << 29;
    const int64_t tokens = int64_t{o.batch} * o.seq, multiple = multiple_of_sequences(o, o.seq);
    if (tokens > kMostTokens)
        refuse("-b {} x -t {} = {} tokens per micro-batch exceed the limit of {}; use -b {}", o.batch, o.seq, tokens,
               kMostTokens, std::min(kMostSequences, kMostTokens / o.seq) / multiple * multiple);
    const TokenStages& stages = o.seq_schedule;  // the first one has the shortest sequences
    const int64_t sequences = stages.empty() ? o.batch : tokens / stages.front().tokens;
    if (sequences > kMostSequences)
        refuse("-b {} makes {} sequences per micro-batch, above the limit of {}; use a smaller -b{}", o.batch,
               sequences, kMostSequences, stages.empty() ? "" : ", or longer sequences in --seq-schedule");
}

static void resolve_total_batch(Options& o, int ranks) {
    const int64_t micro_step = o.micro_step_tokens(ranks);
    if (o.total_batch == 0) o.total_batch = micro_step;
    const int64_t micro_steps = o.total_batch / micro_step, below = micro_steps * micro_step;
    if (below != o.total_batch) {
        int batch = o.batch;  // that would fit: a run that resumes on more ranks keeps its -d
        while (batch > 0 && o.total_batch % (micro_step / o.batch * batch) != 0) batch--;
        refuse("-d {} is not a multiple of the micro-step's {} tokens (-b {} x -t {} x {}); use {}{}-d {}",
               o.total_batch, micro_step, o.batch, o.seq, plural(ranks, "rank"),
               batch == 0 ? "" : fmt::format("-b {} or ", batch), below == 0 ? "" : fmt::format("-d {} or ", below),
               below + micro_step);
    }
    if (micro_steps > (1 << 24))
        refuse("-d {} makes {} micro-steps per step; use a larger -b or a smaller -d", o.total_batch, micro_steps);
    o.micro_steps = static_cast<int>(micro_steps);
}

static void resolve_batch_schedule(Options& o, int ranks) {
    o.batches = {o.batch_schedule, o.total_batch};
    const int64_t micro_step = o.micro_step_tokens(ranks);
    std::string stages;
    int64_t end = 0;
    for (const auto& [tokens, steps] : o.batches.stages()) {
        if (tokens % micro_step != 0 || tokens >= o.total_batch)
            refuse(
                "--batch-schedule {}: {} tokens per step must be below -d {} and a multiple of the micro-step's {} (-b "
                "{} x -t {} x {})",
                o.text("batch-schedule"), tokens, o.total_batch, micro_step, o.batch, o.seq, plural(ranks, "rank"));
        end += steps;
        stages += fmt::format("{} tokens per step up to step {}, ", with_commas(tokens), end);
    }
    if (end > 0) add_note(o, "--batch-schedule: {}then {}", stages, with_commas(o.total_batch));
}

static void resolve_seq_schedule(Options& o) {
    o.sequences = {o.seq_schedule, o.seq};
    if (!o.seq_schedule.empty()) o.shortest_piece = static_cast<int>(o.seq_schedule.front().tokens);
    std::string stages;
    int64_t end = 0;
    for (const auto& [tokens, steps] : o.sequences.stages()) {
        if (tokens >= o.seq || o.seq % tokens != 0)
            refuse("--seq-schedule {}: sequences of -t {} tokens cannot be cut into pieces of {}",
                   o.text("seq-schedule"), o.seq, tokens);
        end += steps;
        stages += fmt::format("sequences of {} tokens up to step {}, ", tokens, end);
    }
    if (end > 0) add_note(o, "--seq-schedule: {}then of {}", stages, o.seq);
}

// A step with more tokens than the whole training set is rarely intended.
static void note_large_batch(Options& o, int64_t train_tokens) {
    if (o.schedule.steps <= 0) return;
    const int64_t tokens = o.batches.tokens_of(o.schedule.steps);
    if (train_tokens <= 0 || tokens < train_tokens) return;
    add_note(o, "a step takes {} tokens, and the training set has {}: every step goes over all of it",
             with_commas(tokens), with_commas(train_tokens));
}

// The tokens that one epoch reads; 0 if unknown.
static int64_t tokens_of_an_epoch(const Options& o, const ResolveInputs& inputs) {
    const int64_t all = std::max<int64_t>(inputs.train_tokens - 1, 0);  // the last target needs one more token
    return (inputs.train_samples ? inputs.train_samples(o.seq) : all / o.seq) * o.seq;
}

// Turns --epochs into steps.
static void resolve_epochs(Options& o, int64_t train_tokens, int64_t epoch) {
    if (sources_from_text(o.train).is_mixture()) {
        if (o.schedule.steps == -1)
            refuse("--train has several sources, so no epoch says how long the run is; add -x N");
        return;  // --epochs limits the passes over each; see Inputs::require_enough()
    }
    if (o.epochs == 0) return;
    if (o.schedule.steps != -1) refuse("--epochs and -x both say how long the run is; use one of them");
    if (train_tokens == 0) refuse("--epochs counts passes over the training data; add --train 'GLOB', or use -x");
    if (o.epochs > std::numeric_limits<int64_t>::max() / train_tokens)
        refuse("--epochs {} of {} tokens are too many", o.epochs, with_commas(train_tokens));
    o.schedule.steps = o.batches.steps_within(o.epochs * epoch);
    if (o.schedule.steps == 0)
        refuse("--epochs {}: {} tokens are less than one step ({} tokens, -d); use a smaller -d, -b or -t", o.epochs,
               with_commas(o.epochs * epoch), with_commas(o.batches.tokens_of(1)));
    o.epochs = 0;
}

// Without -x and --epochs, the run is one epoch.
static void resolve_steps(Options& o, int64_t train_tokens, int64_t epoch) {
    if (o.schedule.steps == -1 && train_tokens > 0) {
        o.schedule.steps = o.batches.steps_within(epoch);
        if (o.schedule.steps == 0)
            refuse(
                "the training set has {} tokens in whole sequences of {} (-t), and one step needs {} (-d); use a "
                "smaller -d, -b or -t, or set -x to go over the data several times",
                with_commas(epoch), o.seq, with_commas(o.batches.tokens_of(1)));
    }
    if (o.schedule.steps > std::numeric_limits<int64_t>::max() / o.total_batch)
        refuse("-x {} steps of {} tokens (-d) are too many", o.schedule.steps, with_commas(o.total_batch));
}

// ---- the learning rate over the run --------------------------------------------------------------------------------

static void check_schedule(const Options& o, bool may_be_one_epoch) {
    const bool validates = !o.val.empty() && o.val_every != 0 && o.val_batches != 0;
    if ((o.plateau.factor < 1 || o.early_stop > 0) && !validates)
        refuse("--plateau and --early-stop follow the validation loss: add -j, and leave out -v 0 and -m 0");
    if (o.schedule.restart_every > 0 && o.schedule.kind != ScheduleKind::cosine)
        refuse("--restart-every needs --schedule cosine; this run has --schedule {}", word_of(o.schedule.kind));
    if (o.schedule.decay_from >= 0 && !takes_decay_from(o.schedule.kind))
        refuse("--decay-from needs --schedule wsd, wsd-linear or inverse-sqrt; this run has --schedule {}",
               word_of(o.schedule.kind));
    if (o.schedule.steps > 0 && o.schedule.decay_from >= o.schedule.steps)
        refuse("--decay-from {} leaves no step of {} to decay in; use a larger -x", o.schedule.decay_from,
               o.schedule.steps);
    if (o.schedule.decay_from >= 0 && o.schedule.decay_from < o.schedule.warmup)
        refuse("--decay-from {} is within the warm-up of {} steps", o.schedule.decay_from, o.schedule.warmup);
    if (o.schedule.steps > 0 && o.schedule.warmup >= o.schedule.steps)
        refuse("--warmup {} leaves none of the {} steps (-x{}) after it; use a smaller -u", o.schedule.warmup,
               o.schedule.steps, may_be_one_epoch ? ", or one epoch" : "");
}

// ---- validation ----------------------------------------------------------------------------------------------------

// How many batches of a rank one validation takes; nothing if that is unknown.
static std::optional<int64_t> batches_of_a_validation(const Options& o, const ResolveInputs& inputs) {
    const int64_t per_batch = int64_t{o.batch} * inputs.ranks;
    int64_t batches = 0;
    for (const int64_t rows : inputs.task_rows) batches += (rows + per_batch - 1) / per_batch;
    const bool sizes_known = inputs.val_tokens.size() == o.val.size();
    if (!sizes_known && o.val_batches < 0) return std::nullopt;
    if (!sizes_known) return batches + o.val_batches * static_cast<int64_t>(o.val.size());
    for (const int64_t tokens : inputs.val_tokens) {
        const int64_t samples = std::max<int64_t>(tokens - 1, 0) / o.seq;
        const int64_t all = (samples + per_batch - 1) / per_batch;
        batches += o.val_batches < 0 ? all : std::min(all, o.val_batches);
    }
    return batches;
}

static void resolve_validation_interval(Options& o, const ResolveInputs& inputs) {
    if (o.val_every >= 0 || (o.val.empty() && o.hellaswag.empty() && o.task.empty())) return;
    const std::optional<int64_t> batches = batches_of_a_validation(o, inputs);
    if (batches) o.val_every = validation_interval(*batches, o.micro_steps);
}

static void note_copied_data(Options& o, const ResolveInputs& inputs) {
    if (!inputs.trained_on.empty())
        add_note(o, "{} is in both -i and -j: its validation loss is not on unseen text", inputs.trained_on);
    if (!inputs.copied.empty())
        add_note(o, "{} is a copy of another shard of -i, so a pass reads its tokens twice", inputs.copied);
}

// ---- the optimizer -------------------------------------------------------------------------------------------------

constexpr OptimizerFlag kOptimizerFlags[] = {
    {"adam-moments", "adamw, muon or normuon"},
    {"adamw-lr", "muon or normuon", "use --lr"},
    {"adamw-weight-decay", "muon or normuon", "use --weight-decay"},
    {"muon-ns", "muon or normuon"},
    {"muon-scale", "muon or normuon"},
    {"cautious-decay", "adamw, muon or normuon"},
    {"beta1", "adamw, lion, muon or normuon"},
    {"beta2", "adamw, lion, muon or normuon"},
    {"eps", "adamw, muon or normuon"},
    {"momentum", "sgd, muon or normuon"},
    {"nesterov", "adamw, sgd, muon or normuon"},
};

static void check_optimizer_flags(const Options& o) {
    for (const auto& [name, optimizers, instead] : ignored_flags(o))
        refuse("--{} needs --optimizer {}, and this run has --optimizer {}; {}", name, optimizers,
               word_of(o.optimizer.kind), instead);
}

static void check_clipping(const Options& o) {
    if (o.optimizer.clip_kind != ClipKind::norm && o.clip == 0)
        refuse("--clip-kind {} has no effect with --clip 0, which turns clipping off; give --clip X",
               word_of(o.optimizer.clip_kind));
    if (o.optimizer.clip_kind != ClipKind::norm && o.sharding.gradients != StateFormat::fp32)
        refuse(
            "--clip-kind {} changes gradients in place, which would round them once more with --gradients bf16; "
            "leave one of them out",
            word_of(o.optimizer.clip_kind));
    if (o.qk_clip > 0 && o.model.table().qk_norm)
        refuse(
            "--qk-clip {:g} scales the weights of queries and keys, which the QK-norm of this model undoes; leave it "
            "out: QK-norm limits attention's logits by itself",
            o.qk_clip);
}

// Fills in defaults that depend on the optimizer. An --adamw-lr without X stays as it was given: rates that it leaves
// out follow --lr, also if a resumed run changes that.
static void resolve_optimizer(Options& o) {
    const Flag& adamw_lr = *find_flag("adamw-lr");
    const bool follows = o.given.contains("adamw-lr") && o.optimizer.adamw_lr < 0;
    const std::string given = flag_text(adamw_lr, o);
    o.optimizer = o.optimizer.complete(o.schedule.lr);
    if (follows) adamw_lr.set(o, given);
    o.optimizer.rounding_seed = o.seed;
    const auto [momentum, warmup] = o.optimizer.muon_momentum();
    if (warmup > 0 && !is_muon(o.optimizer.kind))
        refuse(
            "--momentum {0:g},{1} needs --optimizer muon or normuon, and this run has --optimizer {2}; use --momentum "
            "{0:g}",
            momentum, warmup, word_of(o.optimizer.kind));
    if (warmup > 0 && momentum < kFirstMuonMomentum)
        refuse("--momentum {0:g},{1}: muon's momentum grows from {2:g}; use --momentum {0:g}, or one above {2:g}",
               momentum, warmup, kFirstMuonMomentum);
}

// ---- profiles, checkpoints and ranks --------------------------------------------------------------------------------

static void check_profiled_steps(const Options& o) {
    if (!o.profile_steps.any() || o.schedule.steps <= 0) return;
    const ProfileSteps& steps = o.profile_steps;
    if (steps.last > o.last_step())
        refuse("--profile-steps {} asks for the steps {} to {}, but the run ends after step {}",
               o.text("profile-steps"), steps.first, steps.last, o.last_step());
}

static void check_resume(const Options& o) {
    const bool resumes = o.resume != ResumeFrom::nothing;
    if (resumes && o.overwrite) refuse("--overwrite removes the run that --resume would continue; use one of them");
    if (!resumes && (o.rewind > 0 || o.skip_data > 0 || o.new_data))
        refuse("--rewind, --skip-data and --new-data need a checkpoint; add --resume latest");
}

static void resolve_zero(Options& o, int ranks) {
    if (ranks == 1 && o.sharding.stage > 0)
        add_note(o, "-z {} has no effect in one process; start several with mpirun or srun", o.sharding.stage);
    if (o.sharding.stage < 0 || ranks == 1) o.sharding.stage = ranks > 1 ? 1 : 0;
}

// ---- precision and kernels -----------------------------------------------------------------------------------------

static void resolve_precision(Options& o, const ResolveInputs& inputs) {
    if (o.precision != Precision::automatic) return;
    o.precision = inputs.fp8_supported ? Precision::fp8 : inputs.bf16_supported ? Precision::bf16 : Precision::fp32;
    add_note(o, "--precision auto: {}", word_of(o.precision));
}

static void resolve_loss_scale(Options& o) {
    if (o.text("loss-scale").empty()) find_flag("loss-scale")->set(o, o.is_fp8() ? "dynamic" : "off");
}

// run.json and checkpoints name the layers that `auto` stands for.
static void resolve_fp8_layers(Options& o) {
    const std::string text = o.text("fp8-layers");
    const size_t first = std::min(text.find(','), text.size());
    if (o.is_fp8() && text.substr(0, first) == "auto")
        find_flag("fp8-layers")->set(o, fp8_layers_auto(o.model.layers, scaling_of(o.fp8.recipe)) + text.substr(first));
}

static void check_fp8(const Options& o, const ResolveInputs& inputs) {
    if (!o.is_fp8()) return;
    if (!inputs.fp8_supported)
        refuse("--precision fp8: {} has no FP8 (GPUs from sm_89 on have it); use --precision bf16", inputs.device_name);
    const int64_t tokens = int64_t{o.batch} * o.seq;
    const int64_t batch = round_up<int64_t>(o.batch, multiple_of_sequences(o, o.seq));
    if (tokens % 16 != 0)
        refuse(
            "-b {} x -t {} = {} tokens per micro-batch is not a multiple of 16, which FP8 wgrad needs; use -b {}{} or "
            "--precision bf16",
            o.batch, o.seq, tokens, batch,
            o.given.contains("total-batch")
                ? fmt::format(" -d {}", round_up(o.total_batch, batch * o.seq * inputs.ranks))
                : "");
}

// An FP8 run whose products run in BF16 would be a slower BF16 run with a wrong name. A CPU always emulates them.
static void check_emulation(Options& o, const ResolveInputs& inputs) {
    if (!o.is_fp8()) return;
    if (inputs.host_device)
        add_note(o, "FP8 is emulated on the CPU: matmuls read FP8 values and compute in BF16 or FP32");
    const std::string because = inputs.fp8_emulated_because ? inputs.fp8_emulated_because(o.fp8.recipe) : "";
    if (because.empty()) return;
    if (!o.fp8_emulation)
        refuse(
            "--fp8-recipe {}: {}. Use another recipe or --precision bf16; --fp8-emulation runs the matmuls in BF16 on "
            "the same FP8 values, slower than --precision bf16",
            word_of(o.fp8.recipe), because);
    add_note(o, "--fp8-emulation: all FP8 matmuls run in BF16, slower than --precision bf16: {}", because);
}

static void resolve_offload(Options& o) {
    const bool fp32 = o.precision == Precision::fp32;
    if (fp32 && offloads_optimizer(o.offload))
        refuse("--offload {} needs --precision bf16 or fp8: in fp32 the masters themselves are the model's weights",
               word_of(o.offload));
    set_offload(o, fp32 && o.offload == Offload::automatic ? Offload::off : o.offload);
}

static void note_tf32_without_effect(Options& o, const ResolveInputs& inputs) {
    if (o.tf32 && inputs.host_device)
        add_note(o, "--tf32 is ignored: the CPU build has no tensor cores");
    else if (o.tf32 && o.precision != Precision::fp32)
        add_note(o, "--tf32 is ignored: it needs --precision fp32, and this run has {}", word_of(o.precision));
}

// Notes flags that differ from the default and that this run never reads.
static void note_flags_without_effect(Options& o, int ranks) {
    if (o.dry_run || o.estimate_scaling || o.bench) return;
    const bool validates = !o.val.empty(), scores = !o.task.empty() || !o.hellaswag.empty();
    const struct {
        const char* names;
        bool are_read;
        const char* without;
    } rows[] = {{"val-batches val-precision", validates, "without --val"},
                {"val-every", validates || scores, "without --val, --task or --hellaswag"},
                {"prompt sample-tokens temperature top-k top-p", o.sample_every > 0, "without --sample-every"},
                {"top-k top-p", o.temperature > 0, "with --temperature 0"},
                {"keep after-checkpoint checkpoint-local on-save-error", !o.out.empty(), "without --out"},
                {"reduce", ranks > 1, "in one process; start several with mpirun or srun"}};
    for (const auto& [names, are_read, without] : rows)
        for (const std::string& name : words_in(names)) {
            const Flag& flag = *find_flag(name);
            if (!are_read && o.given.contains(name) && *flag.get(o) != *flag.get(Options()))
                add_note(o, "--{} has no effect {}", name, without);
        }
    for (const char* name : {"verify-every", "signals-every"})
        if (const Json every = *find_flag(name)->get(o); o.given.contains(name) && every > o.schedule.steps)
            add_note(o, "--{} {} has no effect in {}", name, json_text(every), plural(o.schedule.steps, "step"));
    if (o.is_fp8() && o.fp8.until != Fp8Until::kNever && o.fp8.until >= o.schedule.steps && o.schedule.steps >= 0)
        add_note(o, "--fp8-until {} has no effect in {}", o.text("fp8-until"), plural(o.schedule.steps, "step"));
}

// Notes FP8 flags that differ from the default in a run without FP8. A run.json also holds the defaults.
static void note_fp8_flags_without_effect(Options& o) {
    if (o.is_fp8()) return;
    std::vector<std::string> names;
    for (const Flag& flag : all_flags())
        if (flag.long_name.starts_with("fp8-") && *flag.get(o) != *flag.get(Options()))
            names.push_back("--" + flag.long_name);
    if (!names.empty())
        add_note(o, "{} {} no effect with --precision {}", joined(names), names.size() == 1 ? "has" : "have",
                 word_of(o.precision));
}

// run.json and checkpoints name the kernels, because others may round differently.
static void resolve_kernels(Options& o, const ResolveInputs& inputs) {
    const bool hopper = inputs.hopper && o.kernels == Kernels::automatic && o.precision != Precision::fp32;
    o.kernels_in_use = inputs.host_device ? "loops" : hopper && inputs.tensor_maps ? "hopper" : "portable";
    if (hopper && !inputs.tensor_maps)
        add_note(o,
                 "portable kernels run instead of Hopper's: this driver cannot encode tensor maps; use one for CUDA 12 "
                 "or later");
}

void set_offload(Options& o, Offload offload) {
    o.offload = offload;
    o.sharding.offload_state = offloads_optimizer(offload);
    o.offload_residuals = offloads_residuals(offload);
}

std::vector<OptimizerFlag> ignored_flags(const Options& o) {
    // Resolved options, as in run.json, have defaults even for flags that the optimizer ignores.
    Options defaults;
    defaults.optimizer.kind = o.optimizer.kind;
    defaults.optimizer = defaults.optimizer.complete(defaults.schedule.lr);
    std::vector<OptimizerFlag> ignored;
    for (const OptimizerFlag& row : kOptimizerFlags) {
        std::string optimizers = row.optimizers;
        std::replace(optimizers.begin(), optimizers.end(), ',', ' ');
        if (contains(words_in(optimizers), word_of(o.optimizer.kind))) continue;
        const Flag& flag = *find_flag(row.name);
        const Json value = *flag.get(o);
        if (value != *flag.get(defaults) && value != *flag.get(Options())) ignored.push_back(row);
    }
    return ignored;
}

int64_t validation_interval(int64_t batches, int64_t micro_steps) {
    constexpr int64_t kShare = 20;  // 1 / 5 %
    const int64_t steps = batches * kShare / (3 * micro_steps) + 1;
    int64_t unit = 1;  // the value of the first digit, then half of it
    while (unit * 10 <= steps) unit *= 10;
    if (unit > 1) unit /= 2;
    return round_up(steps, unit);
}

void resolve(Options& o, const ResolveInputs& inputs) {
    // Each rule needs what those before it decide: the model, then the tokens of a micro-batch, a step and the run.
    resolve_depth_model(o);
    resolve_model(o, inputs);
    resolve_depth(o);
    resolve_seq(o);
    check_micro_batch(o);
    resolve_total_batch(o, inputs.ranks);
    resolve_batch_schedule(o, inputs.ranks);
    resolve_seq_schedule(o);
    resolve_zero(o, inputs.ranks);
    const int64_t epoch = tokens_of_an_epoch(o, inputs);
    resolve_epochs(o, inputs.train_tokens, epoch);
    resolve_steps(o, inputs.train_tokens, epoch);
    note_large_batch(o, inputs.train_tokens);
    o.fp8.until = o.fp8_until.step(o.schedule.steps);

    check_schedule(o, inputs.train_tokens > 0);
    check_optimizer_flags(o);
    check_clipping(o);
    resolve_optimizer(o);

    resolve_validation_interval(o, inputs);
    note_copied_data(o, inputs);
    check_profiled_steps(o);
    check_resume(o);

    // The number formats, and the memory and kernels that suit them.
    resolve_precision(o, inputs);
    resolve_loss_scale(o);
    resolve_fp8_layers(o);
    check_fp8(o, inputs);
    check_emulation(o, inputs);
    resolve_offload(o);
    note_tf32_without_effect(o, inputs);
    note_fp8_flags_without_effect(o);
    note_flags_without_effect(o, inputs.ranks);
    resolve_kernels(o, inputs);
}

}  // namespace llmc
