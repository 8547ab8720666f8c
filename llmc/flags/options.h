// The options of a run: one typed field per flag, read from the command line and from a configuration file. The file
// of --config overrides the defaults, and flags override the file. parse_options() checks each value by itself.
// resolve() checks the values against each other and fills in those that were not given. Both throw Error(bad_flags).
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/comm/launch.h"
#include "llmc/kernels/variants.h"
#include "llmc/log/profile.h"
#include "llmc/log/validation_watch.h"
#include "llmc/model/config.h"
#include "llmc/optim/prepare_step.h"
#include "llmc/plan/cards.h"
#include "llmc/train/words.h"

namespace llmc {

// A validation set. `--val GLOB` has an empty name and is reported as val_loss, `--val name=GLOB` as val_loss_name.
// Also a task of multiple-choice examples: `--task name=FILE`.
struct ValSet {
    std::string name;
    std::string glob;
    bool operator==(const ValSet&) const = default;
};

// A value with a notation of its own, such as --fp8-fallback 0.01,0.5,10.
template <class T>
struct Parsed {
    std::string text;  // as given, for messages and run.json
    T value = {};      // parsed from `text`
    bool operator==(const Parsed& other) const { return text == other.text; }
};

// ---- --batch-schedule and --seq-schedule ----------------------------------------------------------------------------
// The number of tokens per optimizer step and per sequence. Large runs begin with small batches, as GPT-3's (arXiv
// 2005.14165) and DeepSeek-V3's (arXiv 2412.19437) did: early gradients agree, and a small batch learns as much from
// fewer tokens. Short sequences to begin with make early steps cheaper and steadier (arXiv 2108.06084).

// For `steps` steps, a step or a sequence has `tokens` tokens.
struct TokenStage {
    int64_t tokens, steps;
    bool operator==(const TokenStage&) const = default;
};
using TokenStages = std::vector<TokenStage>;

// The tokens of a step, or of a sequence, throughout a run: the stages come first, and `last` tokens afterwards.
class TokenSchedule {
public:
    TokenSchedule() = default;
    TokenSchedule(TokenStages stages, int64_t last) : stages_(std::move(stages)), last_(last) {}

    const TokenStages& stages() const { return stages_; }
    int64_t tokens_of(int64_t step) const;  // steps are counted from 1
    // For tokens per step: the tokens of steps 1 to `step`, and the number of steps that take at most `tokens`.
    int64_t tokens_until(int64_t step) const;
    int64_t steps_within(int64_t tokens) const;
    bool grows_after(int64_t step) const { return tokens_of(step + 1) != last_; }

    bool operator==(const TokenSchedule&) const = default;

private:
    TokenStages stages_;
    int64_t last_ = 1;
};

// Read --batch-schedule and --seq-schedule: TOKENS:STEPS,..., each stage with more tokens than the one before, or
// "off". They throw Error(bad_flags).
TokenStages batch_stages_from_text(const std::string& text);
TokenStages seq_stages_from_text(const std::string& text);

// ---- choices --------------------------------------------------------------------------------------------------------

// Choices that only options have. Those of a Trainer are in train/words.h.
enum class MuonSteps : char { k = 'k', p = 'p' };  // see newton_schulz_steps()
template <>
inline constexpr Word<MuonSteps> kWords<MuonSteps>[] = {{"k", MuonSteps::k}, {"p", MuonSteps::p}};

enum class Nesterov { by_optimizer, on, off };
template <>
inline constexpr Word<Nesterov> kWords<Nesterov>[] = {{"on", Nesterov::on}, {"off", Nesterov::off}};

// The parts of a run's memory that are in host memory.
enum class Offload {
    off,
    optimizer,  // masters and moments
    residuals,  // the blocks' inputs, between forward and backward
    both,
    automatic  // until choose_automatic() replaces it
};
constexpr bool offloads_optimizer(Offload offload) { return offload == Offload::optimizer || offload == Offload::both; }
constexpr bool offloads_residuals(Offload offload) { return offload == Offload::residuals || offload == Offload::both; }
template <>
inline constexpr Word<Offload> kWords<Offload>[] = {{"off", Offload::off},
                                                    {"optimizer", Offload::optimizer},
                                                    {"residuals", Offload::residuals},
                                                    {"both", Offload::both},
                                                    {"auto", Offload::automatic}};

enum class ResumeFrom { nothing, latest, automatic, path };
template <>
inline constexpr Word<ResumeFrom> kWords<ResumeFrom>[] = {{"latest", ResumeFrom::latest},
                                                          {"auto", ResumeFrom::automatic}};

enum class OnSaveError { go_on, stop };
template <>
inline constexpr Word<OnSaveError> kWords<OnSaveError>[] = {{"continue", OnSaveError::go_on},
                                                            {"stop", OnSaveError::stop}};

enum class ExportFormat { hf, llmc };
template <>
inline constexpr Word<ExportFormat> kWords<ExportFormat>[] = {{"hf", ExportFormat::hf}, {"llmc", ExportFormat::llmc}};

template <>
inline constexpr Word<Verify> kWords<Verify>[] = {
    {"full", Verify::full}, {"size", Verify::size}, {"none", Verify::none}};

// ---- all options ----------------------------------------------------------------------------------------------------

Precision default_precision();  // FP8, or what `make PRECISION=` says

// A field for every flag, by the flag's name. Its row in flags.cpp says what it means and which values it takes. "Not
// given" marks the values that resolve() replaces.
struct Options {
    // Data and output
    std::string train;        // glob or mixture; see sources_from_text()
    std::vector<ValSet> val;  // any number
    std::string out;          // run directory; nothing is written if empty
    bool overwrite = false;

