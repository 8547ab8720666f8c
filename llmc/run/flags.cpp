#include "llmc/run/flags.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "llmc/device/error.h"
#include "llmc/fp8/recipe.h"
#include "llmc/run/gpu_table.h"
#include "llmc/run/profile.h"

namespace llmc {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 50;
constexpr int kMaxInt = std::numeric_limits<int>::max();

// The bounds of a real-valued flag; a bound is part of the range unless it is open.
struct Range {
    double low, high;
    bool low_open = false, high_open = false;
    bool holds(double x) const { return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high); }
    std::string text() const {
        if (std::isinf(high)) return strprintf("%s %g", low_open ? "above" : "at least", low);
        return strprintf("in %c%g, %g%c", low_open ? '(' : '[', low, high, high_open ? ')' : ']');
    }
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Checks run on the text before CLI11 converts it: they return what is wrong, or rewrite the text to plain decimal
// (CLI11 would read "010" as octal).
template <class T>
CLI::Validator whole_number(T low, T high) {
    auto check = [low, high](std::string& text) -> std::string {
        T value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool parsed = !text.empty() && end == text.data() + text.size();
        const bool negative = std::is_unsigned_v<T> && text.size() > 1 && text[0] == '-';  // which T cannot hold
        if (parsed && error == std::errc{} && value >= low && value <= high) {
            text = std::to_string(value);
            return "";
        }
        if (!negative && (!parsed || error == std::errc::invalid_argument))
            return "'" + text + "' is not a whole number";
        return text + " is out of range; it must be from " + std::to_string(low) + " to " + std::to_string(high);
    };
    return CLI::Validator(check, "");
}

CLI::Validator real_number(Range range) {
    auto check = [range](std::string& text) -> std::string {
        char* end = nullptr;
        errno = 0;
        const double value = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' || !std::isfinite(value)) return "'" + text + "' is not a number";
        if (!range.holds(value))
            return strprintf("%s is out of range; it must be %s", text.c_str(), range.text().c_str());
        return "";
    };
    return CLI::Validator(check, "");
}

// One of `words`; `also` may add what to say about a word that is none of them.
CLI::Validator one_of(std::vector<std::string> words, std::function<std::string(const std::string&)> also = {}) {
    auto check = [words, also](std::string& text) -> std::string {
        std::string known;
        for (const std::string& word : words) {
            if (text == word) return "";
            known += (known.empty() ? "" : ", ") + word;
        }
        const std::string more = also ? also(text) : "";
        return "'" + text + "' is not one of " + known + (more.empty() ? "" : "; " + more);
    };
    return CLI::Validator(check, "");
}

CLI::Validator not_empty() {
    return CLI::Validator([](std::string& text) { return std::string(text.empty() ? "the value is empty" : ""); }, "");
}

std::string llmc_recompute(const std::string& value) {
    if (value == "0") return "llm.c's -r 0 is -r none here";
    if (value == "1") return "llm.c's -r 1 is -r gelu here";
    if (value == "2") return "llm.c's -r 2 is -r norm here";
    return "";
}

std::string shown(const std::string& value) { return value; }
std::string shown(double value) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return std::string(text, end);
}
template <class T>
requires std::is_integral_v<T> std::string shown(T value) { return std::to_string(value); }

}  // namespace

bool Flag::command_line_only() const {
    for (const char* name : {"config", "print-config", "dry-run", "estimate-scaling", "gpu", "world", "overwrite",
                             "profile-steps", "help", "version"}) {
        if (long_name == name) return true;
    }
    return false;
}

struct FlagSet::Parser {
    CLI::App app;
    std::vector<Flag> flags;
    std::string group;
    Options& options;
    std::vector<std::string> val_texts;

    explicit Parser(Options& o) : options(o) {
        app.set_help_flag();
        data_and_output();
        model();
        batch_and_length();
        optimization();
        precision_and_memory();
        fp8();
        several_processes();
        validation_and_samples();
        running();
    }

