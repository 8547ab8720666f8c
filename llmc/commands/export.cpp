// The export command: its arguments, and the files that it writes and replaces.
#include "llmc/commands/model_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "llmc/base/text.h"
#include "llmc/checkpoint/hf_weights.h"
#include "llmc/checkpoint/llmc_model.h"
#include "llmc/checkpoint/weight_source.h"
#include "llmc/data/tokenizer.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

struct Request {
    std::string from, to, format = "hf", dtype = "fp32", tokenizer;
    bool average = false, overwrite = false;
};

// Returns false if help was asked for, and printed.
bool parse(const std::vector<std::string>& arguments, Request& request) {
    CLI::App app("Writes the weights of a model for other programs, or for --init-from.", "train_gpt export");
    app.add_option("--from,--checkpoint", request.from, kWeightsHelp)->required()->type_name("PATH");
    app.add_flag("--average", request.average, kAverageHelp);
    app.add_option("--to", request.to, "directory to write, or with --format llmc also a file named *.bin")
        ->required()
        ->type_name("PATH");
    app.add_option("--format", request.format,
                   "hf (a Hugging Face directory for from_pretrained()) or llmc (a model file of llm.c)")
        ->type_name("NAME")
        ->check(one_of({"hf", "llmc"}))
        ->capture_default_str();
    app.add_option("--dtype", request.dtype,
                   "fp32, bf16 or, for hf only, fp8 (E4M3 codes with one scale per linear layer, the rest in bf16)")
        ->type_name("NAME")
        ->check(one_of({"fp32", "bf16", "fp8"}))
        ->capture_default_str();
    app.add_option(
           "--tokenizer", request.tokenizer,
           "for hf only: also write this tokenizer's files; a tokenizer.json, .tiktoken or llm.c tokenizer.bin, or a "
           "directory with one of them (default: the one found with the weights or the training data)")
        ->type_name("FILE");
    app.footer(
        "To run lm-evaluation-harness on an exported model with a tokenizer:\n"
        "  lm_eval --model hf --model_args pretrained=DIR \\\n      --tasks hellaswag,lambada_openai,piqa");
    app.add_flag("--overwrite", request.overwrite, "replace the model that --to already holds");
    if (!parse_arguments(app, arguments)) return false;
    if (request.format == "llmc" && request.dtype == "fp8")
        refuse("export: --dtype fp8 needs --format hf; llm.c's files have fp32 and bf16");
    if (request.format == "llmc" && !request.tokenizer.empty())
        refuse("export: --tokenizer needs --format hf; a model file of llm.c has no tokenizer");
    return true;
}

bool is_same_place(const fs::path& a, const fs::path& b) {
    std::error_code ignored;
    return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

// True for files that an earlier export or a run wrote for a model.
bool is_model_file(const std::string& name) {
    const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
    return shard || name == "model.safetensors" || name == "model.safetensors.index.json" || name == "config.json" ||
           name == "generation_config.json";
}

// The directory without any model. config.json is deleted first: without it, no program takes the rest for a model.
void make_directory(const Request& request) {
    const fs::path from(request.from), to(request.to);
    std::error_code error;
    const bool is_folder = fs::is_directory(from, error);
    if ((is_folder || is_model_file(from.filename().string())) &&
        is_same_place((is_folder ? from : from.parent_path()) / "x", to / "x"))
        refuse("export: --to " + request.to + " would replace the model that --from reads");
    if (fs::exists(to, error) && !fs::is_directory(to, error)) refuse("export: " + request.to + " is not a directory");
    fs::create_directories(to, error);
    std::vector<fs::path> there;
    for (const auto& entry : fs::directory_iterator(to, error)) there.push_back(entry.path());
    if (error) refuse("export: cannot write into " + request.to + ": " + error.message());
    if (!there.empty() && !request.overwrite)
        refuse("export: " + request.to + " is not empty; --overwrite replaces the model in it, or choose another --to");
    fs::remove(to / "config.json", error);
    for (const fs::path& path : there)
        if (is_model_file(path.filename().string())) fs::remove(path, error);
}

// The file that --format llmc writes: FILE.bin, or model.bin in a directory.
std::string llmc_file(const Request& request) {
    std::error_code error;
    fs::path file(request.to);
    if (file.extension() != ".bin" || fs::is_directory(file, error)) file /= "model.bin";
    if (is_same_place(request.from, file))
        refuse("export: --to " + request.to + " would replace the model that --from reads");
    if (fs::exists(file, error) && !request.overwrite)
        refuse("export: " + file.string() + " exists; --overwrite replaces it, or choose another --to");
    if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
    if (error) refuse("export: cannot write " + file.string() + ": " + error.message());
    return file.string();
}

// Writes the tokenizer's files if there is a tokenizer. Returns the id of the token between documents, or -1.
int write_tokenizer(const Request& request, const WeightSource& source) {
    HfTokenizerTarget target{request.to, source.model().vocab, source.model().context, source.end_token()};
    std::string tokenizer = request.tokenizer;
    if (tokenizer.empty()) {
        const TokenizerSearch search = find_tokenizer("", request.from, source);
        if (search.tokenizer) tokenizer = search.tokenizer->name();
        if (!search.tokenizer)
            print_line("note: the export has no tokenizer, because {}; --tokenizer FILE adds one", search.problem);
    }
    return tokenizer.empty() ? target.end_token : write_hf_tokenizer(tokenizer, target);
}

}  // namespace

ExitCode export_weights(const std::vector<std::string>& arguments) {
    Request request;
    if (!parse(arguments, request)) return ExitCode::ok;
    const std::unique_ptr<WeightSource> source = open_weights(request.from, request.average);
    const FetchTensor fetch = [&](const std::string& name, std::vector<float>& out) { out = source->fetch(name); };
    std::string written = request.to;
    if (request.format == "llmc") {
        written = llmc_file(request);
        export_llmc(written, source->model(), request.dtype == "fp32" ? LlmcType::fp32 : LlmcType::bf16, fetch);
    } else {
        make_directory(request);
        const HfType type = request.dtype == "fp32"   ? HfType::fp32
                            : request.dtype == "bf16" ? HfType::bf16
                                                      : HfType::fp8;
        const int end_token = write_tokenizer(request, *source);
        export_hf_directory(request.to, source->model(), {type, end_token}, fetch);
    }
    print_line("{} in {} written to {}", counted(source->model().parameters(), "parameter"), request.dtype, written);
    return ExitCode::ok;
}

}  // namespace llmc
