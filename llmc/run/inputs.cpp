// Opens the shards, finds their tokenizer, and checks that they fit the model.
#include "llmc/run/inputs.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "llmc/checkpoint/manifest.h"  // checksum
#include "llmc/checkpoint/weight_source.h"
#include "llmc/data/loader.h"
#include "llmc/flags/flags.h"
#include "llmc/log/provenance.h"
#include "llmc/log/run_directory.h"
#include "llmc/model/model_file.h"

namespace llmc {

namespace fs = std::filesystem;

// The files of multiple-choice examples, by name.
static std::vector<ValSet> tasks_of(const Options& o) {
    std::vector<ValSet> files = o.task;
    if (o.hellaswag.empty()) return files;
    for (const ValSet& task : files)
        if (task.name == "hellaswag")
            refuse("--hellaswag is a task of this name already; give --task {} another name", task.glob);
    files.insert(files.begin(), {"hellaswag", o.hellaswag});
    return files;
}

// The tokenizer that --tokenizer names, or else the shards' tokenizer: a tokenizer file in their directory,
// or the byte vocabulary if their sidecar names it. A resumed run also looks in its own directory. A given tokenizer
// that differs from theirs is refused.
static TokenizerSearch tokenizer_of(const ShardSet& shards, const Options& o) {
    const Sidecar& sidecar = shards.sidecar();
    // A .tiktoken file lacks the special tokens, which are at most 256 in the usual tokenizers.
    const int64_t ids = sidecar.vocab.value_or(o.model.vocab);
    const int vocab = static_cast<int>(std::min<int64_t>(ids, std::numeric_limits<int>::max()));
    const int fewest = sidecar.vocab ? vocab - 256 : 0;
    std::vector<std::string> directories{fs::path(shards.path(0)).parent_path().string()};
    if (o.resume != ResumeFrom::nothing && !o.out.empty()) directories.push_back(o.out);
    TokenizerSearch search;
    if (sidecar.tokenizer == "bytes")
        search.tokenizer = TokenDecoder::byte_vocabulary();
    else
        search = find_tokenizer(directories, vocab, fewest);
    if (!o.tokenizer.empty()) {
        TokenDecoder given = TokenDecoder::open(o.tokenizer);
        require_tokens_fit(o.tokenizer, given.vocab(), vocab, fewest);
        if (search.tokenizer)
            given.require_same(*search.tokenizer);
        else
            given.require_made(shards.first());
        search.tokenizer = given;
    } else if (search.tokenizer) {
        search.tokenizer->require_made(shards.first());
    }
    if (search.tokenizer && o.end_token >= 0 && o.end_token < search.tokenizer->vocab())
        search.tokenizer->set_end_token(o.end_token);
    if (search.tokenizer && sidecar.tokenizer_hash) search.tokenizer->set_hash(*sidecar.tokenizer_hash);
    return search;
}

// Refuses weights to start from whose tokenizer differs from the data's, or cannot be used.
static void require_tokenizer_of_weights(const TokenDecoder& tokenizer, const Options& o) {
    const TokenizerSearch theirs = find_tokenizer(weight_directories(o.init_from), o.model.vocab);
    try {
        if (theirs.only_unusable) refuse_data("{}", theirs.problem);
        if (theirs.tokenizer) tokenizer.require_same(*theirs.tokenizer);
    } catch (const Error& error) {
        refuse_data(
            "--init-from {}: {} (or, to train on with other tokens, copy the weights to a directory without a "
            "tokenizer)",
            o.init_from, error.what());
    }
}

// See Inputs::val_bytes.
static TextBytes bytes_of_tokens(const ShardSet& set, const std::optional<TokenDecoder>& tokenizer, int vocab) {
    TextBytes bytes{{}, set.end_token().value_or(-1)};
    if (tokenizer && tokenizer->counts_text()) {
        const std::vector<int> exact = tokenizer->text_bytes();
        bytes.of_token.assign(exact.begin(), exact.end());
        bytes.of_token.resize(static_cast<size_t>(vocab));
        bytes.prefix = tokenizer->prefix_bytes();
    } else if (const std::optional<double> mean = set.bytes_per_token()) {
        bytes.of_token.assign(static_cast<size_t>(vocab), *mean);
    }
    if (bytes.begin >= 0 && bytes.begin < static_cast<int64_t>(bytes.of_token.size()))
        bytes.of_token[static_cast<size_t>(bytes.begin)] = 0;
    return bytes;
}

int end_token_of(const ShardSet* set) {
    const int64_t token = set ? set->end_token().value_or(-1) : -1;
    return token == static_cast<int>(token) ? static_cast<int>(token) : -1;
}

void check_end_token(const ShardSet& set, const Options& o) {
    const std::string& path = set.path(0);
    const auto refuse = [&](const std::string& what) {
        refuse_data("--doc-mask: " + what + "; " + path + ".json can say {\"end_token\": ID}");
    };
    const std::optional<int64_t> token = set.end_token();
    if (!token) refuse("which token begins the documents of " + path + " is not known");
    const auto id = static_cast<long long>(*token);
    if (id < 0 || id >= o.model.vocab)
        refuse(fmt::format("the documents of {} should begin with token {}{}, which a vocabulary of {} does not have",
                           path, id, set.sidecar().end_token ? "" : ", as llm.c's do", o.model.vocab));
    if (id != o.end_token)
        refuse(fmt::format("the documents of {} begin with token {}, those of the first set with {}", path, id,
                           o.end_token));
}

Inputs::Inputs(const Options& options) : sources(sources_from_text(options.train)) {
    if (!options.train.empty()) train = std::make_unique<ShardSet>(sources.patterns);
    for (const ValSet& set : options.val)
        val.emplace_back(set.name, std::make_unique<ShardSet>(std::vector<std::string>{set.glob}));
    for (const ValSet& task : tasks_of(options)) {
        tasks.emplace_back(task.name, read_choices(task.glob));
        task_files.push_back({task.glob, read_sidecar(task.glob)});
    }
}

void Inputs::check(const Options& o) {
    const auto check_set = [&](const ShardSet& set) {
        set.check_checksums();
        set.check_vocabulary(o.model.vocab);
        if (o.doc_mask) check_end_token(set, o);
    };
    if (train) check_set(*train);
    if (train && o.doc_mask)
        if (const std::string path = train->without_token(o.end_token); !path.empty())
            refuse_data(
                fmt::format("--doc-mask: no document of {0} begins with token {1}, as its tokenizer's documents do; if "
                            "another token begins them, {0}.json can say {{\"end_token\": ID}}",
                            path, o.end_token));
    std::vector<const TokenFile*> token_files;
    if (train) train->add_to(token_files);
    for (const auto& [name, set] : val) set->add_to(token_files);
    for (const TokenFile& file : task_files) token_files.push_back(&file);
    require_one_tokenizer(token_files);
    if (train) tokenizer = tokenizer_of(*train, o);
    set_order(o);
    require_enough(o);
    for (const auto& [name, set] : val) {
        check_set(*set);
        TokenizerSearch search = tokenizer_of(*set, o);
        if (tokenizer.tokenizer) {  // eval: that of the weights
            if (search.tokenizer) tokenizer.tokenizer->require_same(*search.tokenizer);
            search = tokenizer;
        }
        val_bytes.push_back(bytes_of_tokens(*set, search.tokenizer, o.model.vocab));
    }
    for (size_t i = 0; i < tasks.size(); i++) check_choices(tasks[i].second, o.model.vocab, o.seq, task_files[i].path);
    if (tokenizer.tokenizer && o.tokenizer.empty())
        for (const TokenFile* file : token_files) tokenizer.tokenizer->require_made(*file);
    if (tokenizer.tokenizer && !o.init_from.empty()) require_tokenizer_of_weights(*tokenizer.tokenizer, o);
}

void Inputs::set_order(const Options& o) {
    if (!train) return;
    train->samples(o.seq);  // refuses sequences that fit into no shard
    const std::vector<int64_t> samples = train->samples_by_pattern(o.seq);
    for (size_t i = 0; i < samples.size(); i++)
        if (samples[i] == 0)
            refuse_data("no sequence of T={} tokens fits into '{}'; use a smaller -t or more data", o.seq,
                        sources.patterns[i]);
    std::vector<SampleOrder::Stage> stages;
    int64_t steps = -1;
    for (const TrainSources::Stage& stage : sources.stages) {
        const int64_t before = std::exchange(steps, stage.steps_before(o.schedule.steps));
        if (steps <= before)
            refuse(
                "--train {}: a stage starts after step {}, and the one before it after step {}: stages must begin "
                "one after the other",
                o.train, steps, before);
        if (steps > 0 && steps >= o.schedule.steps)
            refuse("--train {}: a stage starts after step {}, but the run ends after step {} (-x)", o.train, steps,
                   o.schedule.steps);
        stages.push_back({o.batches.tokens_until(steps) / o.seq, stage.weights});
    }
    order.emplace(samples, stages, o.seed);
}

std::vector<SourceUse> Inputs::sources_after(const Options& o, int64_t steps) const {
    std::vector<SourceUse> uses;
    if (!sources.is_mixture()) return uses;
    const std::vector<int64_t> samples = order->used_before(o.batches.tokens_until(steps) / o.seq);
    for (size_t i = 0; i < samples.size(); i++)
        uses.push_back({sources.patterns[i], samples[i] * o.seq, order->samples()[i] * o.seq});
    return uses;
}

std::string Inputs::describe_sources(const Options& o) const {
    std::string text;
    const std::vector<SourceUse> uses = sources_after(o, o.schedule.steps);
    for (size_t i = 0; i < uses.size(); i++) {
        text += fmt::format("source {}: {}, {:.2f} passes over {};", uses[i].pattern, counted(uses[i].tokens, "token"),
                            uses[i].passes(), counted(uses[i].tokens_per_pass, "token"));
        for (const TrainSources::Stage& stage : sources.stages) {
            const int64_t steps = stage.steps_before(o.schedule.steps);
            const int64_t all = std::accumulate(stage.weights.begin(), stage.weights.end(), int64_t{0});
            text += fmt::format("{} {:.4g} %", steps == 0 ? "" : fmt::format(", after step {}", steps),
                                100 * static_cast<double>(stage.weights[i]) / static_cast<double>(all));
        }
        text += "\n";
    }
    return text;
}

void Inputs::require_enough(const Options& o, int64_t steps_ahead) const {
    std::string missing;
    int64_t passes = 0;
    for (const SourceUse& use : sources_after(o, o.schedule.steps + steps_ahead)) {
        if (use.tokens <= std::max<int64_t>(o.epochs, 1) * use.tokens_per_pass) continue;
        passes = std::max(passes, div_up(use.tokens, use.tokens_per_pass));
        missing += fmt::format("; '{}' would give {} tokens and has {}", use.pattern, with_commas(use.tokens),
                               with_commas(use.tokens_per_pass));
    }
    if (!missing.empty())
        refuse(
            "--train: {} steps need more data than its sources have{}; use a smaller -x or other weights, or allow "
            "{} passes over a source with --epochs {}",
            with_commas(o.schedule.steps + steps_ahead), missing, passes, passes);
}

void Inputs::describe(ResolveInputs& surroundings) const {
    if (train) {
        const int64_t vocab = train->sidecar().vocab.value_or(0);
        surroundings.data_vocab = static_cast<int>(std::min<int64_t>(vocab, std::numeric_limits<int>::max()));
        surroundings.train_tokens = train->total_tokens();
        surroundings.train_samples = [this](int T) {
            const std::vector<int64_t> samples = train->samples_by_pattern(T);
            return std::accumulate(samples.begin(), samples.end(), int64_t{0});
        };
        surroundings.copied = train->copied_file();
    }
    const ShardSet* const first = train ? train.get() : val.empty() ? nullptr : val.front().second.get();
    surroundings.end_token = end_token_of(first);
    for (const auto& [name, set] : val) {
        surroundings.val_tokens.push_back(set->total_tokens());
        if (train && surroundings.trained_on.empty()) surroundings.trained_on = train->shared_file(*set);
    }
    for (const auto& [name, examples] : tasks) {
        surroundings.task_rows.push_back(0);
        for (const Choices& example : examples)
            surroundings.task_rows.back() += static_cast<int64_t>(example.completions.size());
    }
}

InputFingerprints Inputs::fingerprints(const Options& o) const {
    InputFingerprints all;
    const auto add_text = [&](const std::string& name, const std::string& content) {
        all.emplace_back(name, checksum(content.data(), content.size()));
    };
    const auto add_set = [&](const std::string& name, const ShardSet& set, const std::vector<std::string>& patterns) {
        for (size_t i = 0; i < patterns.size(); i++)
            all.emplace_back(fmt::format("{} '{}'", name, patterns[i]), set.fingerprints_by_pattern()[i]);
        all.emplace_back(fmt::format("set of sidecars of {} '{}'", name, joined(patterns)), set.sidecars_fingerprint());
    };
    if (train && !sources.patterns.empty()) add_set("training set", *train, sources.patterns);
    for (size_t i = 0; i < val.size(); i++) add_set("validation set", *val[i].second, {o.val[i].glob});
    for (const TokenFile& task : task_files)
        add_text("task file " + task.path, read_input(task.path, {"task file", "", ExitCode::bad_data}));
    if (tokenizer.tokenizer) add_text("tokenizer", tokenizer.tokenizer->as_table());
    if (!o.model_name.empty() && !is_model_name(o.model_name))
        add_text("model file " + o.model_name, json_text(model_json(find_model(o.model_name))));
    return all;
}

Json Inputs::facts(const Options& o) const {
    // The mark in front tells it from that of earlier versions.
    Json facts = {{"fingerprint", "blocks:" + fingerprint_text(order->fingerprint(train->fingerprint()))},
                  {"tokens", train->total_tokens()},
                  {"end_token", o.end_token}};
    if (train->sidecar().tokenizer_hash) facts["tokenizer_hash"] = *train->sidecar().tokenizer_hash;
    if (!val.empty() && o.val_batches != 0) {
        const ShardSet& set = *val[0].second;
        const int64_t all = set.samples(o.seq), most = o.total_batch / o.micro_steps / o.seq * o.val_batches;
        facts["validation"] = fmt::format("{} of {} tokens in sequences of {}", fingerprint_text(set.fingerprint()),
                                          (o.val_batches < 0 ? all : std::min(all, most)) * o.seq, o.seq);
    }
    return facts;
}

std::string Inputs::earlier_fingerprint() const {
    return fingerprint_text(order->fingerprint(train->fingerprint_of_ends()));
}

static bool is_in(const std::string& directory, const fs::path& file) {
    std::error_code ignored;
    return fs::equivalent(fs::absolute(file).parent_path(), directory, ignored);
}

void Inputs::keep_tokenizer(RunDirectory& directory) const {
    if (!directory.active() || !train) return;
    const std::optional<TokenDecoder>& decoder = tokenizer.tokenizer;
    // Next to the shards or where the run has found it, a file is not a run's copy.
    const fs::path from = decoder && decoder->name() != "bytes" ? fs::path(decoder->name()) : fs::path(train->path(0));
    if (is_in(directory.path(), from)) return;
    std::map<std::string, std::string> copies;
    if (decoder) {
        copies["tokenizer.bin"] = decoder->as_table();
        constexpr InputKind kind = {"tokenizer file", "the tokenizer.json of the shards", ExitCode::bad_data};
        const std::string& encoder = decoder->encoder();
        if (encoder.ends_with(".json")) copies["tokenizer.json"] = read_input(encoder, kind);
    }
    directory.keep_tokenizer(std::move(copies));
}

bool Inputs::is_input(const std::string& path) const {
    const fs::path file(path);
    if (!train || !file.filename().string().starts_with("tokenizer.")) return false;
    const std::string directory = file.parent_path().string();
    return is_in(directory, train->path(0)) || (tokenizer.tokenizer && is_in(directory, tokenizer.tokenizer->name()));
}

double read_patience(const Options& o) {
    return o.timeout_step > 0 ? std::min(kReadPatience, o.timeout_step / 3) : kReadPatience;
}

void only_bench(Options& o) {
    if (o.stop_after == 0) o.stop_after = kBenchSteps;
    if (o.stop_after <= kBenchWarmup)
        refuse("--bench leaves out {} steps of warm-up: use a --stop-after above that, or none", kBenchWarmup);
    if (o.train.empty() && o.schedule.steps < 0 && o.depth == 0) o.schedule.steps = o.schedule.warmup + o.stop_after;
    o.val.clear();
    o.task.clear();
    o.sample_every = o.checkpoint_every = o.early_stop = 0;
    o.checkpoint_minutes = 0;
    o.rewind = o.skip_data = 0;
    if (o.train.empty()) o.epochs = 0;
    o.new_data = false;
    find_flag("plateau")->set(o, "off");
    o.resume = ResumeFrom::nothing;
    o.texts.erase("resume");
    for (std::string Options::*path : {&Options::out, &Options::hellaswag, &Options::checkpoint_local})
        (o.*path).clear();
}

ShardSet bench_tokens(const Options& o) {
    constexpr int64_t kMost = 1 << 24;  // a longer run reads them several times
    const int64_t needed = o.batches.tokens_until(o.last_step());
    return ShardSet::random(o.model.vocab, std::max<int64_t>(std::min(needed, kMost), o.seq) + 1, o.seed);
}

}  // namespace llmc
