// The options of a run: one typed field per flag, read from the command line and from a configuration file. The file
// of --config overrides the defaults, and flags override the file. parse_options() checks each value by itself.
// resolve() checks the values against each other and fills in those that were not given. Both throw Error(bad_flags).
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llmc/checkpoint/verify.h"
#include "llmc/comm/launch.h"
#include "llmc/log/profile.h"
#include "llmc/log/validation_watch.h"
#include "llmc/model/config.h"
#include "llmc/plan/cards.h"
#include "llmc/train/config.h"

namespace llmc {

// A validation set. `--val GLOB` has an empty name and is reported as val_loss, `--val name=GLOB` as val_loss_name.
// Also a task of multiple-choice examples: `--task name=FILE`.
struct ValSet {
    std::string name;
    std::string glob;
    bool operator==(const ValSet&) const = default;
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

// Choices that only options have. Those of a Trainer are in train/config.h.

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
inline constexpr WordTable<Offload> kWords<Offload> = {{"off", Offload::off},
                                                       {"optimizer", Offload::optimizer},
                                                       {"residuals", Offload::residuals},
                                                       {"both", Offload::both},
                                                       {"auto", Offload::automatic}};

enum class ResumeFrom { nothing, latest, automatic, path };
template <>
inline constexpr WordTable<ResumeFrom> kWords<ResumeFrom> = {{"latest", ResumeFrom::latest},
                                                             {"auto", ResumeFrom::automatic}};

enum class OnSaveError { go_on, stop };
template <>
inline constexpr WordTable<OnSaveError> kWords<OnSaveError> = {{"continue", OnSaveError::go_on},
                                                               {"stop", OnSaveError::stop}};

enum class ExportFormat { hf, llmc };
template <>
inline constexpr WordTable<ExportFormat> kWords<ExportFormat> = {{"hf", ExportFormat::hf},
                                                                 {"llmc", ExportFormat::llmc}};

enum class Against { off, bf16 };
template <>
inline constexpr WordTable<Against> kWords<Against> = {{"off", Against::off}, {"bf16", Against::bf16}};

// ---- all options ----------------------------------------------------------------------------------------------------

Precision default_precision();  // FP8, or what `make PRECISION=` says

// A field for every flag. Those that a Trainer takes are in TrainerConfig and the structs in it, and resolve() leaves
// there what the run needs. A flag's row in flags.cpp says what it means and which values it takes. "Not given" marks
// the values that resolve() replaces.
struct Options : TrainerConfig {
    Options();

    // Data and output
    std::string train;        // glob or mixture; see sources_from_text()
    std::vector<ValSet> val;  // any number
    std::string out;          // run directory; nothing is written if empty
    bool overwrite = false;

    // Model
    std::string model_name;  // name or file; d12 if empty
    int depth = 0;           // 0 = not given; see resolve_depth()
    std::string init_from;   // "": random weights

    // Batch and length
    int64_t total_batch = 0;  // tokens per step over all ranks; 0 = not given = B*T*ranks
    TokenStages batch_schedule, seq_schedule;
    int64_t epochs = 0;  // 0 = not given; resolve() turns it into schedule.steps and leaves 0, but not for a mixture
    int64_t stop_after = 0;  // 0 = off
    double max_minutes = 0;  // 0 = off

    // Optimization
    PlateauRule plateau;
    int64_t early_stop = 0;  // validations; 0 = off

    // Precision and memory
    int tune = 8;
    Offload offload = Offload::off;           // see set_offload()
    std::string kernels_in_use = "portable";  // by resolve(): hopper, portable, or loops on a CPU

    // FP8 (with --precision fp8)
    bool fp8_emulation = false;  // allow a GPU to emulate FP8 products
    int64_t fp8_log_every = 10;  // 0 = never
    Fp8Until fp8_until;
    int max_skips = 20;  // skipped steps in a row; 0 = no limit

    // Several processes
    CommKind comm = CommKind::automatic;
    ReduceOrder reduce_order = ReduceOrder::any;
    double timeout_start = 600;  // seconds without a sign of life; 0 = no limit
    double timeout_step = 300;
    double timeout_save = 900;

