#include "llmc/run/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "llmc/device/error.h"
#include "llmc/fp8/recipe.h"
#include "llmc/kernels/variants.h"
#include "llmc/optim/loss_scale.h"
#include "llmc/run/gpu_table.h"
#include "llmc/run/profile.h"
#include "llmc/run/text.h"
#include "llmc/run/validation_watch.h"

namespace llmc {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& message) { throw Error(ExitCode::bad_flags, message); }

void check_not_empty(const std::string& text) {
    if (text.empty()) refuse("the value is empty");
}

void check_gpu(const std::string& text) {
    if (!find_gpu_by_short_name(text)) refuse("'" + text + "' is not in the table: " + joined(gpu_short_names()));
}

// ---- the table -----------------------------------------------------------------------------------------------------

Flag flag(char short_name, const char* long_name, const char* value, Field field, Values values, const char* help,
          const char* default_text = "") {
    return {short_name, long_name, value, field, values, help, default_text};
}

// About one invocation: not in configuration files.
Flag once(Flag flag) {
    flag.command_line_only = true;
    return flag;
}

Flag heading(const char* group) { return {.group = group}; }

// {short name, long name, value, field, values it takes, help, default where --help shows another than the field's}
const Flag kRows[] = {
    heading("Data and output"),
    flag('i', "train", "GLOB", &Options::train, {.check = check_not_empty},
         "token shards to train on; quote the pattern"),
    flag('j', "val", "GLOB", &Options::val, {.check = check_not_empty},
         "token shards to validate on; several as --val NAME=GLOB, logged as val_loss_NAME"),
    flag('o', "out", "DIR", &Options::out, {}, "run directory for run.json, metrics.jsonl, main.log and the model",
         "none"),
    once(flag(0, "overwrite", "", &Options::overwrite, {}, "let --out replace the run that DIR already holds")),
    flag(0, "tensorboard", "", &Options::tensorboard, {}, "write event files for TensorBoard into DIR/tensorboard"),
    flag(0, "prometheus", "FILE", &Options::prometheus, {},
         "keep the newest numbers in FILE for Prometheus's textfile collector (name it *.prom)", "none"),

    heading("Model"),
    flag('e', "model", "NAME|FILE", &Options::model, {.check = check_not_empty},
         "d6 d12 d24 d36 d48, gpt2[-medium|-large|-xl], gpt3-125m ... gpt3-6.7b, llama3-8b, qwen3-8b, nano-d12 and "
         "others (README.md), or a JSON file (Hugging Face's config.json too)",
         "d12"),
    flag(0, "depth", "N", &Options::depth, {.min = 1, .max = 1000},
         "nanochat's dial: its model of N layers, with tokens, batch and rates for it (printed as flags). What is "
         "given wins, and the rest follows it; with another model or adamw it is refused",
         "off"),
    flag(0, "layers", "N", &Options::layers, {.min = 1}, "transformer blocks", "the model's"),
    flag(0, "heads", "N", &Options::heads, {.min = 1}, "attention heads; channels / heads must be 32, 64 or 128",
         "the model's"),
    flag(0, "channels", "N", &Options::channels, {.min = 1}, "width of the residual stream", "the model's"),
    flag(0, "vocab", "N", &Options::vocab, {.min = 1}, "token ids", "the data's, or 50257"),
    flag(0, "context", "N", &Options::context, {.min = 1}, "longest sequence the model can take",
         "the model's; -t for a shape of your own"),
    flag(0, "init-from", "PATH", &Options::init_from, {},
         "weights to start from: a checkpoint, or a run that has one; a .safetensors file or a Hugging Face directory; "
         "or a model file (.bin) of llm.c",
         "random"),

    heading("Batch and length"),
    flag('b', "batch", "N", &Options::batch, {.min = 1}, "sequences per micro-step and rank"),
    flag('t', "seq", "N", &Options::seq, {.min = 1}, "tokens per sequence", "1024, or the context"),
    flag(0, "doc-mask", "", &Options::doc_mask, {},
         "attention does not cross documents: a token sees those of its own alone, which its shard's end-of-text token "
         "begins"),
    flag(0, "doc-positions", "", &Options::doc_positions, {},
         "with --doc-mask: learned positions begin anew with every document"),
    flag('d', "total-batch", "N", &Options::total_batch, {.min = 1},
         "tokens per optimizer step over all ranks; more than b*t*ranks accumulates gradients", "b*t*ranks"),
    flag(0, "batch-schedule", "LIST", &Options::batch_schedule, {.check = batch_stages_from_text},
         "TOKENS:STEPS,... smaller steps to begin with: TOKENS each for so many STEPS, and so on, then -d", "off"),
    flag(0, "seq-schedule", "LIST", &Options::seq_schedule, {.check = seq_stages_from_text},
         "TOKENS:STEPS,... shorter sequences to begin with: those of -t tokens are cut into pieces of TOKENS, which "
         "attention does not cross, for so many STEPS, and so on",
         "off"),
    flag('x', "max-steps", "N", &Options::max_steps,
         {.min = 1, .word = "-1", .word_means = -1, .answers = {{"0", " (-1: one epoch)"}}},
         "length of the schedule in steps; -1: one epoch"),
    flag(0, "stop-after", "N", &Options::stop_after, {},
         "end this run cleanly after step N; the schedule stays as it is", "off"),
    flag(0, "max-minutes", "M", &Options::max_minutes, {}, "end this run cleanly after M minutes", "off"),

    heading("Optimization"),
    flag('l', "lr", "X", &Options::lr, {.min_open = true}, "peak learning rate"),
    flag('k', "schedule", "NAME", &Options::schedule, {.words = {"cosine", "linear", "constant", "wsd", "wsd-linear"}},
         "cosine, linear, constant, wsd (constant, then down by 1 - sqrt) or wsd-linear (constant, then down in a "
         "line)"),
    flag('u', "warmup", "N", &Options::warmup, {}, "steps of linear warm-up"),
    flag('q', "final-lr-fraction", "X", &Options::final_lr_fraction, {.max = 1},
         "final learning rate as a fraction of the peak"),
    flag(0, "cooldown", "X", &Options::cooldown, {.max = 1, .min_open = true},
         "the part of the steps, at their end, in which wsd and wsd-linear go down"),
    flag(0, "restart-every", "N", &Options::restart_every, {},
         "cosine that starts again at the peak: the first time N steps after the warm-up; 0: never"),
    flag(0, "restart-factor", "K", &Options::restart_factor, {.min = 1, .max = 1000},
         "each time after K times as many steps as the time before"),
    flag(0, "plateau", "RULE", &Options::plateau, {.check = plateau_from_text},
         "FACTOR,PATIENCE, as in 0.5,3: the rate goes on at FACTOR of what it was when more than PATIENCE regular "
         "validations in a row have not been better than the best; off: it does not"),
    flag(0, "early-stop", "N", &Options::early_stop, {},
         "end the run, as if it were complete, after more than N such validations; 0: never"),
    flag(0, "optimizer", "NAME", &Options::optimizer, {.words = {"adamw", "lion", "sgd", "muon", "normuon"}},
         "what updates the weights: adamw, lion, sgd, muon or normuon (both for the matrices of blocks, and AdamW for "
         "the rest)"),
    flag('c', "weight-decay", "X", &Options::weight_decay, {}, "decoupled weight decay on matrices and embeddings"),
    flag(0, "beta1", "X", &Options::beta1, {.max = 1, .max_open = true},
         "AdamW's decay of the first moment; what Lion's sign is taken of"),
    flag(0, "beta2", "X", &Options::beta2, {.max = 1, .max_open = true},
         "AdamW's decay of the second moment; Lion's of its moment", "0.95; lion 0.99"),
    flag(0, "eps", "X", &Options::eps, {.min_open = true}, "AdamW epsilon"),
    flag(0, "adam-moments", "NAME", &Options::adam_moments, {.words = {"fp32", "bf16"}},
         "what AdamW keeps its moments in: fp32, or bf16 (rounded stochastically; half the memory)"),
    flag(0, "momentum", "X", &Options::momentum, {.max = 1, .max_open = true}, "of sgd (0: none) and muon",
         "0.9; muon 0.95"),
    flag(0, "nesterov", "on|off", &Options::nesterov, {.words = {"on", "off"}}, "Nesterov's momentum in sgd and muon",
         "off; muon on"),
    flag(0, "muon-ns", "NAME", &Options::muon_ns, {.words = {"k", "p", "q", "s"}},
         "Newton-Schulz steps of muon: k (Jordan's five), p (Polar Express, five), q (five of growing accuracy) or s "
         "(twelve that converge)"),
    flag(0, "muon-scale", "NAME", &Options::muon_scale, {.words = {"rms", "spectral"}},
         "size of muon's update of an A x B matrix: rms (0.2 sqrt(max(A, B)): AdamW's --lr serves) or spectral "
         "(sqrt(max(1, A/B)): --lr about 0.02)"),
    flag(0, "muon-momentum-warmup", "N", &Options::muon_momentum_warmup, {},
         "steps in which muon's momentum grows, in a line, from 0.85 to --momentum; 0: it does not"),
    flag(0, "muon-cautious-decay", "", &Options::muon_cautious_decay, {},
         "let muon's weight decay leave out weights whose update goes the other way, away from 0"),
    flag(0, "adamw-lr", "X", &Options::adamw_lr, {.min_open = true},
         "with muon, peak learning rate of what AdamW updates; --schedule and --warmup as for --lr", "--lr"),
    flag(0, "embedding-lr", "X", &Options::embedding_lr, {.min_open = true}, "with muon, of the embeddings",
         "--adamw-lr"),
    flag(0, "head-lr", "X", &Options::head_lr, {.min_open = true}, "with muon, of a head of its own", "--adamw-lr"),
    flag(0, "vector-lr", "X", &Options::vector_lr, {.min_open = true}, "with muon, of norms and biases", "--adamw-lr"),
    flag(0, "adamw-weight-decay", "X", &Options::adamw_weight_decay, {},
         "with muon, weight decay of embeddings and head", "--weight-decay"),
    flag(0, "clip", "X", &Options::clip, {}, "largest gradient norm, or what --clip-kind says; 0: no clipping"),
    flag(0, "clip-kind", "NAME", &Options::clip_kind, {.words = {"norm", "tensor", "value"}},
         "what --clip bounds: norm (of all gradients together), tensor (the norm of each tensor's) or value (the "
         "magnitude of each)"),
    flag(0, "z-loss", "X", &Options::z_loss, {},
         "train X log(Z)^2 too, Z the softmax's sum (PaLM's is 1e-4); losses are reported without it"),
    flag(0, "label-smoothing", "X", &Options::label_smoothing, {.max = 1, .max_open = true},
         "train with so much of each target spread over all tokens; losses are reported without it"),

    heading("Precision and memory"),
    flag(0, "precision", "NAME", &Options::precision, {.words = {"fp8", "bf16", "fp32", "auto"}},
         "fp8 (linear layers of the blocks in FP8), bf16, fp32 (everything FP32: the reference) or auto (the fastest "
         "that the device has)"),
    flag(0, "tf32", "", &Options::tf32, {}, "let --precision fp32 use TF32 tensor cores (GPU only)"),
    flag('r', "recompute", "NAME", &Options::recompute,
         {.words = {"none", "gelu", "norm", "block"},
          .answers = {{"0", "; llm.c's -r 0 is -r none here"},
                      {"1", "; llm.c's -r 1 is -r gelu here"},
                      {"2", "; llm.c's -r 2 is -r norm here"}}},
         "what backward computes again instead of keeping it: none, gelu, norm (norms and gelu) or block (everything)"),
    flag(
        0, "kernels", "LIST", &Options::kernels, {.check = check_kernel_names},
        "kernels that have plain counterparts: auto (all that the card runs), portable (none: the counterparts alone), "
        "or those named, with commas between; an unknown name is answered with the list"),
    flag(0, "card-check", "NAME", &Options::card_check, {.words = {"auto", "force", "off"}},
         "whether what the run uses is first held against plain counterparts on this card: auto (on a GPU, once for "
         "each card, driver and program), force (again, and on the host device too) or off"),
    flag(
        0, "tune", "N", &Options::tune, {.max = 64},
        "algorithms of each matrix product that the card check times, to keep the fastest; 0: the library's first that "
        "is right"),
    flag(0, "strict", "", &Options::strict, {},
         "refuse to start where the card check would have something give way to what is right"),
    flag(0, "timeout-check", "SECONDS", &Options::timeout_check, {.min_open = true},
         "a part of the card check that takes longer has failed"),

    heading("FP8 and loss scaling"),
    flag(0, "fp8-recipe", "NAME", &Options::fp8_recipe, {.words = {std::begin(kFp8Recipes), std::end(kFp8Recipes)}},
         "delayed (scales from past steps), current (from the tensor itself: one more pass), block (one for 128 "
         "elements) or mxfp8 (one for 32)"),
    flag(0, "fp8-layers", "LIST", &Options::fp8_layers, {.check = check_not_empty},
         "linear layers in FP8: all or none, then for example -first,-last,-block7,-fc_proj,-block3.qkv; +lm_head for "
         "the head as well"),
    flag(0, "fp8-grad", "NAME", &Options::fp8_grad, {.words = {"e5m2", "e4m3"}},
         "format of output gradients: e5m2 or e4m3"),
    flag(0, "fp8-history", "N", &Options::fp8_history, {.min = 1, .max = kMaxAmaxHistory},
         "optimizer steps in the amax window of delayed scaling"),
    flag(0, "fp8-margin", "N", &Options::fp8_margin, {.max = 16},
         "powers of two that scales leave free above the amax"),
    flag(0, "fp8-amax-algo", "NAME", &Options::fp8_amax_algo, {.words = {"max", "most_recent", "ema"}},
         "what the window gives: max, most_recent or ema"),
    flag(0, "fp8-pow2-scales", "", &Options::fp8_pow2_scales, {}, "round scales down to powers of two"),
    flag(0, "fp8-smooth", "", &Options::fp8_smooth, {}, "even out the channels of SwiGLU's output by powers of two"),
    flag(0, "fp8-fast-accum", "NAME", &Options::fp8_fast_accum, {.words = {"forward", "none", "all"}},
         "products that sum with fewer bits, faster: forward, none or all (GPU only)"),
    flag(0, "fp8-emulation", "", &Options::fp8_emulation, {},
         "let a GPU without the recipe's FP8 products make them in BF16, from the same values and more slowly"),
    flag(0, "fp8-log-every", "N", &Options::fp8_log_every, {}, "steps between records of every FP8 tensor; 0: never"),
    flag(0, "fp8-probe-every", "N", &Options::fp8_probe_every, {},
         "steps between those whose first micro-step makes FP8 layers' products in BF16 too, to record their errors; "
         "0: never"),
    flag(0, "fp8-fallback", "RULE", &Options::fp8_fallback, {.check = fp8_fallback_from_text},
         "SATURATED,UNDERFLOWED,STEPS, as in 0.01,0.5,10: a layer goes on in BF16 once more than these fractions of "
         "one of its tensors saturated or underflowed for so many steps in a row; off: none does"),
    flag(0, "loss-scale", "X", &Options::loss_scale, {.check = loss_scale_config},
         "off, dynamic (from 65536) or a power of two", "dynamic in fp8, else off"),
    flag(0, "loss-scale-growth-interval", "N", &Options::loss_scale_growth_interval, {.min = 1},
         "clean steps after which a dynamic loss scale doubles"),
    flag(0, "max-skips", "N", &Options::max_skips, {}, "skipped steps in a row that stop the run; 0: any number"),
    flag(0, "skip-spikes", "", &Options::skip_spikes, {},
         "skip steps whose loss or gradient norm is above mean + 6 sigma of the last 128 (at least 64) steps; they are "
         "reported in any case"),

    heading("Several processes (mpirun, srun, or RANK, WORLD_SIZE and MASTER_ADDR)"),
    flag('z', "zero", "N", &Options::zero, {.max = 3},
         "what ranks keep a slice of: 0 nothing, 1 optimizer state and master weights, 2 gradients too, 3 working "
         "weights too",
         "1 with several ranks"),
    flag(0, "shard-within", "N", &Options::shard_within, {},
         "shard among N neighbouring ranks, a node's for example, and replicate over such groups; 0: among all ranks"),
    flag(0, "comm", "NAME", &Options::comm, {.words = {"auto", "self", "mpi", "tcp", "nccl"}},
         "how ranks talk: auto, self, mpi, tcp or nccl"),
    flag(0, "reduce", "NAME", &Options::reduce, {.words = {"fp32", "bf16", "fp8"}},
         "what gradients travel as: fp32, bf16, or fp8, of which every rank keeps what was lost for the next (sums are "
         "FP32)"),
    flag(0, "reduce-order", "NAME", &Options::reduce_order, {.words = {"any", "rank"}},
         "order of gradients' sums: any (the library's; NCCL's may change from run to run) or rank (the same bits "
         "every time, on any number of ranks)"),
    flag(0, "timeout-start", "SECONDS", &Options::timeout_start, {},
         "wait for the other ranks at the start; 0: for ever"),
    flag(0, "timeout-step", "SECONDS", &Options::timeout_step, {}, "a run that stands still so long ends; 0: never"),
    flag(0, "timeout-save", "SECONDS", &Options::timeout_save, {}, "the same while a checkpoint is written"),

    heading("Checkpoints (in --out DIR)"),
    flag('n', "checkpoint-every", "N", &Options::checkpoint_every, {}, "save a checkpoint every N steps; 0: by time"),
    flag(0, "checkpoint-minutes", "M", &Options::checkpoint_minutes, {},
         "save one when the last is M minutes old; 0: never by time. At its end, and when it is stopped, a run always "
         "saves one, unless both are 0"),
    flag(0, "keep", "N", &Options::keep, {}, "keep the newest N checkpoints; 0: all"),
    flag(0, "keep-every", "N", &Options::keep_every, {}, "and those whose step is a multiple of N; 0: none"),
    once(flag(
        'y', "resume", "latest|auto|PATH", &Options::resume, {.check = check_not_empty},
        "go on from the newest whole checkpoint in --out; auto: or begin a new run if none was ever written; PATH: "
        "a checkpoint, or the run that has it",
        "none")),
    flag(0, "verify", "NAME", &Options::verify, {.words = {"full", "size", "none"}},
         "what of a checkpoint is checked before it is used: every byte (full), sizes, or none"),
    flag(0, "on-save-error", "NAME", &Options::on_save_error, {.words = {"continue", "stop"}},
         "continue, or stop, when a checkpoint cannot be written"),
    flag(0, "checkpoint-local", "DIR", &Options::checkpoint_local, {},
         "write each rank's part to this machine's DIR first, in place of host memory, and to --out behind training",
         "host memory"),
    once(flag(0, "rewind", "N", &Options::rewind, {}, "with --resume: leave out the newest N checkpoints")),
    once(flag(0, "skip-data", "N", &Options::skip_data, {},
              "with --resume: leave out the data of N steps, for example that which a run diverged on")),
    once(flag(0, "new-data", "", &Options::new_data, {},
              "with --resume: take other training data, another -t, --seed, --doc-mask or --doc-positions than the "
              "checkpoint's run")),

    heading("Validation and samples"),
    flag('v', "val-every", "N", &Options::val_every,
         {.word = "auto", .word_means = -1, .answers = {{"-1", " (auto: by its cost)"}}},
         "validate every N steps; 0: never; auto: as often as it costs less than 5 % of the steps between"),
    flag('m', "val-batches", "N", &Options::val_batches, {.min = -1}, "batches per validation; 0: never, -1: all"),
    flag(0, "hellaswag", "FILE", &Options::hellaswag, {.check = check_not_empty},
         "multiple-choice examples in llm.c's format, answered at every validation (the whole file, whatever -m says)",
         "none"),
    flag('s', "sample-every", "N", &Options::sample_every, {}, "print a sample every N steps; 0: never"),
    flag('g', "sample-tokens", "N", &Options::sample_tokens, {}, "tokens per sample; 0: no samples"),
    flag(0, "tokenizer", "FILE", &Options::tokenizer, {}, "turns samples into text (a .tiktoken file)", "token ids"),
    flag(0, "prompt", "TEXT", &Options::prompt, {}, "what a sample starts with", "end-of-text token"),
    flag(0, "temperature", "X", &Options::temperature, {}, "randomness of samples; 0: always the likeliest token"),
    flag(0, "top-k", "N", &Options::top_k, {}, "sample among the N likeliest tokens; 0: all"),
    flag(0, "top-p", "X", &Options::top_p, {.max = 1, .min_open = true},
         "sample among the likeliest tokens that hold probability X"),

    heading("Running and planning"),
    flag(0, "seed", "N", &Options::seed, {}, "of everything random"),
    flag(0, "verify-every", "N", &Options::verify_every, {},
         "look for silent corruption every N steps: the first micro-step is made twice, and its bits compared, as are "
         "those of weights and optimizer state; 0: never"),
    once(flag(0, "config", "FILE", &Options::config_file, {.check = check_not_empty},
              "JSON with long flag names as keys, or a run.json; flags override it")),
    once(flag(0, "print-config", "", &Options::print_config, {},
              "print the resolved configuration as JSON for --config and leave")),
    once(flag(0, "world", "N", &Options::world, {.min = 1, .max = 65536}, "the number of ranks to plan for", "1")),
    once(flag(0, "dry-run", "", &Options::dry_run, {},
              "print parameters, memory, predicted step time and (with --world) all stages of --zero, and leave; needs "
              "no GPU")),
    once(flag(0, "estimate-scaling", "", &Options::estimate_scaling, {},
              "print the tokens per second predicted for 1 to 1024 GPUs with this batch each, and leave (with -o DIR: "
              "also DIR/scaling.json); needs no GPU")),
    once(flag(0, "bench", "", &Options::bench, {},
              "time 25 steps (or --stop-after N) of such a run, on random tokens where there is no --train; nothing is "
              "validated, sampled or written")),
    once(flag(0, "gpu", "NAME", &Options::gpu, {.check = check_gpu},
              "the card to plan for: h100, h200, a100, l40s, rtx4090, ...", "the one found; --dry-run: else h200")),
    once(flag(0, "profile-steps", "N|A:B", &Options::profile_steps, {.check = profile_steps_from_text},
              "write what the streams do in N steps after two of warm-up, or in steps A to B - 1, as "
              "trace-rank<R>.json for Perfetto; needs --out",
              "none")),
    once(flag(0, "version", "", &Options::version, {}, "print the version and leave")),
    once(flag('h', "help", "", &Options::help, {}, "print this and leave")),
};