    template <class T>
    CLI::Option* add(char short_name, const char* long_name, T& variable, const char* value, const char* help,
                     const char* default_text = nullptr) {
        std::string text = default_text ? default_text : shown(variable);
        flags.push_back({group, short_name, long_name, value, help, text});
        return app.add_option(std::string("--") + long_name, variable)->take_last();
    }
    void add_switch(char short_name, const char* long_name, bool& variable, const char* help) {
        flags.push_back({group, short_name, long_name, "", help, ""});
        app.add_flag(std::string("--") + long_name, variable)->take_last();
    }

    void data_and_output();
    void model();
    void batch_and_length();
    void optimization();
    void precision_and_memory();
    void fp8();
    void several_processes();
    void validation_and_samples();
    void running();
};

void FlagSet::Parser::data_and_output() {
    group = "Data and output";
    add('i', "train", options.train, "GLOB", "token shards to train on; quote the pattern")->transform(not_empty());
    flags.push_back({group, 'j', "val", "GLOB",
                     "token shards to validate on; several as --val NAME=GLOB, logged as "
                     "val_loss_NAME",
                     ""});
    app.add_option("--val", val_texts)->take_all()->allow_extra_args(false)->expected(1)->transform(not_empty());
    add('o', "out", options.out, "DIR", "run directory for run.json, metrics.jsonl, main.log and the model", "none");
    add_switch(0, "overwrite", options.overwrite, "let --out replace the run that DIR already holds");
}

void FlagSet::Parser::model() {
    group = "Model";
    add('e', "model", options.model, "NAME|FILE",
        "d6 d12 d24 d36 d48, gpt2[-medium|-large|-xl], gpt3-125m ... gpt3-6.7b, or a JSON file (Hugging Face's "
        "config.json too)",
        "d12")
        ->transform(not_empty());
    add(0, "layers", options.layers, "N", "transformer blocks", "the model's")->transform(whole_number(1, kMaxInt));
    add(0, "heads", options.heads, "N", "attention heads; channels / heads must be 32, 64 or 128", "the model's")
        ->transform(whole_number(1, kMaxInt));
    add(0, "channels", options.channels, "N", "width of the residual stream", "the model's")
        ->transform(whole_number(1, kMaxInt));
    add(0, "vocab", options.vocab, "N", "token ids", "the data's, or 50257")->transform(whole_number(1, kMaxInt));
    add(0, "context", options.context, "N", "longest sequence the model can take",
        "the model's; -t for a shape of your own")
        ->transform(whole_number(1, kMaxInt));
    add(0, "init-from", options.init_from, "PATH",
        "weights to start from: a .safetensors file or a Hugging Face directory", "random");
}

void FlagSet::Parser::batch_and_length() {
    group = "Batch and length";
    add('b', "batch", options.batch, "N", "sequences per micro-step and rank")->transform(whole_number(1, kMaxInt));
    add('t', "seq", options.seq, "N", "tokens per sequence", "1024, or the context")
        ->transform(whole_number(1, kMaxInt));
    add('d', "total-batch", options.total_batch, "N",
        "tokens per optimizer step over all ranks; more than b*t*ranks accumulates gradients", "b*t*ranks")
        ->transform(whole_number<int64_t>(1, kMaxCount));
    auto steps_check = [whole = whole_number<int64_t>(1, kMaxCount)](std::string& text) -> std::string {
        return text == "-1" ? "" : whole(text) + (text == "0" ? " (-1: one epoch)" : "");
    };
    add('x', "max-steps", options.max_steps, "N", "length of the schedule in steps; -1: one epoch", "-1")
        ->transform(CLI::Validator(steps_check, ""));
    add(0, "stop-after", options.stop_after, "N", "end this run cleanly after step N; the schedule stays as it is",
        "off")
        ->transform(whole_number<int64_t>(0, kMaxCount));
    add(0, "max-minutes", options.max_minutes, "M", "end this run cleanly after M minutes", "off")
        ->transform(real_number({0, kInfinity}));
}