    // Model
    std::string model;                        // name or file; d12 if empty
    int depth = 0;                            // 0 = not given; see resolve_depth()
    int layers = 0, heads = 0, channels = 0;  // 0 = not given
    int vocab = 0, context = 0;               // 0 = not given
    std::string init_from;                    // "": random weights

    // Batch and length
    int batch = 4;            // B, sequences per micro-step and rank
    int seq = 0;              // T; 0 = not given = 1024, or the context if that is shorter
    bool doc_mask = false;    // attention does not cross documents
    int64_t total_batch = 0;  // tokens per step over all ranks; 0 = not given = B*T*ranks
    Parsed<TokenStages> batch_schedule = {"off", {}};
    Parsed<TokenStages> seq_schedule = {"off", {}};
    int64_t max_steps = -1;  // -1 = one epoch; stays -1 when the training set's size is not known
    int64_t epochs = 0;      // 0 = not given; resolve() turns it into max_steps and leaves 0, but not for a mixture
    int64_t stop_after = 0;  // 0 = off
    double max_minutes = 0;  // 0 = off

    // Optimization
    double lr = 3e-4;
    ScheduleKind schedule = ScheduleKind::cosine;
    int64_t warmup = 0;
    double final_lr_fraction = 0;
    double cooldown = 0.2;      // of wsd
    int64_t decay_from = -1;    // step; -1 = not given: by cooldown
    int64_t restart_every = 0;  // steps; 0 = never
    int64_t restart_factor = 1;
    Parsed<PlateauRule> plateau = {"off", {}};
    int64_t early_stop = 0;  // validations; 0 = off
    OptimizerKind optimizer = OptimizerKind::adamw;
    double weight_decay = 0.1;
    double beta1 = 0.9, eps = 1e-8;
    StateFormat master = StateFormat::fp32, gradients = StateFormat::fp32, adam_moments = StateFormat::fp32;
    double beta2 = -1;                           // -1 = not given = 0.95, lion's 0.99
    double momentum = -1;                        // -1 = not given = 0.9, muon's 0.95
    Nesterov nesterov = Nesterov::by_optimizer;  // not given = off, with muon on
    MuonSteps muon_ns = MuonSteps::k;
    MuonScale muon_scale = MuonScale::rms;
    int64_t muon_momentum_warmup = 0;  // steps; 0 = off
    bool cautious_decay = false;
    double adamw_lr = -1, embedding_lr = -1, head_lr = -1, vector_lr = -1;  // -1 = not given = the one before, or lr
    double adamw_weight_decay = -1;                                         // -1 = not given = weight_decay
    double clip = 1.0;                                                      // 0 = off
    ClipKind clip_kind = ClipKind::norm;
    double qk_clip = 0;  // 0 = off
    double z_loss = 0;
    Parsed<double> average = {"off", 0};  // decay

