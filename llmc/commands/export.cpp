// The export command: the files that it writes and replaces.
#include "llmc/commands/model_command.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/files.h"
#include "llmc/checkpoint/hf_weights.h"
#include "llmc/checkpoint/llmc_model.h"
#include "llmc/comm/agreement.h"  // failure_of
#include "llmc/data/encoder.h"

namespace llmc {

namespace fs = std::filesystem;

// True for files that an export or a run writes for a model.
static bool is_model_file(const std::string& name) {
    const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
    return shard || name == "model.safetensors" || name == "model.safetensors.index.json" || name == "config.json" ||
           name == "generation_config.json";
}

// True for files that belong to a model in its directory, as far as their names say.
static bool is_read_with_a_model(const fs::path& file) {
    constexpr const char* kEnds[] = {".json", ".safetensors", ".bin", ".pt", ".model", ".jinja", ".py"};
    return std::find(std::begin(kEnds), std::end(kEnds), file.extension()) != std::end(kEnds);
}

// The directory in which an export's files are written before they replace others.
static fs::path partial_directory(const Options& o) { return fs::path(o.to) / "export.partial"; }

// True for files that an export writes.
static bool is_ours(const std::string& name) { return is_model_file(name) || is_hf_tokenizer_file(name); }

// Removes that directory, unless it has other files than an export's.
static void remove_partial(const Options& o) {
    const fs::path partial = partial_directory(o);
    std::error_code error;
    for (const std::string& name : names_in(partial.string())) {
        const std::string written = name.ends_with(".tmp") ? name.substr(0, name.size() - 4) : name;
        if (is_ours(written)) fs::remove(partial / name, error);
    }
    fs::remove(partial, error);
}

// Creates the directory, and returns the files in it that the export is to replace. Throws if it must not.
static std::vector<std::string> files_to_replace(const Options& o) {
    const fs::path from(o.from), to(o.to);
    std::error_code error;
    const bool is_folder = fs::is_directory(from, error);
    if ((is_folder || is_model_file(from.filename().string())) &&
        resolved_path((is_folder ? from : from.parent_path()).string()) == resolved_path(o.to))
        refuse("export: --to " + o.to + " would replace the model that --from reads");
    if (fs::exists(to, error) && !fs::is_directory(to, error)) refuse("export: " + o.to + " is not a directory");
    fs::create_directories(to, error);
    remove_partial(o);  // an export that was killed may have left it
    if (fs::exists(partial_directory(o), error))
        refuse("export: " + partial_directory(o).string() +
               " is in the way, and holds files that no export has written");
    std::vector<std::string> there;
    const Failure unlisted = failure_of([&] { there = names_in(o.to); });
    if (error || unlisted)
        refuse("export: cannot write into " + o.to + ": " + (error ? error.message() : unlisted.text));
    if (!there.empty() && !o.overwrite)
        refuse("export: " + o.to + " is not empty; --overwrite replaces the model in it, or choose another --to");
    for (const std::string& name : there)
        if (is_read_with_a_model(name) && !is_ours(name))
            refuse("export: " + (to / name).string() +
                   " is from another program or a run, and might be read with the " +
                   "model; move it away, or choose another --to");
    std::erase_if(there, [](const std::string& name) { return !is_ours(name); });
    return there;
}

// Replaces the files of an earlier export by the new ones. config.json goes first and comes last: without it, no
// program takes the rest for a model.
static void replace_files(const Options& o, const std::vector<std::string>& replaced) {
    const fs::path to(o.to), from = partial_directory(o);
    std::error_code error;
    fs::remove(to / "config.json", error);
    for (const std::string& name : replaced) fs::remove(to / name, error);
    std::vector<std::string> names = names_in(from.string());
    std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name != "config.json"; });
    for (const std::string& name : names) fs::rename(from / name, to / name);
    fs::remove(from, error);
}

// The file that --format llmc writes: FILE.bin, or model.bin in a directory.
static std::string llmc_file(const Options& o) {
    std::error_code error;
    fs::path file(o.to);
    if (file.extension() != ".bin" || fs::is_directory(file, error)) file /= "model.bin";
    if (resolved_path(o.from) == resolved_path(file.string()))
        refuse("export: --to " + o.to + " would replace the model that --from reads");
    if (fs::exists(file, error) && !o.overwrite)
        refuse("export: " + file.string() + " exists; --overwrite replaces it, or choose another --to");
    if (fs::exists(file, error) && !has_llmc_magic(file.string()))
        refuse("export: " + file.string() +
               " is not a model file of llm.c, so it is not replaced; choose another --to");
    if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
    if (error) refuse("export: cannot write " + file.string() + ": " + error.message());
    return file.string();
}