    // Checkpoints (with --out)
    int64_t checkpoint_every = 0;             // steps; 0 = off
    double checkpoint_minutes = 30;           // 0 = off
    int64_t keep = 3;                         // 0 = all
    int64_t keep_every = 0;                   // steps; 0 = off
    ResumeFrom resume = ResumeFrom::nothing;  // text("resume") is the path, if it is one
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
    int64_t log_every = 0;  // steps; 0 = not given = see steps_between_lines()
    bool print_config = false;
    bool dry_run = false;
    bool fit = false;
    bool json = false;  // the plan of --dry-run, the list of models, or what inspect finds, as JSON
    bool estimate_scaling = false;
    bool bench = false;
    std::string completion;  // the shell that asks for its script
    bool help = false, help_all = false, help_markdown = false, version = false;
    int world = 0;               // ranks to plan for; 0 = not given
    std::optional<GpuSpec> gpu;  // the card to plan for
    std::string config_file;     // of --config
    ProfileSteps profile_steps;

    // Only of the commands eval, sample, export and inspect
    std::string from;         // path of the weights to read
    bool of_average = false;  // read the average of these weights instead
    std::string to;           // file or directory to write
    ExportFormat format = ExportFormat::hf;
    StateFormat dtype = StateFormat::fp32;  // number format of the exported weights
    Against against = Against::off;         // eval compares with a forward pass in this precision
    int num_samples = 1;                    // samples per prompt
    bool no_cache = false;

    std::set<std::string> given;  // long names of the flags that the command line or --config has
    // The values of flags with a notation of their own, such as --fp8-fallback 0.01,0.5,10, as given. "" = not given.
    std::map<std::string, std::string> texts;
    std::string text(const std::string& flag) const;
    std::string command_line;  // as given, quoted for a shell
    std::string program;       // its first word

    // Filled by resolve()
    TokenSchedule batches;           // from total_batch and batch_schedule
    TokenSchedule sequences;         // from seq and seq_schedule
    std::vector<std::string> notes;  // printed at the start of the run

    // The tokens of a micro-step on all ranks together.
    int64_t micro_step_tokens(int ranks) const { return int64_t{batch} * seq * ranks; }
    // The last step that this process can reach.
    int64_t last_step() const { return stop_after > 0 ? std::min(stop_after, schedule.steps) : schedule.steps; }
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
    int64_t train_tokens = 0;            // of the training set; 0 = unknown
    // The sequences of T tokens that one epoch reads. A shard's last tokens may fill none. Unset: of a single shard.
    std::function<int64_t(int T)> train_samples;
    std::vector<int64_t> val_tokens;  // of each validation set; empty: unknown
    std::string trained_on;           // a shard that --val and --train share; "" if there is none
    std::string copied;               // a shard of --train that is a copy of another one; "" if there is none
    std::vector<int64_t> task_rows;   // completions of each task
    bool host_device = false;         // the CPU build
    bool bf16_supported = true;       // for --precision auto
    bool fp8_supported = true;        // the card has FP8 tensor cores; the host device computes exactly
    std::string device_name;          // for messages
    bool hopper = false;              // the card has compute capability 9.0
    bool tensor_maps = true;          // the driver encodes tensor maps, which Hopper's kernels need
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

// Chooses the memory that is on the host.
void set_offload(Options& options, Offload offload);

// The configuration as JSON that --config accepts: keys are long flag names. Flags that concern one invocation are left
// out.
std::string config_json(const Options& options);

// The flags in config_json() that were not given, and whose values follow from other flags. run.json names them, so
// that they follow again when a resume, or a run that is configured with that file, changes those.
std::vector<std::string> derived_flags(const Options& options);

// The output of --print-config: config_json() with the derived flags under "derived".
std::string printed_config(const Options& options);

// The flags of one invocation that must be equal on all ranks, as a text to compare.
std::string collective_flags(const Options& options);

// The pieces, for tests. `line`: the command line that overrides the file.
Options read_config_file(const std::string& path, const Options& line = Options());
std::string version_text();  // what --version prints
ValSet parse_val_set(const std::string& text, const std::string& flag = "val");
// The interval in steps at which validating on this number of batches per rank takes less than 5 % of the time of the
// steps in between. A batch costs one forward pass, and a micro-step costs three, because backward is twice forward.
// The result is rounded up to two digits, the second of which is 0 or 5.
int64_t validation_interval(int64_t batches, int64_t micro_steps);

}  // namespace llmc
