// The rows of the table of flags.
// build: fuzzed
#include "llmc/flags/flags.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "llmc/base/files.h"
#include "llmc/data/order.h"
#include "llmc/flags/rows.h"

namespace llmc {

static void check_not_empty(const std::string& text) {
    if (text.empty()) refuse("the value is empty");
}

static void check_sources(const std::string& text) {
    check_not_empty(text);
    sources_from_text(text);
}

// A path is checked when it is opened. A word that resembles latest or auto is taken for a typing error.
static ResumeFrom resume_from(const std::string& text) {
    check_not_empty(text);
    if (const std::optional<ResumeFrom> from = value_of_word<ResumeFrom>(text)) return *from;
    const std::optional<std::string> word = nearest(text, {"latest", "auto"});
    if (word && !path_exists(text))
        refuse("'" + text + "' is not latest, auto or a directory; did you mean " + *word + "?");
    return ResumeFrom::path;
}

static std::optional<GpuSpec> gpu_named(const std::string& text) {
    const std::optional<GpuSpec> gpu = find_gpu_by_short_name(text);
    if (!gpu) refuse("'" + text + "' is not in the table: " + joined(gpu_short_names()));
    return gpu;
}

static void check_shell(const std::string& text) {
    if (text != "bash") refuse("'" + text + "' is not bash (zsh runs bash's script after autoload -U bashcompinit)");
}

// A task has no default name.
static void check_task(const std::string& text) {
    if (parse_val_set(text, "task").name.empty()) refuse("'" + text + "' has no name; use --task NAME=FILE");
}

// A format other than fp8, for values whose updates are smaller than the steps of FP8.
static Flag not_fp8(Flag flag) {
    std::erase(flag.words, "fp8");
    flag.set = [set = flag.set, words = flag.words](Options& o, const std::string& text) {
        if (text == "fp8") refuse("'" + text + "' is not one of " + joined(words));
        set(o, text);
    };
    return flag;
}

// Concerns one invocation, so configuration files may not contain it.
static Flag once(Flag flag) {
    flag.command_line_only = true;
    return flag;
}

// One of the flags that matter most, which --help shows.
static Flag common(Flag flag) {
    flag.common = true;
    return flag;
}

static Flag heading(const char* group) { return {.group = group}; }

// The text of a value, unless it is null, and of one that follows it; see with_parts().
static std::string behind(const Json& value, const std::string& prefix, const Json& part) {
    const std::string first = value.is_string() ? value.get<std::string>() : json_text(value);
    return (value.is_null() ? "" : first + ",") + prefix + json_text(part);
}

const Flag kRows[] = {
    heading("Data and output"),
    common(flag('i', "train", "GLOB", &Options::train, check_sources,
                "training data: shards of tokens; quote the pattern. 'A:0.7,B:0.3;A:0.2,C:0.8@60%' mixes sources by "
                "weight, with other weights from 60 % of the steps on")),
    common(flag('j', "val", "GLOB", &Options::val, check_not_empty,
                "validation data; several sets: --val NAME=GLOB for each, logged as val_loss_NAME")),
    common(flag('o', "out", "DIR", &Options::out, check_not_empty,
                "run directory for configuration, metrics, log, checkpoints and weights", "none: nothing is written")),
    once(flag(0, "overwrite", "", &Options::overwrite, {}, "replace the run that --out DIR already holds")),

    heading("Model"),
    common(flag('e', "model", "NAME|FILE", &Options::model_name, check_not_empty,
                "tiny, d2, d4, d6, d12, d24, d36, d48, gpt2-xl, llama3-8b, qwen3-8b, nano-d12, ... (-e list names "
                "all), or a JSON file such as Hugging Face's config.json",
                "d12")),
    flag(0, "depth", "N", &Options::depth, {.min = 1, .max = 1000},
         "nanochat's dial: its model of N layers with training steps, batch size and learning rates to match, printed "
         "as flags at the start; flags you give take precedence",
         "off"),
    flag(0, "layers", "N", &ModelConfig::layers, {.min = 1}, "number of transformer blocks", "the model's"),
    flag(0, "heads", "N", &ModelConfig::heads, {.min = 1},
         "attention heads; channels / heads must be 32, 64, 80, 96, 128 or 256", "the model's"),
    flag(0, "channels", "N", &ModelConfig::channels, {.min = 1}, "width of the residual stream", "the model's"),
    flag(0, "vocab", "N", &ModelConfig::vocab, {.min = 1}, "vocabulary size", "the data's, or 50257"),
    flag(0, "context", "N", &ModelConfig::context, {.min = 1}, "longest sequence that the model accepts",
         "the model's; -t for a shape of your own"),
    common(flag(0, "init-from", "PATH", &Options::init_from, {},
                "start from these weights: a checkpoint, a run, a Hugging Face directory or .safetensors file, or an "
                "llm.c model file (.bin)",
                "random")),

    heading("Size of the run"),
    common(flag('b', "batch", "N", &Options::batch, {.min = 1}, "sequences per micro-step and rank")),
    common(flag('t', "seq", "N", &Options::seq, {.min = 1}, "tokens per sequence", "1024, or the context")),
    common(flag('d', "total-batch", "N", &Options::total_batch, {.min = 1},
                "tokens per optimizer step over all ranks; above b*t*ranks, gradients accumulate", "b*t*ranks")),
    common(flag('x', "max-steps", "N", &ScheduleConfig::steps,
                {.min = 1, .word = "-1", .word_means = -1, .answers = {{"0", " (-1: one epoch)"}}}, "training steps",
                "one epoch")),
    flag(0, "epochs", "N", &Options::epochs, {.min = 1, .max = 1e6},
         "passes over the training data, instead of -x. With -x and several sources: passes allowed over each source",
         "-x; 1 with several sources"),
    flag(0, "stop-after", "N", &Options::stop_after, {},
         "stop cleanly after step N; the learning rate still follows --max-steps", "off"),
    flag(0, "max-minutes", "M", &Options::max_minutes, {},
         "stop cleanly after M minutes; the learning rate still follows --max-steps", "off"),
    flag(0, "batch-schedule", "LIST", &Options::batch_schedule, batch_stages_from_text,
         "TOKENS:STEPS,...: start with smaller steps. Each stage takes STEPS steps of TOKENS tokens; -d follows",
         "off"),
    flag(0, "seq-schedule", "LIST", &Options::seq_schedule, seq_stages_from_text,
         "TOKENS:STEPS,...: start with shorter sequences. For STEPS steps, sequences of -t tokens are cut into pieces "
         "of TOKENS, and attention stays within a piece",
         "off"),
    flag(0, "doc-mask", "", &Options::doc_mask, {},
         "keep attention within documents, which begin at the shard's end-of-text token"),

    heading("Optimization"),
    common(flag('l', "lr", "X", &ScheduleConfig::lr, {.min_open = true}, "peak learning rate")),
    common(flag('u', "warmup", "N", &ScheduleConfig::warmup, {}, "steps of linear warm-up")),
    flag('k', "schedule", "NAME", &ScheduleConfig::kind, {},
         "learning rate after the warm-up: cosine, linear, constant, wsd (constant, then 1 - sqrt decay), wsd-linear "
         "(constant, then linear decay), step (0.316 of the peak after 80 % of the steps, 0.1 after 90 %) or "
         "inverse-sqrt"),
    flag('q', "final-lr-fraction", "X", &ScheduleConfig::final_fraction, {.max = 1},
         "final learning rate as a fraction of the peak"),
    flag(
        0, "decay-from", "STEP", &ScheduleConfig::decay_from, {.min = -1},
        "wsd, wsd-linear, inverse-sqrt: decay from this step on to the last, for instance in a branch of a longer run; "
        "-1: by --cooldown, or with inverse-sqrt never"),
    flag(0, "cooldown", "X", &ScheduleConfig::cooldown, {.max = 1, .min_open = true},
         "fraction of the steps in which wsd and wsd-linear decay"),
    with_parts(flag(0, "restart-every", "N[,K]", &ScheduleConfig::restart_every, {},
                    "restart the cosine at the peak, first N steps after the warm-up; each period is K times as long "
                    "as the one before (1). 0: never"),
               {part("", &ScheduleConfig::restart_factor, {.min = 1, .max = 1000})}),
    flag(0, "plateau", "RULE", &Options::plateau, plateau_from_text,
         "FACTOR,PATIENCE, such as 0.5,3: multiply the learning rate by FACTOR after more than PATIENCE validations "
         "in a row without a new best loss; off: never"),
    flag(0, "early-stop", "N", &Options::early_stop, {},
         "finish the run after more than N validations in a row without a new best loss; 0: never"),
    flag(0, "optimizer", "NAME", &OptimizerConfig::kind, {{"muoneq", "; it has been removed: use muon or normuon"}},
         "adamw, lion, sgd, muon or normuon (the last two update the blocks' matrices and leave the rest to AdamW)"),
    flag('c', "weight-decay", "X", &OptimizerConfig::weight_decay, {},
         "decoupled weight decay of matrices and embeddings"),
    flag(0, "cautious-decay", "", &OptimizerConfig::cautious_decay, {},
         "no weight decay for weights whose update points away from zero (adamw, and the matrices of muon)"),
    flag(0, "beta1", "X", &OptimizerConfig::beta1, {.max = 1, .max_open = true},
         "AdamW: decay of the first moment; Lion: weight of the moment in the update"),
    flag(0, "beta2", "X", &OptimizerConfig::beta2, {.max = 1, .max_open = true},
         "AdamW: decay of the second moment; Lion: decay of the moment", "0.95; lion 0.99"),
    flag(0, "eps", "X", &OptimizerConfig::eps, {.min_open = true}, "AdamW's epsilon"),
    not_fp8(flag(0, "master", "NAME", &OptimizerConfig::masters, {},
                 "format of the master weights: fp32 or bf16 (half the memory, stochastic rounding)")),
    not_fp8(flag(0, "gradients", "NAME", &Sharding::gradients, {},
                 "format of the sums of a step's gradients: fp32 or bf16 (half the memory, stochastic rounding)")),
    flag(
        0, "adam-moments", "NAME", &OptimizerConfig::adam_moments, {},
        "format of AdamW's moments: fp32, bf16, or fp8 (the first moment in E4M3, the second in bf16); narrow ones are "
        "rounded stochastically"),
    with_parts(flag(0, "momentum", "X[,N]", &OptimizerConfig::momentum, {.max = 1, .max_open = true},
                    "momentum of sgd (0: none) and muon; muon's grows linearly from 0.85 in the first N steps",
                    "0.9; muon 0.95"),
               {part("", &OptimizerConfig::muon_momentum_warmup, {})}),
    flag(0, "nesterov", "on|off", &OptimizerConfig::nesterov, {}, "Nesterov momentum in sgd, muon and adamw (NAdamW)",
         "off; muon on"),
    flag(0, "muon-ns", "NAME", &OptimizerConfig::muon_ns,
         {{"q", "; it has been removed: use p, which is as accurate"},
          {"s", "; it has been removed: use p, which is as accurate in 5 steps"}},
         "muon's Newton-Schulz iteration of 5 steps: k (Jordan's) or p (Polar Express)"),
    flag(0, "muon-scale", "NAME", &OptimizerConfig::muon_scale, {},
         "size of muon's update of an A x B matrix: rms (0.2 sqrt(max(A, B)); use AdamW's --lr) or spectral "
         "(sqrt(max(1, A/B)); use --lr 0.02 or so)"),
    with_parts(
        flag(0, "adamw-lr", "X[,embedding=X][,head=X][,vector=X]", &OptimizerConfig::adamw_lr, {.min_open = true},
             "with muon: peak learning rate of the parameters that AdamW updates, then those of embeddings, of "
             "an untied output head, and of norms and biases, if they differ. Without X, the rest has --lr",
             "--lr"),
        {part("embedding=", &OptimizerConfig::embedding_lr, {.min_open = true}),
         part("head=", &OptimizerConfig::head_lr, {.min_open = true}),
         part("vector=", &OptimizerConfig::vector_lr, {.min_open = true})}),
    flag(0, "adamw-weight-decay", "X", &OptimizerConfig::adamw_weight_decay, {},
         "with muon: weight decay of embeddings and output head", "--weight-decay"),
    flag(0, "clip", "X", &Options::clip, {}, "gradient clipping threshold (see --clip-kind); 0: no clipping"),
    flag(0, "clip-kind", "NAME", &OptimizerConfig::clip_kind, {},
         "quantity that --clip limits: norm (of all gradients together), tensor (norm of each tensor's gradient) or "
         "value (magnitude of each element)"),
    flag(0, "qk-clip", "X", &Options::qk_clip, {},
         "after each step, scale down the weights of queries and keys in heads whose largest attention logit was above "
         "X (MuonClip's QK-clip; Kimi K2 used 100); 0: off"),
    flag(0, "z-loss", "X", &Options::z_loss, {},
         "add X log(Z)^2 to the training loss, Z being the softmax denominator (PaLM uses 1e-4); reported losses "
         "exclude it"),
    flag(0, "average", "RULE", &OptimizerConfig::average_decay, average_decay_from_text,
         "keep an average of the weights in the checkpoints: ema:DECAY, such as ema:0.999 (DECAY * average + (1 - "
         "DECAY) * weights after every step); eval, sample and export take it with --average"),

    heading("Precision and memory"),
    common(flag(0, "precision", "NAME", &Options::precision, {},
                "fp8 (linear layers of the blocks), bf16, fp32 (the reference) or auto (the lowest that the device "
                "supports)")),
    flag(0, "tf32", "", &Options::tf32, {}, "let --precision fp32 use TF32 tensor cores (GPU only)"),
    common(flag('r', "recompute", "NAME", &Options::recompute,
                {{"0", "; llm.c's -r 0 is -r none here"},
                 {"1", "; llm.c's -r 1 is -r gelu here"},
                 {"2", "; llm.c's -r 2 is -r norm here"}},
                "activations to recompute in the backward pass: none, gelu, norm (norms and GELU), block (all) or auto "
                "(as little as memory allows); the same bits in every case")),
    flag(
        0, "offload", "NAME", &Options::offload, {},
        "keep in host memory: optimizer (master weights and moments), residuals (the inputs of blocks until backward), "
        "both, off (nothing) or auto (what makes the run fit)"),
    flag(0, "kernels", "NAME", &Options::kernels, {},
         "auto (Hopper's own kernels on a card of compute capability 9.0) or portable (on every card the same, for "
         "comparison); a CPU runs its own loops in both cases"),
    flag(0, "tune", "N", &Options::tune, {.max = 64},
         "algorithms of cuBLASLt per matmul that are timed before the first step to find the fastest; 0: take the "
         "library's first one (GPU only)"),

    heading("FP8 and loss scaling"),
    flag(0, "fp8-recipe", "NAME", &Fp8Config::recipe, {},
         "scaling: delayed (from past steps), current (from the tensor itself, in one more pass), block (one scale per "
         "128 elements) or mxfp8 (one per 32)"),
    flag(0, "fp8-layers", "LIST", &Options::fp8_layers, fp8_layers_from_text,
         "linear layers in FP8: auto (all,-first,+lm_head: not the first block, but the gradients of the output head), "
         "all or none, then exceptions such as -last,-block7,-fc_proj,-block3.qkv; -forward: only gradients in FP8"),
    flag(0, "fp8-grad", "NAME", &Fp8Config::grad, {{"bf16", "; it has been removed: use --fp8-layers"}},
         "format of output gradients: e5m2 or e4m3"),
    flag(0, "fp8-history", "N", &Fp8Config::history, {.min = 1, .max = kMaxAmaxHistory},
         "delayed scaling: optimizer steps in the amax window"),
    flag(0, "fp8-margin", "N", &Fp8Config::margin, {.max = 16},
         "headroom above the amax that scales leave, in powers of two"),
    flag(0, "fp8-amax-algo", "NAME", &Fp8Config::algorithm, {},
         "delayed scaling: value taken from the amax window: max, most_recent or ema"),
    flag(0, "fp8-pow2-scales", "", &Fp8Config::pow2_scales, {}, "round scales down to powers of two"),
    flag(0, "fp8-fast-accum", "NAME", &Options::fast_accumulation, {},
         "matmuls that accumulate with fewer bits, which is faster: forward, none or all (GPU only)"),
    flag(0, "fp8-emulation", "", &Options::fp8_emulation, {},
         "on a GPU that lacks the recipe's FP8 matmuls, compute them in BF16 from the same FP8 values; slower than "
         "--precision bf16"),
    flag(0, "fp8-log-every", "N", &Options::fp8_log_every, {}, "record every FP8 tensor every N steps; 0: never"),
    flag(0, "fp8-fallback", "RULE", &Fp8Config::fallback, fp8_fallback_from_text,
         "SATURATED,UNDERFLOWED,STEPS, such as 0.01,0.5,10: move a layer to BF16 after STEPS steps in a row in which "
         "more than these fractions of one of its tensors saturated or underflowed; off: never"),
    flag(0, "fp8-until", "WHEN", &Options::fp8_until, fp8_until_from_text,
         "move all layers to BF16 after this step or percentage of --max-steps, such as 9400 or 94%"),
    with_parts(flag(0, "loss-scale", "X[,STEPS]", &Options::loss_scale, loss_scale_config,
                    "off, a power of two, dynamic (starts at 65536 and doubles after STEPS steps without overflow; "
                    "1000) or dynamic:N (which halves only at the Nth skipped step in a row and those after it)",
                    "dynamic in fp8, else off"),
               {part("", &LossScaleConfig::growth_interval, {.min = 1})}),
    flag(0, "max-skips", "N", &Options::max_skips, {}, "stop after N skipped steps in a row; 0: never"),
    flag(0, "skip-spikes", "", &Options::skip_spikes, {},
         "skip steps whose loss or gradient norm is above mean + 6 sigma of the last 128 steps (at least 64); without "
         "this flag they are only reported"),

    heading("Several GPUs (start with mpirun, srun, or RANK, WORLD_SIZE and MASTER_ADDR)"),
    common(flag('z', "zero", "N", &Sharding::stage, {.max = 3},
                "ZeRO stage: ranks share 0 nothing, 1 optimizer state and master weights, 2 also gradients, 3 also "
                "working weights",
                "1 with several ranks")),
    flag(0, "shard-within", "N", &Sharding::within, {},
         "shard within groups of N neighbouring ranks, such as a node, and replicate across groups; 0: across all "
         "ranks"),
    flag(0, "comm", "NAME", &Options::comm, {}, "communication between ranks: auto, self, mpi, tcp or nccl"),
    flag(0, "reduce", "NAME", &Sharding::wire, {},
         "format in which gradients are sent: fp32, bf16 or fp8 (each rank adds its rounding error to the next step); "
         "sums are FP32"),
    flag(0, "reduce-order", "NAME", &Options::reduce_order, {},
         "order in which gradients are summed: any (the library's; NCCL's may differ between runs) or rank (the same "
         "bits every time, on any number of ranks)"),
    flag(0, "timeout-start", "SECONDS", &Options::timeout_start, {},
         "time to wait for the other ranks at the start; 0: forever"),
    flag(0, "timeout-step", "SECONDS", &Options::timeout_step, {},
         "end a run that makes no progress for this long; 0: never"),
    flag(0, "timeout-save", "SECONDS", &Options::timeout_save, {}, "the same while a checkpoint is written"),

    heading("Checkpoints (in --out DIR)"),
    common(flag('n', "checkpoint-every", "N", &Options::checkpoint_every, {},
                "save a checkpoint every N steps; 0: by time only")),
    common(once(flag('y', "resume", "latest|auto|PATH", &Options::resume, resume_from,
                     "continue from the newest intact checkpoint in --out (latest), or start a new run if there never "
                     "was one (auto), or from this checkpoint or run (PATH); without --train and --config, with the "
                     "configuration of the run in --out",
                     "none"))),
    flag(0, "checkpoint-minutes", "M", &Options::checkpoint_minutes, {},
         "also save when the last checkpoint is M minutes old; 0: never by time. A run also saves at its end and when "
         "stopped, unless this and -n are 0"),
    with_parts(flag(0, "keep", "N[,EVERY]", &Options::keep, {},
                    "keep the newest N checkpoints (0: all), and those whose step is a multiple of EVERY"),
               {part("", &Options::keep_every, {})}),
    flag(0, "verify", "NAME", &Options::verify, {},
         "check of a checkpoint before it is used: full (every byte), size (of its files) or none"),
    flag(0, "on-save-error", "NAME", &Options::on_save_error, {},
         "continue or stop when a checkpoint cannot be written"),
    flag(0, "checkpoint-local", "DIR", &Options::checkpoint_local, {},
         "write each rank's part to DIR on its own machine first, instead of to host memory, and to --out while "
         "training continues",
         "host memory"),
    flag(0, "after-checkpoint", "CMD", &Options::after_checkpoint, {},
         "when a checkpoint is complete, run the shell command CMD with its path as the last argument, while training "
         "continues; not taken from --config or a run.json",
         "none"),
    once(flag(0, "rewind", "N", &Options::rewind, {}, "with --resume: skip the newest N checkpoints")),
    once(flag(0, "skip-data", "N", &Options::skip_data, {.max = 1e9},
              "with --resume: skip the data of N steps, for example data that made the run diverge")),
    once(flag(0, "new-data", "", &Options::new_data, {},
              "with --resume: accept other training data, -t, --seed or --doc-mask than the "
              "checkpoint's run had")),

    heading("Validation and samples"),
    common(flag('v', "val-every", "N", &Options::val_every,
                {.word = "auto", .word_means = -1, .answers = {{"-1", " (auto: by its cost)"}}},
                "validate every N steps; 0: never; auto: so that it takes less than 5 % of the time")),
    flag('m', "val-batches", "N", &Options::val_batches, {.min = -1}, "batches per validation; 0: none, -1: all"),
    flag(0, "val-precision", "NAME", &Options::val_precision, {},
         "forward pass of validations and tasks in an FP8 run: bf16 (with the weights that it exports, as in eval) or "
         "run (in FP8, as in training)"),
    flag(0, "hellaswag", "FILE", &Options::hellaswag, check_not_empty,
         "multiple-choice examples in llm.c's format to score at every validation (the whole file, regardless of -m)",
         "none"),
    flag(0, "task", "NAME=FILE", &Options::task, check_task,
         "the same for a file of data.prepare task, such as arc_easy=FILE; several: --task NAME=FILE for each, logged "
         "as NAME_acc and NAME_acc_norm",
         "none"),
    common(flag('s', "sample-every", "N", &Options::sample_every, {}, "print a sample every N steps; 0: never")),
    flag('g', "sample-tokens", "N", &Options::sample_tokens, {}, "tokens per sample; 0: no samples"),
    common(flag(0, "tokenizer", "FILE", &Options::tokenizer, {},
                "tokenizer of samples: tokenizer.bin, tokenizer.json, .tiktoken, a directory with one, or bytes",
                "found with the data")),
    flag(0, "prompt", "TEXT", &Options::prompt, {},
         "text that samples begin with, encoded by data.prepare; or token ids: ids:464,3290", "end-of-text token"),
    flag(0, "temperature", "X", &Options::temperature, {}, "sampling temperature; 0: always the most likely token"),
    flag(0, "top-k", "N", &Options::top_k, {}, "sample among the N most likely tokens; 0: all"),
    flag(0, "top-p", "X", &Options::top_p, {.max = 1, .min_open = true},
         "sample among the most likely tokens whose probabilities sum to X"),

    heading("Running and planning"),
    flag(0, "seed", "N", &Options::seed, {}, "seed for all random numbers"),
    flag(0, "log-every", "N", &Options::log_every, {.min = 1, .word = "auto"},
         "print every N-th step (auto: at most 200 lines, of a round number of steps each; a terminal also shows the "
         "steps between them, in one line); metrics.jsonl and main.log have all of them"),
    flag(0, "signals-every", "N", &Options::signals_every, {},
         "every N steps, record the norms of every tensor's gradient, weights and update, and the largest logits of "
         "attention; 0: never"),
    flag(0, "verify-every", "N", &Options::verify_every, {},
         "every N steps, check for silent data corruption: compute the first micro-step twice and compare the bits, as "
         "well as those of weights and optimizer state; 0: never"),
    common(once(flag(0, "config", "FILE", &Options::config_file, check_not_empty,
                     "read flags from JSON with long flag names as keys, or from a run.json; flags override it"))),
    once(flag(0, "print-config", "", &Options::print_config, {},
              "print the resolved configuration as JSON for --config and exit")),
    common(once(flag(0, "dry-run", "", &Options::dry_run, {},
                     "print parameters, memory and predicted step time (with --world: for all ZeRO stages) and exit; "
                     "needs no GPU"))),
    once(flag(0, "fit", "", &Options::fit, {},
              "if the run does not fit into memory, change what is predicted to cost least: -r, -b, -z, --offload, "
              "--adam-moments, --master, --gradients or --precision; the start of the run lists the changes")),
    once(flag(0, "json", "", &Options::json, {},
              "with --dry-run or --estimate-scaling: print one JSON object; with -e list: the names as an array")),
    once(flag(0, "world", "N", &Options::world, {.min = 1, .max = 65536}, "number of ranks to plan for", "1")),
    common(once(flag(0, "gpu", "NAME", &Options::gpu, gpu_named, "card to plan for: h100, h200, a100, l40s, ...",
                     "the one found, else h200"))),
    once(flag(0, "estimate-scaling", "", &Options::estimate_scaling, {},
              "print the tokens per second predicted for 1 to 1024 GPUs with this batch on each, and exit (with -o "
              "DIR: also write DIR/scaling.json); needs no GPU")),
    once(flag(0, "bench", "", &Options::bench, {},
              "time 25 steps (or --stop-after N), on random tokens if there is no --train; no validation, no samples, "
              "nothing is written")),
    once(flag(0, "profile-steps", "N|A:B", &Options::profile_steps, profile_steps_from_text,
              "trace N steps after two of warm-up, or steps A to B - 1, into trace-rank<R>.json for Perfetto; needs "
              "--out",
              "none")),
    once(flag(0, "completion", "SHELL", &Options::completion, check_shell,
              "print a script that completes flags in bash, and exit: source <(./train_gpt --completion bash)",
              "none")),
    once(flag(0, "version", "", &Options::version, {}, "print the version and exit")),
    once(flag('h', "help", "", &Options::help, {}, "print the most important flags and exit")),
    once(flag(0, "help-all", "", &Options::help_all, {}, "print all flags and exit")),
    once(flag(0, "help-markdown", "", &Options::help_markdown, {}, "print all flags as a Markdown page and exit")),
};

static std::string shortest_text(double number) {
    char text[32];
    std::string result(text, std::to_chars(text, text + sizeof text, number).ptr);
    const size_t zero = result.find("e-0");  // 1e-08
    return zero == std::string::npos ? result : result.erase(zero + 2, 1);
}

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

const std::vector<RemovedFlag>& removed_flags() {
    const char* const kFollow =
        "start python3 scripts/follow.py RUN --tensorboard (or --wandb, --prometheus FILE) while it trains";
    constexpr const char* kCheckCard =
        "the program check_card (make check_card) tests the kernels, matmuls and collectives of a run on this card";
    static const std::vector<RemovedFlag> flags = {
        {"fp8-smooth", "false",
         "--fp8-recipe block gives each block of a row its own scale, and --fp8-layers all,-fc_proj keeps the layer "
         "that reads SwiGLU's output in BF16"},
        {"doc-positions", "false",
         "--doc-mask alone keeps attention within documents, and models with rotary positions (-e llama3.2-1b, "
         "qwen3-0.6b, nano-d12) only see distances within them"},
        {"fp8-arithmetic", "\"fp32\"",
         "FP8 matmuls on a CPU sum in FP32; the CUDA program on the virtual GPU sums like Hopper's tensor cores with "
         "VIRTUAL_GPU_ARITHMETIC=hopper (dev/virtual_gpu/README.md)"},
        {"fp8-probe-every", "0",
         "train_gpt inspect --from CHECKPOINT shows the errors of each layer's FP8 matmuls, for one micro-batch", true},
        {"label-smoothing", "0", "train on the targets as they are; --z-loss also keeps logits small"},
        {"card-check", "\"auto\"", kCheckCard, true},
        {"strict", "false", kCheckCard, true},
        {"timeout-check", "60", kCheckCard, true},
        {"price", "null", "multiply the GPU-hours that --dry-run predicts by your price", true},
        {"track", "\"off\"", kFollow, true},
        {"tensorboard", "false", kFollow, true},
        {"prometheus", "null", kFollow, true},
        {"alert", "\"off\"", "scripts/follow.py RUN --alert RULES prints the steps in which a rule begins to hold",
         true},
        {"keep-every", "0", "use --keep N,EVERY", false, "keep"},
        {"embedding-lr", "null", "use --adamw-lr X,embedding=X", false, "adamw-lr", "embedding="},
        {"head-lr", "null", "use --adamw-lr X,head=X", false, "adamw-lr", "head="},
        {"vector-lr", "null", "use --adamw-lr X,vector=X", false, "adamw-lr", "vector="},
        {"loss-scale-growth-interval", "1000", "use --loss-scale dynamic,STEPS", false, "loss-scale"},
        {"muon-momentum-warmup", "0", "use --momentum X,N", false, "momentum"},
        {"restart-factor", "1", "use --restart-every N,K", false, "restart-every"},
    };
    return flags;
}

const RemovedFlag* find_removed_flag(std::string_view name) {
    for (const RemovedFlag& flag : removed_flags())
        if (flag.name == name) return &flag;
    return nullptr;
}

bool RemovedFlag::goes_on(const Json& value) const {
    return observes || value.is_null() || value == parse_json(default_value);
}

std::string RemovedFlag::text() const { return "--" + name + " has been removed: " + instead; }

Json current_config(const Json& config) {
    Json now;
    for (const auto& [name, value] : config.items())  // a name of version 0.1.0
        now[name == "muon-cautious-decay" ? "cautious-decay" : name] = value;
    for (const RemovedFlag& old : removed_flags()) {
        const bool has_both = now.contains(old.name) && !now.value(old.part_of, Json()).is_null();
        if (!has_both || old.goes_on(now[old.name])) continue;
        now[old.part_of] = behind(now[old.part_of], old.prefix, now[old.name]);
        now.erase(old.name);
    }
    return now;
}

Flag with_parts(Flag row, const std::vector<Flag>& parts) {
    row.set = [first = row, parts](Options& o, const std::string& text) {
        std::vector<std::string> words = split(text, ',');
        const auto part_of = [&](const std::string& word) {
            return std::find_if(parts.begin(), parts.end(),
                                [&](const Flag& part) { return word.starts_with(part.long_name); });
        };
        if (const auto part = part_of(words[0]); part != parts.end() && !part->long_name.empty()) {
            first.reset(o);
        } else {
            first.set(o, words[0]);
            words.erase(words.begin());
        }
        if (words.size() > parts.size()) refuse("'" + text + "' is not " + first.value);
        for (const Flag& part : parts) part.reset(o);
        for (const std::string& word : words) {
            const auto part = part_of(word);
            if (part == parts.end()) refuse("'" + text + "' is not " + first.value);
            part->set(o, word.substr(part->long_name.size()));
        }
    };
    row.get = [first = row.get, parts](const Options& o) {
        JsonValue value = first(o);
        for (const Flag& part : parts)
            if (const JsonValue more = part.get(o); *more != *part.get(Options()))
                value = JsonValue(behind(*value, part.long_name, *more));
        return value;
    };
    return row;
}

std::string names_text(const Flag& flag) {
    return (flag.short_name ? fmt::format("-{:c}, --", flag.short_name) : "--") + flag.long_name +
           (flag.other_name.empty() ? "" : ", --" + flag.other_name);
}

JsonValue json_of_sets(const std::vector<ValSet>& sets) {
    Json list;
    for (const ValSet& set : sets) list.push_back(set.name.empty() ? set.glob : set.name + "=" + set.glob);
    return list;
}

std::string flag_text(const Flag& flag, const Options& options) {
    const Json value = *flag.get(options);
    if (flag.is_switch() || value.is_null()) return "";
    if (value.is_string()) return value.get<std::string>();
    return value.is_number_float() ? shortest_text(value.get<double>()) : value.dump();
}

std::string default_text(const Flag& flag) {
    if (!flag.default_text.empty() || flag.is_switch()) return flag.default_text;
    const std::string text = flag_text(flag, Options());
    return text.empty() ? flag.range.word : text;
}

}  // namespace llmc