// Throws if data.prepare says that the tokenizer.json next to a table belongs to another tokenizer.
static void require_one_tokenizer(const TokenDecoder& table) {
    if (table.hash().empty() || !table.encoder().ends_with(".json")) return;
    PromptEncoder encoder(table.encoder());
    if (!failure_of([&] { encoder.start(); }) && encoder.hash() != table.hash())
        refuse_data("{} is not the tokenizer of {} next to it", table.encoder(), table.name());
}

// Writes the files of --tokenizer or else of the model's tokenizer, if there is one. Returns the tokens at the edges of
// documents.
static DocumentTokens write_tokenizer(const Options& o, const WeightSource& source, const TokenizerSearch& search) {
    const HfTokenizerTarget target{partial_directory(o).string(),
                                   source.model.vocab,
                                   source.model.context,
                                   {source.begin_token, source.end_token},
                                   source.end_tokens};
    if (!o.tokenizer.empty()) return write_hf_tokenizer(o.tokenizer, target);
    std::string problem = search.problem;
    try {
        if (search.tokenizer) {
            require_one_tokenizer(*search.tokenizer);
            return write_hf_tokenizer(search.tokenizer->encoder(), target);
        }
    } catch (const Error& error) {
        problem = error.what();
    }
    print_line("note: the export has no tokenizer, because {}; --tokenizer FILE adds one", sanitize(problem));
    return target.tokens;
}

// transformers 5 splits the text of every Qwen 2 model as below, whatever tokenizer.json says.
static void note_qwen2_tokenizer(const fs::path& directory) {
    constexpr const char* kSplit = R"(|\\p{N}| ?[^\\s\\p{L}\\p{N}]+)";
    constexpr InputKind kind = {"tokenizer file", "the tokenizer.json of the export", ExitCode::bad_data};
    const std::string path = (directory / "tokenizer.json").string();
    if (path_exists(path) && read_input(path, kind).find(kSplit) == std::string::npos)
        print_line(
            "note: transformers 5 splits the text of every Qwen 2 model like Qwen's own tokenizer; load this one with "
            "PreTrainedTokenizerFast.from_pretrained({}), or see dev/guide/exports.md",
            shell_quote(directory.string()));
}

ExitCode export_weights(const Options& o) {
    if (o.format == ExportFormat::llmc && o.dtype == StateFormat::fp8)
        refuse("export: --dtype fp8 needs --format hf; llm.c's files have fp32 and bf16");
    if (o.format == ExportFormat::llmc && !o.tokenizer.empty())
        refuse("export: --tokenizer needs --format hf; a model file of llm.c has no tokenizer");
    const std::unique_ptr<WeightSource> source = open_weights(o.from, o.of_average);
    source->verify();
    note_replaced_weights(o.from);
    if (o.dtype == StateFormat::fp8 && source->model.table().hf_transposed)
        refuse(
            "export: --dtype fp8 is not for GPT-2, because transformers would take the FP8 codes for weights: "
            "compressed-tensors decodes Linear layers, and GPT2LMHeadModel has Conv1D layers. Use --dtype bf16");
    ZeroWeights zeros(o.from);
    const FetchTensor fetch = [&](const std::string& name, std::vector<float>& out) {
        show_status("writing " + name);
        out = source->fetch(name);
        zeros.look(name, out);
    };
    std::string written = o.to;
    if (o.format == ExportFormat::llmc) {
        written = llmc_file(o);
        export_llmc(written, source->model, o.dtype, fetch);
    } else {
        const TokenizerSearch search = find_tokenizer("", o.from, *source);
        std::optional<TokenDecoder> given;  // stays empty if it cannot be decoded here; its files are copied then
        if (!o.tokenizer.empty()) failure_of([&] { given = TokenDecoder::open(o.tokenizer); });
        if (given && search.tokenizer)
            given->require_same(*search.tokenizer);
        else if (given)  // it may be the same one in another format
            if (const Failure doubt = failure_of([&] { require_tokenizer_of(*source, *given); }))
                print_line("note: {}", doubt.text);
        const std::vector<std::string> replaced = files_to_replace(o);
        const std::string partial = partial_directory(o).string();
        try {
            fs::create_directory(partial);
            const DocumentTokens tokens = write_tokenizer(o, *source, search);
            export_hf_directory(partial, source->model,
                                {o.dtype, tokens.end, kHfShardBytes, tokens.begin, source->end_tokens}, fetch);
            replace_files(o, replaced);
        } catch (...) {
            remove_partial(o);
            throw;
        }
        if (source->model.architecture == &kQwen2) note_qwen2_tokenizer(o.to);
    }
    zeros.note();
    const std::string place = source->place;
    print_line("{} in {} written to {}{}", counted(source->model.parameters(), "parameter"), word_of(o.dtype), written,
               place == o.from ? "" : ", from " + place);
    return ExitCode::ok;
}

}  // namespace llmc
