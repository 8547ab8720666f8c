// Tokens of prompts. Text becomes tokens only in the Python package data.prepare, with the libraries that people make
// tokenizers with, so prompts have the tokens that the same text has in shards.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/child.h"

namespace llmc {

// Asks `data.prepare encode`, a child process that answers prompts until it is no longer needed.
class PromptEncoder {
public:
    using Command = std::vector<std::string>;

    // `tokenizer` is TokenDecoder::encoder(). No process starts before the first prompt that needs one. The first of
    // the commands that can open the tokenizer is used; by default they run data.prepare with the Python of .venv or
    // with python3. An answer may take `patience` seconds.
    explicit PromptEncoder(const std::string& tokenizer, const std::vector<Command>& commands = {},
                           double patience = kPatience);

    // The tokens of a prompt: its bytes for "bytes", those of data.prepare for other tokenizers. "ids:464,3290" is a
    // prompt of ids, and so is "464 3290" without a tokenizer. Throws Error(bad_flags or bad_data).
    std::vector<int> encode(const std::string& prompt);

    // Starts the process if it is not running. Throws Error(bad_data) with the reason if no command can do it.
    void start();
    // Facts about the tokenizer, once the process has started.
    const std::string& hash() const { return hash_; }    // "tokenizer_hash" of the shards' sidecars
    const Command& command() const { return command_; }  // without the arguments of `encode`

    // Python may be on a slow disk, and large vocabularies take seconds.
    static constexpr double kPatience = 60;

private:
    std::string ask(const std::string& line);
    std::string start_with(const Command& command);

    const std::string tokenizer_;
    const std::vector<Command> commands_;
    const double patience_;
    std::unique_ptr<Child> process_;
    Command command_;
    std::string hash_;
};

// The output of `data.prepare COMMAND --tokenizer TOKENIZER`, for the commands table and json. Throws Error(bad_data).
std::string ask_prepare(const std::string& command, const std::string& tokenizer);

}  // namespace llmc
