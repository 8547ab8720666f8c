// The model that eval, sample and export load, and its tokenizer.
#include "llmc/commands/model_command.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/checkpoint/weight_source.h"
#include "llmc/comm/agreement.h"  // failure_of
#include "llmc/data/shards.h"
#include "llmc/flags/flags.h"
#include "llmc/log/run_directory.h"
#include "llmc/log/run_files.h"
#include "llmc/plan/plan.h"
#include "llmc/run/ranks.h"
#include "llmc/train/state.h"
#include "llmc/train/trainer.h"

namespace llmc {

namespace fs = std::filesystem;

Json run_config(const std::string& from) {
    const Json run = read_run_json(weight_directories(from).back());
    if (run.is_object() && run.contains("config") && run["config"].is_object()) return run["config"];
    const std::string checkpoint = newest_checkpoint(from);
    return checkpoint.empty() ? Json::object() : *CheckpointReader(checkpoint).manifest().config;
}

void take_flags(const Json& config, const std::vector<std::string>& names, Options& o) {
    for (const std::string& name : names) {
        const Flag* flag = find_flag(name);
        const auto value = config.find(name);
        if (!flag || o.given.contains(name) || value == config.end() || value->is_null()) continue;
        flag->set(o, value->is_string() ? value->get<std::string>() : json_text(*value));
    }
}

void require_tokenizer_of(const WeightSource& weights, const TokenDecoder& tokenizer) {
    TokenFile trained{weights.place, {}};
    trained.sidecar.tokenizer_hash = weights.tokenizer_hash;
    tokenizer.require_made(trained);
    const fs::path file(tokenizer.name());
    if (was_replaced(file.parent_path().string(), file.filename().string()))
        refuse_data("{} was replaced after the run wrote it", tokenizer.name());
}

TokenizerSearch find_tokenizer(const std::string& given, const std::string& from, const WeightSource& weights) {
    const int vocab = weights.model.vocab;
    std::vector<std::string> directories = weight_directories(from);
    const Json config = run_config(from), train = config.value("train", Json());
    if (train.is_string()) directories.push_back(fs::path(train.get<std::string>()).parent_path().string());
    TokenizerSearch search = find_tokenizer(directories, vocab);
    if (search.tokenizer)
        if (const Failure foreign = failure_of([&] { require_tokenizer_of(weights, *search.tokenizer); }))
            search = {{}, foreign.text, true};
    if (!given.empty()) {
        TokenDecoder decoder = TokenDecoder::open(given);
        require_tokens_fit(given, decoder.vocab(), vocab);
        if (search.tokenizer) {
            decoder.require_same(*search.tokenizer);
            if (!search.tokenizer->hash().empty()) decoder.set_hash(search.tokenizer->hash());
        } else {
            require_tokenizer_of(weights, decoder);
        }
        search = {decoder, ""};
    }
    if (search.tokenizer && weights.tokenizer_hash) search.tokenizer->set_hash(*weights.tokenizer_hash);
    if (search.tokenizer && weights.end_token >= 0) search.tokenizer->set_end_token(weights.end_token);
    return search;
}

void note_replaced_weights(const std::string& from) {
    const std::string directory = weight_directories(from).front();
    for (const char* name : {"model.safetensors", "config.json"})
        if (path_exists(directory + "/" + name) && was_replaced(directory, name))
            print_error("note: {}/{} was replaced after the run wrote it", directory, name);
}

void resolve_for(const ModelConfig& model, Options& o, ResolveInputs surroundings, const Ranks& ranks) {
    o.model.vocab = model.vocab;  // not the data's
    surroundings.model = &model;
    ranks.describe(surroundings);
    resolve(o, surroundings);
}

template <class Real>
std::vector<std::unique_ptr<Trainer<Real>>> load_models(const std::vector<Options>& options, Ranks& ranks,
                                                        const WeightSource& weights) {
    std::vector<std::unique_ptr<Trainer<Real>>> trainers;
    MemoryByKind needed;
    if (ranks.comm.is_main()) note_replaced_weights(options.front().from);
    for (const Options& o : options) {
        TrainerConfig config = o;
        config.forward_only = true;
        trainers.push_back(std::make_unique<Trainer<Real>>(config, ranks.comm));
        needed += trainers.back()->memory();
    }
    check_memory(needed, ranks.libraries_to_come(options.front()), ranks.device.free_memory, ranks.device.name,
                 !ranks.device.is_host);
    const auto alive = [&] { ranks.watchdog.alive(); };
    verify_weights(weights, ranks.comm, alive);
    for (const auto& trainer : trainers) {
        trainer->allocate();
        load_weights(*trainer, weights, options.front().from, alive);
    }
    return trainers;
}

template std::vector<std::unique_ptr<Trainer<float>>> load_models(const std::vector<Options>&, Ranks&,
                                                                  const WeightSource&);
template std::vector<std::unique_ptr<Trainer<bf16>>> load_models(const std::vector<Options>&, Ranks&,
                                                                 const WeightSource&);

}  // namespace llmc
