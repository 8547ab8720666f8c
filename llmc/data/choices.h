// Multiple-choice examples in llm.c's evaluation format, HellaSwag's for example: a context, and completions of which
// one is right.
//
// A header of 256 int32 (magic 20240522, version 1, number of examples, bytes of the longest one), then for each
// example uint16: 65535, the example's bytes with this head, its index, the label (the right completion's number), the
// number of completions, the number of tokens of the context and those tokens, and the same of every completion.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

struct Choices {
    int label = 0;
    std::vector<int32_t> context;
    std::vector<std::vector<int32_t>> completions;
};

// Throws Error(bad_data) for what is no such file, or no example that can be scored: at least one token of context, at
// least two completions, none empty.
std::vector<Choices> read_choices(const std::string& path);

// Throws Error(bad_data) where a token is not below `vocab`, or a context and a completion are more than T + 1 tokens.
void check_choices(const std::vector<Choices>& examples, int vocab, int T, const std::string& path);

}  // namespace llmc