// ---- to CLI11 ------------------------------------------------------------------------------------------------------

std::vector<ValSet> val_sets(const std::vector<std::string>& texts) {
    std::vector<ValSet> sets;
    for (const std::string& text : texts) {
        const ValSet set = parse_val_set(text);
        for (const ValSet& other : sets)
            if (other.name == set.name)
                refuse("--val: two sets are named \"" + set.name + "\"; name each one: --val a=GLOB --val b=GLOB");
        sets.push_back(set);
    }
    return sets;
}

CLI::Option* add(CLI::App& app, const std::string& names, bool& field) { return app.add_flag(names, field); }
CLI::Option* add(CLI::App& app, const std::string& names, std::vector<ValSet>& field) {
    const auto assign = [&field](const std::vector<std::string>& texts) { field = val_sets(texts); };
    CLI::Option* option = app.add_option_function<std::vector<std::string>>(names, assign);
    return option->take_all()->allow_extra_args(false)->expected(1);
}
template <class T>
CLI::Option* add(CLI::App& app, const std::string& names, T& field) {
    return app.add_option(names, field)->take_last();
}

CLI::Option* add(CLI::App& app, const Flag& flag, Options& options) {
    const std::string names = (flag.short_name ? strprintf("-%c,--", flag.short_name) : "--") + flag.long_name;
    CLI::Option* option = std::visit([&](auto f) { return add(app, names, options.*f); }, flag.field);
    return option->transform(CLI::Validator([&flag](std::string& text) { return mistake_in(text, flag); }, ""));
}

