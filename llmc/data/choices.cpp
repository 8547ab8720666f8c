// Reads and checks evaluation files of multiple-choice examples (choices.h).
// build: fuzzed
#include "llmc/data/choices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "llmc/data/shards.h"

namespace llmc {
namespace {

constexpr int32_t kChoicesMagic = 20240522, kVersion = 1, kWideVersion = 2;
constexpr size_t kChoicesHeaderBytes = 1024;
constexpr uint32_t kStart = 65535;
constexpr InputKind kChoicesFile = {
    "file of multiple-choice examples",
    "what `python3 -m data.prepare hellaswag`, `task` or llm.c's dev/data/hellaswag.py writes", ExitCode::bad_data,
    1024};

// The words of one file, read in order. If they end too early, the error names the example.
class Words {
public:
    Words(const std::string& path, const std::string& bytes, bool wide) : path_(path), wide_(wide) {
        words_.resize((bytes.size() - kChoicesHeaderBytes) / word_bytes());
        for (size_t i = 0; i < words_.size(); i++)
            std::memcpy(&words_[i], bytes.data() + kChoicesHeaderBytes + i * word_bytes(), word_bytes());
    }
    bool wide() const { return wide_; }
    size_t word_bytes() const { return wide_ ? 4 : 2; }
    size_t at() const { return at_; }
    size_t left() const { return words_.size() - at_; }
    void begin(int example) { example_ = example; }
    uint32_t next() { return words_[take(1)]; }
    std::vector<int32_t> tokens() {
        const size_t count = next();
        const uint32_t* const first = words_.data() + take(count);
        return {first, first + count};
    }
    template <class... Args>
    [[noreturn]] void fail(fmt::format_string<Args...> what, Args&&... args) const {
        refuse_data("{}: example {}: {}", path_, example_, fmt::format(what, std::forward<Args>(args)...));
    }

private:
    // Goes past `count` words and returns the index of the first.
    size_t take(size_t count) {
        if (count > left()) fail("the file ends inside it; write or copy the file again");
        return std::exchange(at_, at_ + count);
    }

    const std::string& path_;
    const bool wide_;  // version 2
    std::vector<uint32_t> words_;
    size_t at_ = 0;
    int example_ = 0;
};

Choices read_example(Words& words) {
    const size_t begin = words.at();
    if (const uint32_t start = words.next(); start != kStart) words.fail("begins with {} instead of {}", start, kStart);
    const uint32_t bytes = words.next();
    words.next();  // skips the index
    const uint32_t label = words.next(), completions = words.next();
    if (completions < 2) words.fail("has {} completions; there is nothing to choose", completions);
    if (label >= completions) words.fail("its label is {}, but it has {} completions", label, completions);
    Choices example{static_cast<int>(label), words.tokens(), {}};
    for (uint32_t i = 0; i < completions; i++) {
        uint32_t scored = 0, length = 0;
        if (words.wide()) scored = words.next();
        if (words.wide()) length = words.next();
        std::vector<int32_t> tokens = words.tokens();
        const size_t all = tokens.size();
        if (!words.wide()) scored = length = static_cast<uint32_t>(all);
        if (scored == 0 || scored > all || example.context.size() + all == scored)
            words.fail(
                "completion {} scores {} of its {} tokens after a context of {}; it must score at "
                "least 1, and have a token before them",
                i, scored, all, example.context.size());
        if (length == 0) words.fail("completion {} has the length 0", i);
        example.completions.push_back({std::move(tokens), scored, static_cast<double>(length)});
    }
    const size_t read = words.word_bytes() * (words.at() - begin);
    if (read != bytes) words.fail("says {} bytes, but has {}", bytes, read);
    return example;
}

}  // namespace

std::vector<Choices> read_choices(const std::string& path) {
    const std::string bytes = read_input(path, kChoicesFile);
    int32_t head[4] = {};
    std::memcpy(head, bytes.data(), std::min(bytes.size(), sizeof head));
    if (bytes.size() < kChoicesHeaderBytes || head[0] != kChoicesMagic)
        refuse_data("{} is not a file of multiple-choice examples: it begins with {}{}, not with {}", path, head[0],
                    name_of_magic(head[0]), kChoicesMagic);
    if (head[1] != kVersion && head[1] != kWideVersion)
        refuse_data("{} has version {}; versions {} and {} can be read", path, head[1], kVersion, kWideVersion);
    Words words(path, bytes, head[1] == kWideVersion);
    std::vector<Choices> examples;
    for (int i = 0; i < head[2]; i++) {
        words.begin(i);
        examples.push_back(read_example(words));
    }
    if (examples.empty()) refuse_data(path + " has no examples");
    if (words.left() > 0 || bytes.size() % words.word_bytes() != 0)
        refuse_data("{} has bytes after its last example, number {}: its header and its length do not agree", path,
                    head[2] - 1);
    return examples;
}

void check_choices(const std::vector<Choices>& examples, int vocab, int T, const std::string& path) {
    for (size_t i = 0; i < examples.size(); i++) {
        const Choices& example = examples[i];
        uint32_t largest = 0;
        size_t longest = 0;
        for (const int32_t token : example.context) largest = std::max(largest, static_cast<uint32_t>(token));
        for (const Choices::Completion& completion : example.completions) {
            for (const int32_t token : completion.tokens) largest = std::max(largest, static_cast<uint32_t>(token));
            longest = std::max(longest, completion.tokens.size());
        }
        if (largest >= static_cast<uint32_t>(vocab))
            refuse_data(
                "{}: example {}: token {} is not below the model's vocabulary of {}; the file was made with "
                "another tokenizer",
                path, i, largest, vocab);
        const size_t needed = example.context.size() + longest - 1;  // the last token is only a target
        if (needed > static_cast<size_t>(T))
            refuse_data("{}: example {} is a sequence of {} tokens, but -t is {}; use -t {} or more", path, i, needed,
                        T, (needed + 15) / 16 * 16);
    }
}

}  // namespace llmc
