// Tokenizers: the three kinds of vocabulary, broken files, byte-pair merges by hand, and terminal safety.
#include "llmc/data/tokenizer.h"

#include "test/data/shard_files.h"

using namespace llmc;

// A version 1 file must hold GPT-2's end token 50256; version 2 names its own.
static std::string llmc_tokenizer(int version, int end, const std::vector<std::string>& pieces) {
    int32_t head[256] = {20240328, version, static_cast<int32_t>(pieces.size()), end};
    std::string content(reinterpret_cast<const char*>(head), sizeof head);
    for (const std::string& piece : pieces) content += static_cast<char>(piece.size()) + piece;
    return content;
}

TEST_CASE("byte vocabulary") {
    for (const TokenDecoder& decoder : {TokenDecoder::byte_vocabulary(), TokenDecoder::open("bytes")}) {
        CHECK(decoder.vocab() == 257);
        CHECK(decoder.end_token() == 256);
        CHECK(decoder.decode({'H', 'i', 256, 0xc3, 0xa4}) == "Hi\n\xc3\xa4");
        CHECK(decoder.decode({'a', 257, -1}) == "a<|257|><|-1|>");
        CHECK(decoder.encode("a\xff") == std::vector<int>{'a', 255});
    }
    CHECK(encode_bytes("") == std::vector<int>{});
    CHECK(encode_bytes("\xc3\xa4 b") == std::vector<int>{0xc3, 0xa4, ' ', 'b'});
    for (int token = 0; token < 256; ++token) {
        const TokenDecoder decoder = TokenDecoder::byte_vocabulary();
        CHECK(encode_bytes(decoder.decode({token})) == std::vector<int>{token});
    }
}

TEST_CASE("tiktoken file: decoding and merges by rank") {
    TempDir dir;
    // a b c " " ab bc " a" " ab"
    const std::string text = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYmM= 4\nYWI= 5\r\nIGE= 6\nIGFi 7\n";
    const TokenDecoder decoder = TokenDecoder::open(write_file(dir / "small.tiktoken", text));
    CHECK(decoder.vocab() == 8);
    CHECK(decoder.end_token() == -1);
    CHECK(decoder.decode({5, 7, 4, 3, 2}) == "ab abbc c");
    CHECK(decoder.encode("abc") == std::vector<int>{0, 4});  // bc (4) before ab (5)
    CHECK(decoder.encode("ab") == std::vector<int>{5});
    CHECK(decoder.encode("c ab") == std::vector<int>{2, 7});          // ab, then " ab"
    CHECK(decoder.encode("a  ab ") == std::vector<int>{0, 3, 7, 3});  // of two spaces the last goes with the word
    CHECK(decoder.encode("  ") == std::vector<int>{3, 3});
    CHECK(decoder.encode("").empty());
    check_error(ExitCode::bad_data, {"0x64"}, [&] { decoder.encode("ad"); });
}

TEST_CASE("llm.c tokenizer, version 2") {
    TempDir dir;
    const std::string path =
        write_file(dir / "t.bin", llmc_tokenizer(2, 3, {"a", "b", "ab", "abab", std::string("\0\xff", 2), ""}));
    const TokenDecoder decoder = TokenDecoder::open(path);
    CHECK(decoder.vocab() == 6);
    CHECK(decoder.end_token() == 3);
    CHECK(decoder.decode({3, 2, 4, 5}) == std::string("ababab\0\xff", 8));
    CHECK(decoder.encode("abab") == std::vector<int>{2, 2});  // a prompt cannot end the document
}

TEST_CASE("llm.c tokenizer, version 1, ends with 50256") {
    TempDir dir;
    std::vector<std::string> pieces(50257, "x");
    pieces[50256] = "<|endoftext|>";
    const std::string path = write_file(dir / "t.bin", llmc_tokenizer(1, 0, pieces));
    CHECK(TokenDecoder::open(path).end_token() == 50256);
    CHECK(TokenDecoder::open(path).decode({50256}) == "<|endoftext|>");
    pieces.pop_back();
    write_file(path, llmc_tokenizer(1, 0, pieces));
    check_error(ExitCode::bad_data, {"50256"}, [&] { TokenDecoder::open(path); });
}