void FlagSet::Parser::optimization() {
    group = "Optimization";
    add('l', "lr", options.lr, "X", "peak learning rate", "3e-4")->transform(real_number({0, kInfinity, true}));
    add('k', "schedule", options.schedule, "NAME",
        "cosine, linear, constant or wsd (constant, then decay over the last fifth)")
        ->transform(one_of({"cosine", "linear", "constant", "wsd"}));
    add('u', "warmup", options.warmup, "N", "steps of linear warm-up")->transform(whole_number<int64_t>(0, kMaxCount));
    add('q', "final-lr-fraction", options.final_lr_fraction, "X", "final learning rate as a fraction of the peak")
        ->transform(real_number({0, 1}));
    add('c', "weight-decay", options.weight_decay, "X", "AdamW weight decay on matrices and embeddings")
        ->transform(real_number({0, kInfinity}));
    add(0, "beta1", options.beta1, "X", "AdamW decay of the first moment")->transform(real_number({0, 1, false, true}));
    add(0, "beta2", options.beta2, "X", "AdamW decay of the second moment")
        ->transform(real_number({0, 1, false, true}));
    add(0, "eps", options.eps, "X", "AdamW epsilon", "1e-8")->transform(real_number({0, kInfinity, true}));
    add(0, "clip", options.clip, "X", "largest global gradient norm; 0: no clipping")
        ->transform(real_number({0, kInfinity}));
}

void FlagSet::Parser::precision_and_memory() {
    group = "Precision and memory";
    add(0, "precision", options.precision, "NAME",
        "fp8 (linear layers of the blocks in FP8), bf16, fp32 (everything FP32: the reference) or auto (the fastest "
        "that the device has)")
        ->transform(one_of({"fp8", "bf16", "fp32", "auto"}));
    add_switch(0, "tf32", options.tf32, "let --precision fp32 use TF32 tensor cores (GPU only)");
    add('r', "recompute", options.recompute, "NAME",
        "what backward computes again instead of keeping it: none, gelu, norm (norms and gelu) or block (everything)")
        ->transform(one_of({"none", "gelu", "norm", "block"}, llmc_recompute));
}

void FlagSet::Parser::fp8() {
    group = "FP8 and loss scaling";
    add(0, "fp8-recipe", options.fp8_recipe, "NAME",
        "delayed (scales from past steps), current (from the tensor itself: one more pass), block (one for 128 "
        "elements) or mxfp8 (one for 32)")
        ->transform(one_of({std::begin(kFp8Recipes), std::end(kFp8Recipes)}));
    add(0, "fp8-layers", options.fp8_layers, "LIST",
        "linear layers in FP8: all or none, then for example -first,-last,-block7,-fc_proj,-block3.qkv; +lm_head for the "
        "head as well")
        ->transform(not_empty());
    add(0, "fp8-grad", options.fp8_grad, "NAME", "format of output gradients: e5m2 or e4m3")
        ->transform(one_of({"e5m2", "e4m3"}));
    add(0, "fp8-history", options.fp8_history, "N", "optimizer steps in the amax window of delayed scaling")
        ->transform(whole_number(1, 1024));
    add(0, "fp8-margin", options.fp8_margin, "N", "powers of two that scales leave free above the amax")
        ->transform(whole_number(0, 16));
    add(0, "fp8-amax-algo", options.fp8_amax_algo, "NAME", "what the window gives: max, most_recent or ema")
        ->transform(one_of({"max", "most_recent", "ema"}));
    add_switch(0, "fp8-pow2-scales", options.fp8_pow2_scales, "round scales down to powers of two");
    add(0, "fp8-fast-accum", options.fp8_fast_accum, "NAME",
        "products that sum with fewer bits, faster: forward, none or all (GPU only)")
        ->transform(one_of({"forward", "none", "all"}));
    add_switch(0, "fp8-emulation", options.fp8_emulation,
               "let a GPU without the recipe's FP8 products make them in BF16, from the same values and more slowly");
    add(0, "fp8-log-every", options.fp8_log_every, "N", "steps between records of every FP8 tensor; 0: never")
        ->transform(whole_number<int64_t>(0, kMaxCount));
    auto fallback_check = [](std::string& text) -> std::string {
        try {
            fp8_fallback_from_text(text);
            return "";
        } catch (const Error& error) {
            const std::string message = error.what();
            return "'" + text + "': " + message.substr(message.find("expected"));
        }
    };
    add(0, "fp8-fallback", options.fp8_fallback, "RULE",
        "SATURATED,UNDERFLOWED,STEPS, as in 0.01,0.5,10: a layer goes on in BF16 once more than these fractions of one "
        "of its tensors saturated or underflowed for so many steps in a row; off: none does")
        ->transform(CLI::Validator(fallback_check, ""));
    auto scale_check = [](std::string& text) -> std::string {
        if (text == "off" || text == "dynamic") return "";
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        int exponent = 0;
        const bool power =
            !text.empty() && *end == '\0' && value >= 1 && value <= 16777216 && std::frexp(value, &exponent) == 0.5;
        return power ? "" : "'" + text + "' is not off, dynamic or a power of two from 1 to 16777216";
    };
    add(0, "loss-scale", options.loss_scale, "X", "off, dynamic (from 65536) or a power of two",
        "dynamic in fp8, else off")
        ->transform(CLI::Validator(scale_check, ""));
    add(0, "loss-scale-growth-interval", options.loss_scale_growth_interval, "N",
        "clean steps after which a dynamic loss scale doubles")
        ->transform(whole_number(1, kMaxInt));
    add(0, "max-skips", options.max_skips, "N", "skipped steps in a row that stop the run; 0: any number")
        ->transform(whole_number(0, kMaxInt));
    add_switch(
        0, "skip-spikes", options.skip_spikes,
        "skip steps whose loss or gradient norm is above mean + 6 sigma of the last 128 (at least 64) steps; they "
        "are reported in any case");
}

