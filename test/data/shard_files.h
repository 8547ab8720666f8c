// Files for the data tests: shards written by hand instead of by the code under test,
// and a check of errors by code and words.
#pragma once
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "test/helpers.h"

using llmc::test::make_file, llmc::test::TemporaryDirectory;

// The 1024 bytes before the tokens.
inline std::string shard_header(int32_t magic, int32_t version, int32_t tokens) {
    int32_t head[256] = {magic, version, tokens};
    return std::string(reinterpret_cast<const char*>(head), sizeof head);
}

// Writes a shard; Token is uint16_t or uint32_t.
template <typename Token>
std::string write_shard(const std::string& path, const std::vector<Token>& tokens) {
    const std::string header = sizeof(Token) == 2 ? shard_header(20240520, 1, static_cast<int32_t>(tokens.size()))
                                                  : shard_header(20240801, 7, static_cast<int32_t>(tokens.size()));
    const std::string body(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
    return make_file(path, header + body);
}

// first, first+1, ...: a token's value is its position in the whole set.
inline std::vector<uint16_t> counting(int first, int count) {
    std::vector<uint16_t> tokens(count);
    for (int i = 0; i < count; ++i) tokens[i] = static_cast<uint16_t>(first + i);
    return tokens;
}

// Checks that `action` throws llmc::Error with this code and a message that contains all the words.
inline void check_error(llmc::ExitCode code, const std::vector<std::string>& words,
                        const std::function<void()>& action) {
    const std::string message = llmc::test::error_of(action, code);
    CAPTURE(message);
    CHECK(message != "");
    for (const std::string& word : words) {
        CAPTURE(word);
        CHECK(llmc::test::contains(message, word));
    }
}
