// Builds the help of all flags as text, wrapped to the width of the terminal, and as Markdown. Answers unknown flags.
#include "llmc/flags/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "llmc/flags/flags.h"
#include "llmc/model/config.h"
#include "llmc/plan/cards.h"

namespace llmc {

// ---- --help, --help-all and --help-markdown -------------------------------------------------------------------------

namespace {

constexpr size_t kHelpColumn = 28;  // where the help of a flag starts

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 other failure, 2 flags or configuration, 3 data, 4 checkpoint, 5 not enough memory or disk "
    "or no usable device, 6 training diverged or data corruption was found, 7 communication lost, 75 stopped by a "
    "signal or limit after saving.";

struct {
    const char *name, *help;
} const kCommands[] = {
    {"train", "train a model (the default)"},
    {"eval", "print a model's losses and its scores in tasks (eval --help)"},
    {"sample", "generate text with a model (sample --help)"},
    {"export", "write a model's weights for Hugging Face or llm.c (export --help)"},
    {"inspect", "compare a micro-batch in FP8, BF16 and FP32 (inspect --help)"},
};

// `left` in the first column, then `right` wrapped from `column` on; on a line of its own if `left` is too long.
std::string two_columns(const std::string& left, const std::string& right, size_t column, size_t width) {
    const bool fits = left.size() + 2 <= column;
    const std::string gap = fits ? std::string(column - left.size(), ' ') : "\n" + std::string(column, ' ');
    return left + gap + wrap(right, column, width) + "\n";
}

std::vector<Flag> flags_of(const std::string& group, bool all) {
    std::vector<Flag> flags = all_flags();
    std::erase_if(flags, [&](const Flag& flag) { return flag.group != group || (!all && !flag.common); });
    return flags;
}

// "-b, --batch N"
std::string with_value(const Flag& flag) { return names_text(flag) + (flag.is_switch() ? "" : " " + flag.value); }

std::vector<std::string> groups() {
    std::vector<std::string> names;
    for (const Flag& flag : all_flags())
        if (names.empty() || names.back() != flag.group) names.push_back(flag.group);
    return names;
}

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
        if (c == '<') {
            result += "&lt;";
            continue;
        }
        if (c == '|' || c == '*') result += '\\';
        result += c;
    }
    return result;
}

// The flags in two columns, no line longer than `width`.
std::string help_of(const std::vector<Flag>& flags, size_t width) {
    std::string text;
    for (const Flag& flag : flags) {
        const std::string indent = flag.short_name ? "  " : "      ", by_default = default_text(flag);
        text += two_columns(indent + with_value(flag), flag.help + (by_default.empty() ? "" : " [" + by_default + "]"),
                            kHelpColumn, width);
    }
    return text;
}

// A table of flag, default and meaning.
std::string markdown_of(const std::vector<Flag>& flags) {
    std::string text = "| flag | default | meaning |\n|---|---|---|\n";
    for (const Flag& flag : flags) {
        std::string names = with_value(flag);  // a pipe would end the cell even in code
        for (size_t at = 0; (at = names.find('|', at)) != std::string::npos; at += 2) names.insert(at, "\\");
        text += "| `" + names + "` | " + escaped(default_text(flag)) + " | " + escaped(flag.help) + " |\n";
    }
    return text;
}

}  // namespace

size_t help_width() {
    constexpr long kNarrowest = 60, kWidest = 120;
    long width = 80;
    winsize size = {};
    const char* const columns = std::getenv("COLUMNS");
    if (columns && std::atol(columns) > 0)
        width = std::atol(columns);
    else if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = size.ws_col;
    return static_cast<size_t>(std::clamp(width, kNarrowest, kWidest));
}

std::string usage_text(const std::string& program, size_t width) {
    std::string text = program + ": pretrains GPTs in FP8 from shards of tokens.\n\nUsage: " + program +
                       " [COMMAND] FLAGS\n\nCommands\n";
    for (const auto& [name, help] : kCommands) text += two_columns(fmt::format("  {}", name), help, 11, width);
    const std::string p = "  " + program;
    return text + "\nExamples\n" + p + " -i 'data/*train_*.bin' -j 'data/*val_*.bin' -o runs/first\n" + p +
           " -o runs/first --resume latest\n" + p +
           " -i 'data/*train_*.bin' -o runs/small -e tiny -x 500  # on a CPU\n" + p +
           " -e gpt2-xl -b 16 --dry-run --gpu h200\n";
}

std::string help_text(const std::string& usage, bool all, size_t width) {
    std::string text = usage + "\n";
    text += wrap("Flags shown without a value are switches. Defaults are in [brackets].", 0, width) + "\n";
    for (const std::string& group : groups())
        if (const std::vector<Flag> flags = flags_of(group, all); !flags.empty())
            text += "\n" + wrap(group, 0, width) + "\n" + help_of(flags, width);
    if (!all) text += fmt::format("\n--help-all lists all {} flags.\n", all_flags().size());
    return text + "\n" + wrap(kExitCodes, 0, width) + "\n";
}