void FlagSet::Parser::several_processes() {
    group = "Several processes (mpirun, srun, or RANK, WORLD_SIZE and MASTER_ADDR)";
    add('z', "zero", options.zero, "N",
        "what ranks keep a slice of: 0 nothing, 1 optimizer state and master weights, 2 gradients too, 3 working "
        "weights too",
        "1 with several ranks")
        ->transform(whole_number(0, 3));
    add(0, "shard-within", options.shard_within, "N",
        "shard among N neighbouring ranks, a node's for example, and replicate over such groups; 0: among all ranks")
        ->transform(whole_number(0, kMaxInt));
    add(0, "comm", options.comm, "NAME", "how ranks talk: auto, self, mpi, tcp or nccl")
        ->transform(one_of({"auto", "self", "mpi", "tcp", "nccl"}));
    add(0, "reduce", options.reduce, "NAME", "what gradients travel as: fp32 or bf16 (sums are FP32)")
        ->transform(one_of({"fp32", "bf16"}));
    add(0, "reduce-order", options.reduce_order, "NAME",
        "order of gradients' sums: any (the library's; NCCL's may change from run to run) or rank (the same bits every "
        "time, on any number of ranks)")
        ->transform(one_of({"any", "rank"}));
    add(0, "timeout-start", options.timeout_start, "SECONDS", "wait for the other ranks at the start; 0: for ever")
        ->transform(real_number({0, kInfinity}));
    add(0, "timeout-step", options.timeout_step, "SECONDS", "a run that stands still so long ends; 0: never")
        ->transform(real_number({0, kInfinity}));
    add(0, "timeout-save", options.timeout_save, "SECONDS", "the same while weights are written")
        ->transform(real_number({0, kInfinity}));
}

void FlagSet::Parser::validation_and_samples() {
    group = "Validation and samples";
    auto interval_check = [whole = whole_number<int64_t>(0, kMaxCount)](std::string& text) -> std::string {
        if (text != "auto") return whole(text) + (text == "-1" ? " (auto: by its cost)" : "");
        text = "-1";
        return "";
    };
    add('v', "val-every", options.val_every, "N",
        "validate every N steps; 0: never; auto: as often as it costs less than 5 % of the steps between", "auto")
        ->transform(CLI::Validator(interval_check, ""));
    add('m', "val-batches", options.val_batches, "N", "batches per validation; 0: never, -1: all")
        ->transform(whole_number<int64_t>(-1, kMaxCount));
    add('s', "sample-every", options.sample_every, "N", "print a sample every N steps; 0: never")
        ->transform(whole_number<int64_t>(0, kMaxCount));
    add('g', "sample-tokens", options.sample_tokens, "N", "tokens per sample; 0: no samples")
        ->transform(whole_number(0, kMaxInt));
    add(0, "tokenizer", options.tokenizer, "FILE", "turns samples into text (a .tiktoken file)", "token ids");
    add(0, "prompt", options.prompt, "TEXT", "what a sample starts with", "end-of-text token");
    add(0, "temperature", options.temperature, "X", "randomness of samples; 0: always the likeliest token")
        ->transform(real_number({0, kInfinity}));
    add(0, "top-k", options.top_k, "N", "sample among the N likeliest tokens; 0: all")
        ->transform(whole_number(0, kMaxInt));
    add(0, "top-p", options.top_p, "X", "sample among the likeliest tokens that hold probability X")
        ->transform(real_number({0, 1, true}));
}

