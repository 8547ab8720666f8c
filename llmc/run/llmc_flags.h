// Answers for people who come from llm.c: its flags that mean something else here, or nothing.
#pragma once
#include <optional>
#include <string>

namespace llmc {

// What to tell a user who typed llm.c's `flag` ("-y", "-ge") followed by `value`; nothing when the flag is ours as
// well.
std::optional<std::string> answer_llmc_flag(const std::string& flag, const std::string& value);

}  // namespace llmc