std::string command_help(const CommandFlags& command, size_t width) {
    std::string text = "Usage: train_gpt " + command.name;
    for (const Flag& flag : command.flags)
        if (flag.required) text += " --" + flag.long_name + " " + flag.value;
    text += " [FLAGS]\n\n" + wrap(command.description, 0, width) + "\n\n" + help_of(command.flags, width);
    return command.footer.empty() ? text : text + "\n" + command.footer;
}

std::string help_markdown() {
    std::string text =
        "# Flags\n\nAll flags of `train_gpt`, as `train_gpt --help-markdown` prints them. "
        "Most take a value; those shown without one are switches.\n";
    for (const std::string& group : groups()) text += "\n## " + group + "\n\n" + markdown_of(flags_of(group, true));
    for (const CommandFlags& command : all_commands())
        text += "\n## train_gpt " + command.name + "\n\n" + command.description + "\n\n" + markdown_of(command.flags);
    return text;
}

// ---- --completion bash ----------------------------------------------------------------------------------------------

// The command of bash after the flag. It offers words, or names of files ("return", for `complete -o default`), or
// nothing.
static std::string completion_of(const Flag& flag) {
    std::vector<std::string> words = flag.words;
    if (flag.long_name == "gpu") words = gpu_short_names();
    if (flag.long_name == "model") words = model_names();
    if (!words.empty()) return "words='" + joined(words) + "'";
    for (const char* kind : {"FILE", "DIR", "PATH", "GLOB"})
        if (flag.value.find(kind) != std::string::npos) return "return";
    return "compopt +o default; return";
}