TEST_CASE("GPT-2's size of tiktoken file gets its end token") {
    TempDir dir;
    std::string text;
    const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 50256; ++i)
        text += std::string{digits[i >> 12 & 63], digits[i >> 6 & 63], digits[i & 63], 'A'} + " " + std::to_string(i) +
                "\n";
    const TokenDecoder decoder = TokenDecoder::open(write_file(dir / "gpt2", text));
    CHECK(decoder.vocab() == 50257);
    CHECK(decoder.end_token() == 50256);
    CHECK(decoder.decode({50256}) == "<|endoftext|>");
    // "MQAA": the 24 bits 001100 010000 000000 000000 of i = 12 << 12 | 16 << 6
    CHECK(decoder.decode({12 << 12 | 16 << 6}) == std::string("1\0\0", 3));
}

TEST_CASE("broken tokenizer files") {
    TempDir dir;
    const std::string path = dir / "broken";
    const auto refused = [&](const std::string& content, const std::vector<std::string>& words) {
        write_file(path, content);
        check_error(ExitCode::bad_data, words, [&] { TokenDecoder::open(path); });
    };
    check_error(ExitCode::bad_data, {path, "cannot be read"}, [&] { TokenDecoder::open(path); });
    refused("", {path, "empty"});
    refused("YQ== 0\nYg==1\n", {"line 2"});
    refused("YQ== 0\nY*== 1\n", {"line 2"});
    refused("YQ== 0\nYg= 1\n", {"line 2"});
    refused("YQ== 0x\n", {"line 1"});
    refused("YQ== -1\n", {"line 1"});
    refused("YQ== 999999999\n", {"line 1"});
    refused("YQ== 0\nYQ== 1\n", {"line 2", "repeats"});
    const std::string good = llmc_tokenizer(2, 0, {"a", "bc"});
    write_file(path, good);
    CHECK_NOTHROW(TokenDecoder::open(path));
    refused(good.substr(0, 500), {"500 bytes"});
    refused(good.substr(0, good.size() - 1), {"token 1 of 2", "truncated"});
    refused(good.substr(0, good.size() - 3), {"token 1 of 2", "truncated"});
    refused(good + "z", {"1 bytes after"});
    refused(llmc_tokenizer(3, 0, {"a"}), {"version 3"});
    refused(llmc_tokenizer(2, 2, {"a", "bc"}), {"end token 2"});
    refused(llmc_tokenizer(2, 0, {}), {"0 tokens"});
}

TEST_CASE("sanitize keeps text and disarms everything else") {
    CHECK(sanitize("Grüße,\n\tΑθήνα 東京 🙂") == "Grüße,\n\tΑθήνα 東京 🙂");
    CHECK(sanitize("\x1b[31mred\a\r\x7f") == "\\x1b[31mred\\x07\\x0d\\x7f");
    CHECK(sanitize(std::string("a\0b", 3)) == "a\\x00b");
    CHECK(sanitize("\xc2\x9b") == "\\xc2\\x9b");  // C1: a second way to start an escape sequence
    CHECK(sanitize("\xe2\x80\xae"
                   "abc") ==
          "\\xe2\\x80\\xae"
          "abc");  // right-to-left override
    CHECK(sanitize("\xff\xc3(") == "\\xff\\xc3(");
    CHECK(sanitize("\xc3") == "\\xc3");  // cut at the end
    CHECK(sanitize("\xe2\x82") == "\\xe2\\x82");
    CHECK(sanitize("\xc0\xaf") == "\\xc0\\xaf");  // overlong
    CHECK(sanitize("\xe0\x80\xaf") == "\\xe0\\x80\\xaf");
    CHECK(sanitize("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // surrogate
    CHECK(sanitize("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
    CHECK(sanitize("\xf4\x8f\xbf\xbf") == "\xf4\x8f\xbf\xbf");
    CHECK(sanitize("").empty());
}

TEST_CASE("complete_utf8: what may be the beginning of a character waits") {
    const std::string text = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82";  // of 1, 2, 3 and 4 bytes
    const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t length = 0; length <= text.size(); length++)
        CHECK(complete_utf8(text.substr(0, length)) == whole[length]);
    CHECK(complete_utf8("a\x80") == 2);  // no character's beginning
    CHECK(complete_utf8("\x80\x80\x80\x80") == 4);
}