    // Precision and memory
    Precision precision = default_precision();  // resolve() leaves fp32, bf16 or fp8
    bool tf32 = false;
    int tune = 8;
    Recompute recompute = Recompute::automatic;  // choose_automatic() replaces it
    Offload offload = Offload::off;
    Parsed<WantedKernels> kernels = {"auto", {}};  // see kernel_set

    // FP8 (with --precision fp8)
    Fp8Recipe fp8_recipe = Fp8Recipe::delayed;
    Parsed<Fp8LayerTerms> fp8_layers = {"all", {{"all"}}};
    Fp8Grad fp8_grad = Fp8Grad::e5m2;
    int fp8_history = 16;  // optimizer steps
    int fp8_margin = 0;    // headroom in powers of two
    AmaxAlgorithm fp8_amax_algo = AmaxAlgorithm::max;
    bool fp8_pow2_scales = false;
    FastAccumulation fp8_fast_accum = FastAccumulation::forward;
    bool fp8_emulation = false;  // allow a GPU to emulate FP8 products
    int64_t fp8_log_every = 10;  // 0 = never
    Parsed<Fp8FallbackRule> fp8_fallback = {"off", {}};
    Parsed<Fp8Until> fp8_until = {"off", {}};
    Parsed<LossScaleConfig> loss_scale;  // "" = not given = dynamic in fp8, else off
    int loss_scale_growth_interval = 1000;
    int max_skips = 20;        // skipped steps in a row; 0 = no limit
    bool skip_spikes = false;  // skip steps whose loss or norm is far above those of past steps

    // Several processes
    int zero = -1;         // 0 to 3; -1 = not given = 1 with several ranks, else 0
    int shard_within = 0;  // ranks of a group that shards; 0 = all
    CommKind comm = CommKind::automatic;
    Wire reduce = Wire::fp32;
    ReduceOrder reduce_order = ReduceOrder::any;
    double timeout_start = 600;  // seconds without a sign of life; 0 = no limit
    double timeout_step = 300;
    double timeout_save = 900;

    // Checkpoints (with --out)
    int64_t checkpoint_every = 0;    // steps; 0 = off
    double checkpoint_minutes = 30;  // 0 = off
    int64_t keep = 3;                // 0 = all
    int64_t keep_every = 0;          // steps; 0 = off
    Parsed<ResumeFrom> resume;       // its text is the path, if it is one
    Verify verify = Verify::full;
    OnSaveError on_save_error = OnSaveError::go_on;
    std::string checkpoint_local;  // directory; "": staged in memory
    std::string after_checkpoint;  // a shell command, or ""
    int64_t rewind = 0;            // checkpoints
    int64_t skip_data = 0;         // steps
    bool new_data = false;

    // Validation and samples
    int64_t val_every = -1;    // steps; 0 = never; -1 = not given = see validation_interval()
    int64_t val_batches = 20;  // 0 = never, -1 = all
    std::string hellaswag;     // file; may be empty
    std::vector<ValSet> task;  // name and file of each
    int64_t sample_every = 0;  // 0 = never
    int sample_tokens = 64;    // 0 = no samples
    std::string tokenizer;
    std::string prompt;
    double temperature = 1.0;  // 0 = always the most likely token
    int top_k = 0;             // 0 = off
    double top_p = 1.0;

    // Running and planning
    uint64_t seed = 1337;
    int64_t log_every = 1;      // steps
    int64_t signals_every = 0;  // steps; 0 = never
    int64_t verify_every = 0;   // steps; 0 = never
    bool print_config = false;
    bool dry_run = false;
    bool fit = false;
    bool json = false;  // the plan of --dry-run, or what inspect finds, as JSON
    bool estimate_scaling = false;
    bool bench = false;
    bool help = false, help_all = false, help_markdown = false, version = false;
    int world = 0;                       // ranks to plan for; 0 = not given
    Parsed<std::optional<GpuSpec>> gpu;  // the card to plan for
    std::string config_file;             // of --config
    Parsed<ProfileSteps> profile_steps;  // may be empty

    // Only of the commands eval, sample, export and inspect
    std::string from;         // path of the weights to read
    bool of_average = false;  // read the average of these weights instead
    std::string to;           // file or directory to write
    ExportFormat format = ExportFormat::hf;
    StateFormat dtype = StateFormat::fp32;  // number format of the exported weights
    int num_samples = 1;                    // samples per prompt
    bool no_cache = false;

