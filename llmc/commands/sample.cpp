// The sample command: its arguments, and generation of text token by token.
#include "llmc/base/clock.h"
#include "llmc/commands/model_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "llmc/base/text.h"
#include "llmc/data/tokenizer.h"
#include "llmc/flags/flags.h"
#include "llmc/model/sampler.h"

namespace llmc {
namespace {

struct Request {
    std::string from;
    bool average = false, has_prompt = false, no_cache = false;
    int tokens = 256, num_samples = 1;
    Options options;
};

// Returns false if help was asked for, and printed.
bool parse(const std::vector<std::string>& arguments, Request& request) {
    CLI::App app(
        "Generates text with a model. Without --prompt, it asks for prompts on the terminal (Ctrl-D ends it); if "
        "standard input is not a terminal, the text begins a new document. The tokenizer is found with the weights or "
        "the training data; without one, prompts and text are token ids.",
        "train_gpt sample");
    app.add_option("--from,--checkpoint", request.from, kWeightsHelp)->required()->type_name("PATH");
    app.add_flag("--average", request.average, kAverageHelp);
    app.add_option("-g,--tokens", request.tokens,
                   "largest number of tokens per sample; a sample ends earlier at an end-of-text token")
        ->type_name("N")
        ->check(whole_number_from(1))
        ->capture_default_str();
    app.add_option("--num-samples", request.num_samples, "samples per prompt, each with the next seed")
        ->type_name("N")
        ->check(whole_number_from(1))
        ->capture_default_str();
    app.add_flag("--no-cache", request.no_cache,
                 "recompute the keys and values of all tokens for each new one: the same text, slower");
    Options& o = request.options;
    o.precision = Precision::bf16;
    add_flags(app,
              {"prompt", "tokenizer", "temperature", "top-k", "top-p", "seed", "precision", "tf32", "fp8-recipe",
               "fp8-layers", "fp8-emulation"},
              o);
    if (!parse_arguments(app, arguments)) return false;
    request.has_prompt = app.count("--prompt") > 0;
    return true;
}

// Longer contexts are limited to this many tokens, because memory for them is allocated at the start.
constexpr int kMostRows = 8192;

// Chooses one sequence, as long as the model and FP8 products allow.
void choose_shape(const ModelConfig& model, Options& o) {
    const int multiple = o.precision == Precision::bf16 || o.precision == Precision::fp32 ? 1
                         : model.context >= 128                                           ? 128
                                                                                          : 16;
    o.batch = 1;
    o.seq = std::max(std::min(model.context, kMostRows) / multiple * multiple, 1);
    o.recompute = Recompute::norm;  // keys and values stay, most of the rest does not
}

// Writes text to the terminal as its bytes come, whole characters at a time.
class TextStream {
public:
    void write(const std::string& bytes) {
        rest_ += bytes;
        const size_t whole = complete_utf8(rest_);
        put(rest_.substr(0, whole));
        rest_.erase(0, whole);
    }
    void finish() { put(rest_ + "\n"); }

private:
    static void put(const std::string& text) {
        std::fputs(sanitize(text).c_str(), stdout);
        std::fflush(stdout);
    }
    std::string rest_;
};

template <class Real>
class Writer {
public:
    Writer(const Request& request, const TokenDecoder& decoder, Trainer<Real>& trainer)
        : request_(request), decoder_(decoder), trainer_(trainer) {}

    // Every sample of a prompt; "": the beginning of a document.
    void write(const std::string& prompt, bool echo) {
        const std::vector<int> tokens =
            prompt.empty() ? std::vector<int>{std::max(decoder_.end_token(), 0)} : decoder_.encode(prompt);
        for (const int token : tokens)
            if (token >= trainer_.config().model.vocab)
                throw Error(ExitCode::bad_data,
                            "the prompt has token id {}, which is outside the model's vocabulary of {}", token,
                            trainer_.config().model.vocab);
        for (int i = 0; i < request_.num_samples; i++) {
            if (i > 0) std::puts("---");
            write_one(tokens, echo ? prompt : "");
        }
    }

private:
    void write_one(std::vector<int> tokens, const std::string& echo) {
        const Options& o = request_.options;
        const SamplerSettings settings{o.temperature, o.top_k, o.top_p, o.seed + samples_++};
        const size_t prompt_tokens = tokens.size();
        TextStream text;
        text.write(echo);
        const double begin = monotonic_seconds();
        double first = 0;
        int made = 0;
        while (made < request_.tokens) {
            if (request_.no_cache) trainer_.model().forget_rows();
            const int token =
                generate_token(trainer_.model(), tokens, settings, static_cast<uint64_t>(made), trainer_.stream());
            if (made++ == 0) first = monotonic_seconds();
            if (token == decoder_.end_token()) break;
            tokens.push_back(token);
            text.write(decoder_.decode({token}));
        }
        text.finish();
        const double start = first - begin, rest = monotonic_seconds() - first;
        std::fprintf(stderr, "%zu tokens of prompt and the first new token in %.3f s", prompt_tokens, start);
        if (made > 1) std::fprintf(stderr, ", then %d at %.1f tokens/s", made - 1, (made - 1) / rest);
        std::fprintf(stderr, request_.no_cache ? " without cache\n" : "\n");
    }

    const Request& request_;
    const TokenDecoder& decoder_;
    Trainer<Real>& trainer_;
    uint64_t samples_ = 0;
};

template <class Real>
void sample(const Request& request, const TokenDecoder& decoder, const Ranks& ranks, const WeightSource& weights) {
    const auto trainer = load_model<Real>(request.options, ranks, weights);
    Writer<Real> writer(request, decoder, *trainer);
    if (request.has_prompt || !isatty(STDIN_FILENO)) return writer.write(request.options.prompt, true);
    std::string prompt;
    while (std::printf("> "), std::fflush(stdout), std::getline(std::cin, prompt)) writer.write(prompt, false);
    std::puts("");
}

}  // namespace

ExitCode sample_text(const std::vector<std::string>& arguments) {
    Request request;
    if (!parse(arguments, request)) return ExitCode::ok;
    if (const int world = launch_environment().world; world > 1)
        refuse("sample: runs in one process, not in {}; start it without mpirun or srun", world);
    Options& o = request.options;
    const std::unique_ptr<WeightSource> weights = open_weights(request.from, request.average);
    const TokenizerSearch search = find_tokenizer(o.tokenizer, request.from, *weights);
    TokenDecoder decoder = search.tokenizer.value_or(TokenDecoder::token_ids());
    if (!search.tokenizer) {
        decoder.set_end_token(weights->end_token());
        print_error("note: text is token ids, because {}; --tokenizer FILE gives text", search.problem);
    }
    choose_shape(weights->model(), o);
    Ranks ranks(o, {});
    ranks.connect(o, {});
    ranks.watchdog.stop();  // a person may take time to think
    resolve_for(weights->model(), o, {}, ranks);
    if (o.precision == Precision::fp32)
        sample<float>(request, decoder, ranks, *weights);
    else
        sample<bf16>(request, decoder, ranks, *weights);
    ranks.finish();
    return ExitCode::ok;
}

}  // namespace llmc