std::string completion_script() {
    std::string names = "train", commands, values;
    std::vector<std::string> seen;  // a flag that several commands have means the same in all of them
    const auto flags_of_command = [&](const std::vector<Flag>& flags) {
        std::vector<std::string> names;
        for (const Flag& flag : flags) {
            names.push_back("--" + flag.long_name);
            if (flag.is_switch() || contains(seen, flag.long_name)) continue;
            seen.push_back(flag.long_name);
            const std::string letter = flag.short_name ? fmt::format("-{:c} | ", flag.short_name) : "";
            values += fmt::format("    {}--{}) {} ;;\n", letter, flag.long_name, completion_of(flag));
        }
        return joined(names);
    };
    const std::string train = flags_of_command(all_flags());
    for (const CommandFlags& command : all_commands()) {
        names += ", " + command.name;
        commands += fmt::format("    {}) words='{}' ;;\n", command.name, flags_of_command(command.flags));
    }
    return fmt::format(R"(# Completes flags of train_gpt in bash: source <(./train_gpt --completion bash)
_train_gpt() {{
    local IFS=$', \n' words current=${{COMP_WORDS[COMP_CWORD]#=}} flag=${{COMP_WORDS[COMP_CWORD - 1]}}
    if [[ $flag == = ]]; then flag=${{COMP_WORDS[COMP_CWORD - 2]}}; fi  # --flag=value is three words
    case ${{COMP_WORDS[1]}} in
{}    *) words='{}' ;;
    esac
    if ((COMP_CWORD == 1)); then words+=', {}'; fi
    case $flag in
{}    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _train_gpt train_gpt train_gpt_cpu
)",
                       commands, train, names, values);
}

// ---- unknown flags and commands -------------------------------------------------------------------------------------
// Tables of llm.c's and other programs' flags, with the answer to each.

namespace {

struct {
    const char *flags, *meaning, *here;  // the meaning in llm.c
} const kAnswers[] = {
    {"-nk", "checkpoints to keep", "use --keep"},
    {"-nm", "major checkpoints", "use --keep N,EVERY, in steps"},
    {"-w", "keep FP32 master weights", "they are kept unless there is --master bf16; leave it out"},
    {"-f", "allow TF32", "use --tf32 to allow it; off is the default"},
    {"-ge", "GELU fusion", "there is nothing to choose; leave it out"},
    {"-a", "overfit one batch", "train on a shard as small as one batch"},
    {"-sl -sg", "skip steps with an outlying loss or gradient norm", "use --skip-spikes, which has its own limits"},
    {"-lg", "GPU information in the log", "this program has no such log; leave it out"},
    {"-pn -pr", "number of processes, rank", "the launcher (mpirun, srun) sets it; leave it out"},
    {"-pg", "GPUs per node", "it is detected; leave it out"},
    {"-pi -pm", "how to initialize NCCL", "it is detected; leave it out"},
    {"-ps -pf -pp", "server address, file-system path", "the launcher sets it; leave it out"},
};

// Flags of nanoGPT, nanochat, Megatron-LM, torchtitan, Hugging Face's Trainer and llmq, by the flag that has their
// meaning here. The commands have some flags of their own, so a name may occur twice.
struct {
    const char *ours, *theirs;
} const kNames[] = {
    {"train", "dataset data data-path data-dir train-data train-files train-file input-bin dataset-name"},
    {"val", "val-data val-files eval-data eval-files eval-file validation-file input-val-bin valid-data-path"},
    {"out", "out-dir output-dir save-dir run-dir checkpoint-dir save dump-folder log-dir"},
    {"to", "out out-dir output-dir output save"},
    {"model", "model-type model-name model-size arch preset"},
    {"init-from", "pretrained model-name-or-path pretrained-checkpoint hf-model-path initial-load-path"},
    {"from", "model model-path model-name-or-path checkpoint-path ckpt ckpt-path load init-from pretrained run"},
    {"layers", "n-layer n-layers num-layers num-hidden-layers"},
    {"heads", "n-head n-heads num-heads num-attention-heads"},
    {"channels", "n-embd hidden-size d-model dim model-dim"},
    {"vocab", "vocab-size"},
    {"context", "max-position-embeddings context-length n-positions n-ctx"},
    {"batch",
     "batch-size micro-batch-size device-batch-size local-batch-size per-device-train-batch-size "
     "per-device-batch-size bs"},
    {"seq", "seq-len seq-length sequence-len sequence-length block-size max-seq-len max-seq-length max-length"},
    {"total-batch", "total-batch-size"},
    {"max-steps", "steps max-iters train-steps train-iters num-iterations num-steps num-train-steps total-steps iters"},
    {"epochs", "num-epochs num-train-epochs train-epochs n-epochs epoch"},
    {"lr", "learning-rate max-lr peak-lr matrix-lr"},
    {"warmup", "warmup-steps warmup-iters lr-warmup-iters lr-warmup-steps num-warmup-steps"},
    {"schedule", "lr-scheduler lr-scheduler-type lr-schedule lr-decay-style"},
    {"cooldown", "decay-ratio warmdown-ratio cooldown-frac"},
    {"final-lr-fraction", "min-lr min-lr-ratio min-lr-factor final-lr-frac final-lr learning-rate-decay-frac"},
    {"weight-decay", "wd"},
    {"cautious-decay", "muon-cautious-decay cautious-weight-decay"},
    {"beta1", "adam-beta1 adam-beta-1"},
    {"beta2", "adam-beta2 adam-beta-2"},
    {"eps", "adam-eps adam-epsilon epsilon"},
    {"clip", "grad-clip clip-grad max-grad-norm gradient-clipping gradient-clip"},
    {"optimizer", "optim"},
    {"precision", "dtype bf16 fp16 fp8 fp32 mixed-precision amp matmul-dtype model-dtype fp8-format"},
    {"recompute", "gradient-checkpointing activation-checkpointing recompute-activations recompute-granularity"},
    {"zero", "zero-stage fsdp zero-optimization use-distributed-optimizer data-parallel-shard-degree"},
    {"comm", "distributed-backend backend"},
    {"checkpoint-every", "save-interval save-every save-steps checkpoint-interval ckpt-interval"},
    {"keep", "save-total-limit keep-latest-k keep-checkpoints"},
    {"resume", "resume-from resume-from-checkpoint load continue auto-resume"},
    {"val-every", "eval-interval eval-every eval-steps val-interval val-loss-every eval-every-n-steps"},
    {"val-batches", "eval-iters eval-batches val-steps val-max-steps eval-num-steps"},
    {"sample-every", "sample-interval"},
    {"sample-tokens", "max-new-tokens gen-len"},
    {"tokens", "max-new-tokens max-tokens max-length length n"},
    {"num-samples", "num-return-sequences n-samples"},
    {"prompt", "start text input"},
    {"tokenizer", "tokenizer-path tokenizer-model tokenizer-name hf-assets-path"},
    {"log-every", "log-interval logging-steps log-freq print-every log-every-n-steps"},
    {"seed", "random-seed"},
    {"config", "config-file config-path"},
    {"profile-steps", "profile"},
    {"gpu", "card"},
};

// Flags of other programs that no single flag here replaces.
struct {
    const char *theirs, *answer;
} const kAnswersInWords[] = {
    {"grad-accum grad-accum-steps gradient-accumulation-steps accumulation-steps",
     "gradients accumulate when -d, --total-batch is above batch * seq * ranks; multiply that by the micro-steps you "
     "want"},
    {"global-batch-size", "here it is -d, --total-batch, in tokens: sequences * --seq"},
    {"max-tokens train-tokens num-tokens token-budget target-tokens", "use -x, --max-steps: tokens / --total-batch"},
    {"lr-decay-iters lr-decay-steps", "the learning rate decays over all of -x, --max-steps"},
    {"tensorboard-dir enable-tensorboard use-tensorboard",
     "start python3 scripts/follow.py RUN --tensorboard while it trains; it writes event files into the run directory"},
    {"wandb wandb-log wandb-project wandb-run-name enable-wandb use-wandb",
     "start python3 scripts/follow.py RUN --wandb [PROJECT] while it trains"},
    {"report-to", "start python3 scripts/follow.py RUN --tensorboard or --wandb while it trains"},
    {"compile torch-compile flash-attn use-flash-attn flash no-flash", "there is nothing to enable; leave it out"},
    {"device device-type cpu", "train_gpt runs on GPUs, train_gpt_cpu on the CPU; leave it out"},
    {"num-workers dataloader-num-workers workers", "data is read in the background; leave it out"},
    {"gpus num-gpus ngpu nproc nproc-per-node nnodes devices world-size rank local-rank",
     "start several processes with mpirun, srun or torchrun; leave it out"},
    {"tensor-model-parallel-size tensor-parallel-size tp pipeline-model-parallel-size pp",
     "there is no tensor or pipeline parallelism; use -z, --zero to shard the model"},
};

// Commands that people may try.
struct {
    const char *theirs, *answer;
} const kCommandAnswers[] = {
    {"evaluate evaluation validate test perplexity", "did you mean eval?"},
    {"generate inference infer complete chat", "did you mean sample?"},
    {"pretrain run start", "did you mean train?"},
    {"convert save", "did you mean export?"},
    {"check verify selftest doctor", "use the program check_card (make check_card)"},
    {"resume continue", "add --resume latest to the flags of the run"},
    {"prepare tokenize", "python3 -m data.prepare makes shards"},
    {"plan", "use --dry-run"},
    {"bench benchmark", "use --bench"},
    {"version", "use --version"},
};

}  // namespace

std::optional<std::string> answer_llmc_flag(const std::string& flag, const std::string& value) {
    if (flag == "-h") {
        if (!is_digits(value)) return std::nullopt;  // -h is help
        return fmt::format("-h {} is llm.c's HellaSwag evaluation: use --hellaswag FILE; -h alone is help", value);
    }
    if (flag == "-y" && (value == "0" || value == "1"))
        return fmt::format(
            "-y {} is llm.c's; here it is --resume latest, or --resume auto, which starts a new run if there is no "
            "checkpoint yet; without --resume, every run starts over",
            value);
    for (const auto& [flags, meaning, here] : kAnswers)
        if (contains(words_in(flags), flag))
            return fmt::format("{} is a flag of llm.c ({}) but not of this program: {}", flag, meaning, here);
    return std::nullopt;
}

std::string unknown_flag_text(const std::string& argument, const std::vector<Flag>& known, const std::string& see) {
    const std::string typed = argument.substr(0, argument.find('='));
    std::string text = "unknown flag " + typed, name = typed.substr(typed.find_first_not_of('-'));
    std::replace(name.begin(), name.end(), '_', '-');
    if (const RemovedFlag* const removed = find_removed_flag(name)) return removed->text();
    std::vector<std::string> names;
    for (const Flag& flag : known) names.push_back(flag.long_name);
    for (const auto& [ours, theirs] : kNames)
        for (const Flag& flag : known)
            if (flag.long_name == ours && contains(words_in(theirs), name))
                return text + "; here it is " + names_text(flag) + " (" + flag.help + ")";
    for (const auto& [theirs, answer] : kAnswersInWords)
        if (contains(words_in(theirs), name)) return text + "; " + answer;
    const std::optional<std::string> found = nearest(name, names);
    return text + (found ? "; did you mean --" + *found + "?" : "") + " (" + see + ")";
}

std::string unknown_command_text(const std::string& command) {
    std::vector<std::string> names;
    for (const auto& known : kCommands) names.push_back(known.name);
    std::string text = "unknown command '" + command + "'";
    const std::optional<std::string> found = nearest(command, names);
    if (found) text += "; did you mean " + *found + "?";
    for (const auto& [theirs, answer] : kCommandAnswers)
        if (!found && contains(words_in(theirs), command)) text += std::string("; ") + answer;
    return text + " (commands: " + joined(names) + "; see --help)";
}

std::vector<std::pair<std::string, std::string>> other_names() {
    std::vector<std::pair<std::string, std::string>> names;
    for (const auto& [ours, theirs] : kNames)
        for (const std::string& name : words_in(theirs)) names.emplace_back(name, ours);
    return names;
}

}  // namespace llmc