// ---- and back ------------------------------------------------------------------------------------------------------

std::string text_of(const std::string& text) { return text; }
std::string text_of(bool) { return ""; }
std::string text_of(const std::vector<ValSet>&) { return ""; }
template <class T>
std::string text_of(T number) {
    char text[32];
    std::string result(text, std::to_chars(text, text + sizeof text, number).ptr);
    const size_t zero = result.find("e-0");  // 1e-08
    return zero == std::string::npos ? result : result.erase(zero + 2, 1);
}

ordered_json json_of(const std::string& text, const Flag&) {
    return text.empty() ? ordered_json() : ordered_json(text);
}
ordered_json json_of(bool on, const Flag&) { return on; }
ordered_json json_of(const std::vector<ValSet>& sets, const Flag&) {
    ordered_json list;
    for (const ValSet& set : sets) list.push_back(set.name.empty() ? set.glob : set.name + "=" + set.glob);
    return list;
}
// A number that the flag itself would refuse stands for "not given".
template <class T>
ordered_json json_of(T number, const Flag& flag) {
    std::string text = text_of(number);
    return mistake_in(text, flag).empty() ? ordered_json(number) : ordered_json();
}

}  // namespace

const std::vector<Flag>& all_flags() {
    static const std::vector<Flag> flags = [] {
        std::vector<Flag> all;
        std::string group;
        for (Flag row : kRows) {
            if (row.long_name.empty()) group = row.group;
            row.group = group;
            if (!row.long_name.empty()) all.push_back(row);
        }
        return all;
    }();
    return flags;
}