    std::set<std::string> given;  // long names of the flags that the command line or --config has
    std::string command_line;     // as given, quoted for a shell
    std::string program;          // its first word

    // Filled by resolve()
    ModelConfig model_config;
    KernelSet kernel_set;            // what --kernels means on this card
    int end_token = -1;              // token that begins every document; -1 without data
    int micro_steps = 0;             // per step: total_batch / (B*T*ranks)
    TokenSchedule batches;           // from total_batch and batch_schedule
    TokenSchedule sequences;         // from seq and seq_schedule
    std::vector<std::string> notes;  // printed at the start of the run

    // The tokens of a micro-step on all ranks together.
    int64_t micro_step_tokens(int ranks) const { return int64_t{batch} * seq * ranks; }
    // The last step that this process can reach.
    int64_t last_step() const { return stop_after > 0 ? std::min(stop_after, max_steps) : max_steps; }

    bool operator==(const Options&) const = default;
};

// `text` is the output of --help, --version or -e list, after which the program exits with code 0. Absent for a run.
struct ParsedOptions {
    Options options;
    std::optional<std::string> text;
};

ParsedOptions parse_options(int argc, const char* const* argv);
// The same for eval, sample, export or inspect, with the arguments after its name.
ParsedOptions parse_command(const std::string& command, const std::vector<std::string>& arguments);

// ---- what the options mean together, for this run -------------------------------------------------------------------

// The facts about the surroundings that resolve() needs.
struct ResolveInputs {
    int ranks = 1;
    const ModelConfig* model = nullptr;  // of existing weights, used instead of --model's
    int data_vocab = 0;                  // from the sidecar of the shards; 0 = unknown
    int end_token = -1;                  // of the shards; -1 = unknown
    int64_t train_tokens = 0;            // of one epoch; 0 = unknown
    std::vector<int64_t> val_tokens;     // of each validation set; empty: unknown
    std::string trained_on;              // a shard that --val and --train share; "" if there is none
    std::vector<int64_t> task_rows;      // completions of each task
    bool host_device = false;            // the CPU build
    bool bf16_supported = true;          // for --precision auto
    bool fp8_supported = true;           // the card has FP8 tensor cores; the host device computes exactly
    std::string device_name;             // for messages
    std::optional<int> card;             // see variants.h; unset for a plan
    bool tensor_maps = true;             // the driver encodes tensor maps, which Hopper's kernels need
    // Why the card computes all products of an FP8 recipe in BF16; "", or unset, if it has FP8 products.
    std::function<std::string(Fp8Recipe)> fp8_emulated_because;
};

// Call it once, on what parse_options() returned. Values that it fills in count as given afterwards.
void resolve(Options& options, const ResolveInputs& inputs);

// The parts of resolve() that are about --depth, nanochat's one dial (depth.cpp). The first one names the model, before
// it is looked up, and refuses another one. The second one needs the model and its vocabulary. It sets the other flags
// that --depth stands for, unless they were given, and notes all of them.
void resolve_depth_model(Options& options);
void resolve_depth(Options& options);

// The configuration of a Trainer for resolved options.
struct TrainerConfig;
TrainerConfig trainer_config(const Options& options, const ProductChoices& products = {});

// The configuration as JSON that --config accepts: keys are long flag names. Flags that concern one invocation are left
// out.
std::string config_json(const Options& options);

// The flags of one invocation that must be equal on all ranks, as a text to compare.
std::string collective_flags(const Options& options);

// The options of a configuration that config_json() wrote.
Options options_from_json(const std::string& text);

// The pieces, for tests.
Options read_config_file(const std::string& path);
std::string version_text();  // what --version prints
ValSet parse_val_set(const std::string& text, const std::string& flag = "val");
// The interval in steps at which validating on this number of batches per rank takes less than 5 % of the time of the
// steps in between. A batch costs one forward pass, and a micro-step costs three, because backward is twice forward.
// The result is rounded up to two digits, the second of which is 0 or 5.
int64_t validation_interval(int64_t batches, int64_t micro_steps);

}  // namespace llmc
