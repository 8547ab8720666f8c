// Multiple-choice examples in llm.c's evaluation format, such as HellaSwag: a context and several completions, one of
// which is right.
//
// The file has a header of 256 int32 (magic 20240522, version 1, number of examples, bytes of the longest one). Each
// example is a row of uint16: 65535, its size in bytes including this head, its index, its label (the number of the
// right completion), the number of completions, then for the context and every completion the number of tokens and the
// tokens.
//
// Version 2, which `data.prepare task` writes, has uint32 instead, so it holds every vocabulary. In front of each
// completion are two more numbers: how many of its last tokens are scored, and the length that the normalized score
// divides by. In version 1 both are the number of tokens. With fewer scored tokens, the completions of an example can
// differ in their contexts: they begin with the part of the context that is their own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// One example.
struct Choices {
    struct Completion {
        std::vector<int32_t> tokens;
        size_t scored = 0;  // tokens at the end of `tokens`
        double length = 0;  // the normalized score is the sum divided by this
    };
    int label = 0;
    std::vector<int32_t> context;
    std::vector<Completion> completions;
};

// Throws Error(bad_data) if this is not such a file, or if an example cannot be scored: it needs at least two
// completions, a token to score in each, and a token before it.
std::vector<Choices> read_choices(const std::string& path);

// Throws Error(bad_data) if a token is not below `vocab`, or a context with a completion has more than T + 1 tokens.
void check_choices(const std::vector<Choices>& examples, int vocab, int T, const std::string& path);

}  // namespace llmc