const Flag* find_flag(std::string_view name) {
    for (const Flag& flag : all_flags())
        if (flag.long_name == name) return &flag;
    return nullptr;
}

const Flag* find_flag(char name) {
    for (const Flag& flag : all_flags())
        if (name != 0 && flag.short_name == name) return &flag;
    return nullptr;
}

std::vector<std::string> set_flags(std::vector<std::string> arguments, Options& options) {
    CLI::App app;
    app.set_help_flag();
    app.prefix_command();  // stop at an argument that is neither a flag nor a value
    for (const Flag& flag : all_flags()) add(app, flag, options);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
    try {
        app.parse(arguments);
    } catch (const CLI::ParseError& error) {
        refuse(error.what());
    }
    for (const Flag& flag : all_flags())
        if (app.count("--" + flag.long_name) > 0) options.given.insert(flag.long_name);
    return app.remaining();
}

void add_flags(CLI::App& app, const std::vector<std::string>& names, Options& options) {
    for (const std::string& name : names) {
        const Flag& flag = *find_flag(name);
        CLI::Option* option = add(app, flag, options)->description(flag.help);
        if (flag.is_switch()) continue;
        option->type_name(flag.value);
        const bool as_always = flag_json(flag, options) == flag_json(flag, Options());
        option->default_str(as_always ? default_text(flag)
                                      : std::visit([&](auto f) { return text_of(options.*f); }, flag.field));
    }
}

nlohmann::ordered_json flag_json(const Flag& flag, const Options& options) {
    return std::visit([&](auto field) { return json_of(options.*field, flag); }, flag.field);
}

std::string default_text(const Flag& flag) {
    if (!flag.default_text.empty() || flag.is_switch()) return flag.default_text;
    const Options defaults;
    const std::string text = std::visit([&](auto field) { return text_of(defaults.*field); }, flag.field);
    const bool is_word = !flag.values.word.empty() && text == std::to_string(flag.values.word_means);
    return is_word ? flag.values.word : text;
}

}  // namespace llmc