void FlagSet::Parser::running() {
    group = "Running and planning";
    add(0, "seed", options.seed, "N", "of everything random")
        ->transform(whole_number<uint64_t>(0, std::numeric_limits<uint64_t>::max()));
    add(0, "config", options.config_file, "FILE", "JSON with long flag names as keys, or a run.json; flags override it",
        "")
        ->transform(not_empty());
    add_switch(0, "print-config", options.print_config,
               "print the resolved configuration as JSON for --config and leave");
    add(0, "world", options.world, "N", "the number of ranks to plan for", "1")->transform(whole_number(1, 65536));
    add_switch(0, "dry-run", options.dry_run,
               "print parameters, memory, ideal step time and (with --world) all stages of --zero, and leave; needs no "
               "GPU");
    add_switch(0, "estimate-scaling", options.estimate_scaling,
               "print the tokens per second predicted for 1 to 1024 GPUs with this batch each, and leave (with -o DIR: "
               "also DIR/scaling.json); needs no GPU");
    auto known_gpu = [](std::string& text) -> std::string {
        if (find_gpu_by_short_name(text)) return "";
        std::string names;
        for (const std::string& name : gpu_short_names()) names += (names.empty() ? "" : ", ") + name;
        return "'" + text + "' is not in the table: " + names;
    };
    add(0, "gpu", options.gpu, "NAME", "the card to plan for: h100, h200, a100, l40s, rtx4090, ...",
        "the one found; --dry-run: else h200")
        ->transform(CLI::Validator(known_gpu, ""));
    auto steps_check = [](std::string& text) -> std::string {
        try {
            profile_steps_from_text(text);
            return "";
        } catch (const Error& error) {
            return error.what();
        }
    };
    add(0, "profile-steps", options.profile_steps, "N|A:B",
        "write what the streams do in N steps after two of warm-up, or in steps A to B - 1, as trace-rank<R>.json for "
        "Perfetto; needs --out",
        "none")
        ->transform(CLI::Validator(steps_check, ""));
    flags.push_back({group, 0, "version", "", "print the version and leave", ""});
    flags.push_back({group, 'h', "help", "", "print this and leave", ""});
}

FlagSet::FlagSet(Options& options) : parser_(std::make_unique<Parser>(options)) {}
FlagSet::~FlagSet() = default;

const std::vector<Flag>& FlagSet::flags() const { return parser_->flags; }

const Flag* FlagSet::find_long(std::string_view name) const {
    for (const Flag& flag : parser_->flags) {
        if (flag.long_name == name) return &flag;
    }
    return nullptr;
}

const Flag* FlagSet::find_short(char name) const {
    for (const Flag& flag : parser_->flags) {
        if (name != 0 && flag.short_name == name) return &flag;
    }
    return nullptr;
}

void FlagSet::parse(const std::vector<std::string>& arguments) {
    // CLI11 takes its arguments last first.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
        parser_->app.parse(reversed);
    } catch (const CLI::ParseError& error) {
        throw Error(ExitCode::bad_flags, error.what());
    }
    if (parser_->val_texts.empty()) return;
    std::vector<ValSet> sets;
    for (const std::string& text : parser_->val_texts) {
        sets.push_back(parse_val_set(text));
        for (size_t i = 0; i + 1 < sets.size(); i++) {
            if (sets[i].name != sets.back().name) continue;
            throw Error(ExitCode::bad_flags,
                        strprintf("--val: two sets are named \"%s\"; name each one: --val a=GLOB --val b=GLOB",
                                  sets.back().name.c_str()));
        }
    }
    parser_->options.val = sets;
}

}  // namespace llmc
