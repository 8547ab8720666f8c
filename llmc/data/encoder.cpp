// Starts data.prepare, and asks it for the tokens of prompts and for what else it knows of a tokenizer.
#include "llmc/data/encoder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/clock.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/data/tokenizer.h"  // is_utf8

namespace llmc {

namespace fs = std::filesystem;

constexpr const char* kInstall =
    "; data.prepare, which reads tokenizers, needs Python 3 and packages: pip install numpy tiktoken tokenizers tqdm "
    "zstandard, or scripts/setup.sh in a checkout";
constexpr const char* kIds = "ids:";  // a prompt that begins so consists of ids

// The directory whose data/prepare is the package; "" if there is none.
static std::string root() { return fs::path(find_packaged("data/prepare")).parent_path().parent_path().string(); }

// Runs data.prepare with each Python that may have its libraries, best first. Empty without the package.
static std::vector<PromptEncoder::Command> prepare_commands() {
    std::vector<PromptEncoder::Command> commands;
    if (root().empty()) return commands;
    const std::string own = root() + "/.venv/bin/python";
    for (const std::string& python : {own, std::string("python3")})
        if (python != own || ::access(own.c_str(), X_OK) == 0) commands.push_back({python, "-m", "data.prepare"});
    return commands;
}

// data.prepare runs in its own directory, so it needs the absolute path of a file.
static PromptEncoder::Command with(PromptEncoder::Command command, const std::string& name,
                                   const std::string& tokenizer) {
    const std::string path = tokenizer == "bytes" ? tokenizer : fs::absolute(tokenizer).string();
    command.insert(command.end(), {name, "--tokenizer", path});
    return command;
}

// Token ids separated by commas or spaces.
static std::vector<int> numbers_in(const std::string& text, const char* otherwise) {
    std::vector<int> ids;
    std::string separated = text;
    std::replace(separated.begin(), separated.end(), ',', ' ');
    for (const std::string& word : words_in(separated)) {
        const int id = number_in<int>(word).value_or(-1);
        if (id < 0) refuse(otherwise);
        ids.push_back(id);
    }
    return ids;
}

// Why a child has given no complete answer.
static std::string reason(Child& child, double deadline, double patience) {
    const std::optional<std::string> end = child.wait(std::max(deadline - monotonic_seconds(), 0.0));
    if (end) return end->empty() ? "ended without an answer" : *end;
    child.kill();
    return fmt::format("did not answer within {} seconds and was killed", patience);
}

PromptEncoder::PromptEncoder(const std::string& tokenizer, const std::vector<Command>& commands, double patience)
    : tokenizer_(tokenizer), commands_(commands.empty() ? prepare_commands() : commands), patience_(patience) {}

// Sends a line and returns the answer, which is another line.
std::string PromptEncoder::ask(const std::string& line) {
    std::string answer;
    const double deadline = monotonic_seconds() + patience_;
    if (process_->write(line + "\n", deadline) && process_->read_line(answer, deadline)) return answer;
    const std::string problem = reason(*process_, deadline, patience_);
    process_.reset();  // the next prompt gets another process
    refuse_data("--prompt: data.prepare encode {}", problem);
}

// Returns the problem, or "" if the command now waits for prompts.
std::string PromptEncoder::start_with(const Command& command) {
    auto child = std::make_unique<Child>(with(command, "encode", tokenizer_), Child::Pipes::both, root());
    if (child->start_error() != 0) return command[0] + " " + child->result().value() + kInstall;
    std::string line;
    const double deadline = monotonic_seconds() + patience_;
    if (!child->read_line(line, deadline))
        return command[0] + " -m data.prepare encode " + reason(*child, deadline, patience_) + kInstall;
    const Json first = parse_json_or_null(line);
    if (!first.is_object()) return "data.prepare encode begins with '" + line + "'";
    if (first.contains("error")) return first["error"].is_string() ? first["error"].get<std::string>() : line;
    if (first.contains("hash") && first["hash"].is_string()) hash_ = first["hash"].get<std::string>();
    command_ = command;
    process_ = std::move(child);
    return "";
}

void PromptEncoder::start() {
    std::string problem;
    for (const Command& command : commands_) {
        if (process_) return;
        const std::string reason = start_with(command);
        if (problem.empty()) problem = reason;
    }
    if (process_) return;
    if (commands_.empty()) problem = std::string("there is no data/prepare next to the program") + kInstall;
    refuse_data(problem);
}

std::vector<int> PromptEncoder::encode(const std::string& prompt) {
    if (prompt.starts_with(kIds))
        return numbers_in(prompt.substr(std::string(kIds).size()),
                          "--prompt: ids: begins a prompt of token ids, like ids:464,3290");
    if (tokenizer_.empty())
        return numbers_in(prompt,
                          "--prompt needs a tokenizer, and none was found; give --tokenizer FILE, or a prompt of token "
                          "ids like ids:464,3290");
    if (tokenizer_ == "bytes") {
        const auto* bytes = reinterpret_cast<const unsigned char*>(prompt.data());
        return {bytes, bytes + prompt.size()};
    }
    if (!is_utf8(prompt)) refuse("--prompt is not valid UTF-8");
    try {
        start();
    } catch (const Error& error) {
        throw Error(error.code(), "--prompt: {}; or give token ids: --prompt ids:464,3290", error.what());
    }
    const std::string line = ask(json_text(prompt));
    const Json answer = parse_json_or_null(line);
    std::vector<int> ids;
    if (answer.is_array())
        for (const Json& id : answer)
            if (id.is_number_unsigned() && id <= INT32_MAX) ids.push_back(id.get<int>());
    if (!answer.is_array() || ids.size() != answer.size())
        refuse_data("--prompt: data.prepare encode answers {}", line);
    return ids;
}

std::string ask_prepare(const std::string& command, const std::string& tokenizer) {
    PromptEncoder encoder(tokenizer);
    try {
        encoder.start();  // its errors are better, and it finds a Python
        Child child(with(encoder.command(), command, tokenizer), Child::Pipes::both, root());
        std::string output;
        const double deadline = monotonic_seconds() + PromptEncoder::kPatience;
        if (child.read_all(output, deadline) && child.wait(deadline - monotonic_seconds()) == "") return output;
        refuse_data("data.prepare {} {}", command, reason(child, deadline, PromptEncoder::kPatience));
    } catch (const Error& error) {
        refuse_data("the tokenizer {}: {}", tokenizer, error.what());
    }
}

}  // namespace llmc
