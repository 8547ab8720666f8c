// The flags of the commands eval, sample, export and inspect, and how their command lines are read.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/flags/help.h"
#include "llmc/flags/rows.h"

namespace llmc {

static Flag required(Flag flag) {
    flag.required = true;
    return flag;
}

static Flag from_flag() {
    Flag row = flag(0, "from", "PATH", &Options::from, {},
                    "a checkpoint, a run (its newest checkpoint is used), a Hugging Face directory, a .safetensors "
                    "file next to its config.json, or an llm.c model file (.bin)");
    row.other_name = "checkpoint";
    return required(row);
}

static Flag average_flag() {
    return flag(0, "average", "", &Options::of_average, {},
                "take the average of the weights from a checkpoint of a run with --average, instead of the weights");
}

static CommandFlags eval() {
    CommandFlags command = {"eval", "Prints the loss of a model on validation sets, and its scores in tasks."};
    command.defaults.precision = Precision::bf16;
    command.defaults.val_batches = -1;
    command.flags = {
        from_flag(), average_flag(),
        flag('o', "out", "FILE", &Options::out, {}, "also write the numbers to this file, as JSON"),
        flag(0, "against", "NAME", &Options::against, {},
             "off, or bf16: evaluate in FP8, and the same tokens in BF16; prints the difference of the losses and the "
             "divergence KL(BF16 || FP8) of the predictions, per token, with standard errors from the sequences")};
    return command;
}

static CommandFlags sample() {
    CommandFlags command = {
        "sample",
        "Generates text with a model. Without --prompt, it asks for prompts on the terminal (Ctrl-D ends it); if "
        "standard input is not a terminal, the text begins a new document. The tokenizer is found with the weights or "
        "the training data; without one, prompts and text are token ids."};
    command.defaults.precision = Precision::bf16;
    command.defaults.sample_tokens = 256;
    command.flags = {
        from_flag(), average_flag(),
        flag('g', "tokens", "N", &Options::sample_tokens, {.min = 1},
             "largest number of tokens per sample; a sample ends earlier at an end-of-text token"),
        flag(0, "num-samples", "N", &Options::num_samples, {.min = 1}, "samples per prompt, each with the next seed"),
        flag(0, "no-cache", "", &Options::no_cache, {},
             "recompute the keys and values of all tokens for each new one: the same text, slower")};
    return command;
}

static CommandFlags export_weights() {
    CommandFlags command = {"export", "Writes the weights of a model for other programs, or for --init-from."};
    command.flags = {
        from_flag(),
        average_flag(),
        required(flag(0, "to", "PATH", &Options::to, {},
                      "directory to write, or with --format llmc also a file named *.bin")),
        flag(0, "format", "NAME", &Options::format, {},
             "hf (a Hugging Face directory for from_pretrained()) or llmc (a model file of llm.c)"),
        flag(0, "dtype", "NAME", &Options::dtype, {},
             "fp32, bf16 or, for hf only, fp8 (E4M3 codes with one scale per linear layer, the rest in bf16)"),
        flag(0, "tokenizer", "FILE", &Options::tokenizer, {},
             "for hf only: also write this tokenizer's files; a tokenizer.json or a directory with one, GPT-2's "
             ".tiktoken or tokenizer.bin, or bytes",
             "found with the weights or the data"),
        flag(0, "overwrite", "", &Options::overwrite, {}, "replace the model that --to already holds")};
    command.footer =
        "To run lm-evaluation-harness on an exported model with a tokenizer:\n"
        "  lm_eval --model hf --model_args pretrained=DIR \\\n      --tasks hellaswag,lambada_openai,piqa\n";
    return command;
}

static CommandFlags inspect() {
    CommandFlags command = {
        "inspect",
        "Shows what rounding does to a model: one micro-batch in FP32, BF16 and FP8, with the loss of each, how far "
        "the gradient of each layer is from that in FP32 (cosine of the angle between them, and gain), the divergence "
        "of the predictions in FP8 from those in BF16, and how far each layer's three FP8 matmuls are from the same "
        "matmuls in BF16. From a checkpoint of an FP8 run, FP8 scales are those that the run's next step would use. "
        "Flags that are not given are the checkpoint's."};
    command.flags = {from_flag(), flag(0, "json", "", &Options::json, {},
                                       "print everything as one JSON object, with the norm of each tensor's gradient")};
    return command;
}

// Adds the flags of training that the command has too, and --help. The help shows the command's own defaults.
static CommandFlags complete(CommandFlags command, const std::string& of_training) {
    for (const std::string& name : words_in(of_training)) command.flags.push_back(*find_flag(name));
    command.flags.push_back(flag('h', "help", "", &Options::help, {}, "print this and exit"));
    for (Flag& row : command.flags)
        row.default_text = row.required                                        ? "required"
                           : *row.get(command.defaults) == *row.get(Options()) ? default_text(row)
                                                                               : flag_text(row, command.defaults);
    return command;
}

const std::vector<CommandFlags>& all_commands() {
    static const std::vector<CommandFlags> commands = {
        complete(eval(),
                 "val hellaswag task val-batches batch seq doc-mask precision tf32 fp8-recipe fp8-layers "
                 "fp8-emulation zero comm timeout-start timeout-step"),
        complete(sample(),
                 "prompt tokenizer temperature top-k top-p seed precision tf32 fp8-recipe fp8-layers fp8-emulation"),
        complete(export_weights(), ""),
        complete(inspect(),
                 "train batch seq seed doc-mask z-loss tf32 kernels fp8-recipe fp8-layers fp8-grad fp8-history "
                 "fp8-margin fp8-amax-algo fp8-pow2-scales fp8-fast-accum fp8-emulation")};
    return commands;
}

const CommandFlags& find_command(const std::string& name) {
    return *std::find_if(all_commands().begin(), all_commands().end(),
                         [&](const CommandFlags& candidate) { return candidate.name == name; });
}

ParsedOptions parse_command(const std::string& name, const std::vector<std::string>& arguments) {
    const CommandFlags& command = find_command(name);
    const std::string help = "train_gpt " + name + " --help";
    ParsedOptions parsed = {command.defaults, {}};
    try {
        set_flags(read_flags(arguments, command.flags, help + " lists all"), parsed.options);
        if (parsed.options.help) {
            parsed.text = command_help(command, help_width());
            return parsed;
        }
        for (const Flag& flag : command.flags)
            if (flag.required && !parsed.options.given.contains(flag.long_name))
                refuse("--{} {} is missing: {} ({})", flag.long_name, flag.value, flag.help, help);
    } catch (const Error& error) {
        throw Error(error.code(), name + ": " + error.what());
    }
    return parsed;
}

}  // namespace llmc
