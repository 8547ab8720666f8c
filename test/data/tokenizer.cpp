// Tokenizers: the three kinds of vocabulary, broken files, byte-pair merges by hand, and safe terminal output.
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
        std::vector<int> bytes(257, 1);
        bytes[256] = 0;
        CHECK(decoder.text_bytes() == bytes);
    }
    CHECK(encode_bytes("") == std::vector<int>{});
    CHECK(encode_bytes("\xc3\xa4 b") == std::vector<int>{0xc3, 0xa4, ' ', 'b'});
    for (int token = 0; token < 256; ++token) {
        const TokenDecoder decoder = TokenDecoder::byte_vocabulary();
        CHECK(encode_bytes(decoder.decode({token})) == std::vector<int>{token});
    }
}

TEST_CASE("tiktoken file: decoding and merges by rank") {
    TemporaryDirectory dir;
    // a b c " " ab bc " a" " ab"
    const std::string text = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYmM= 4\nYWI= 5\r\nIGE= 6\nIGFi 7\n";
    const TokenDecoder decoder = TokenDecoder::open(make_file(dir / "small.tiktoken", text));
    CHECK(decoder.vocab() == 8);
    CHECK(decoder.end_token() == -1);
    CHECK(decoder.decode({5, 7, 4, 3, 2}) == "ab abbc c");
    CHECK(decoder.encode("abc") == std::vector<int>{0, 4});  // bc (4) before ab (5)
    CHECK(decoder.encode("ab") == std::vector<int>{5});
    CHECK(decoder.encode("c ab") == std::vector<int>{2, 7});          // ab, then " ab"
    CHECK(decoder.encode("a  ab ") == std::vector<int>{0, 3, 7, 3});  // the second of two spaces belongs to the word
    CHECK(decoder.encode("  ") == std::vector<int>{3, 3});
    CHECK(decoder.encode("").empty());
    check_error(ExitCode::bad_data, {"0x64"}, [&] { decoder.encode("ad"); });
}

TEST_CASE("llm.c tokenizer, version 2") {
    TemporaryDirectory dir;
    const std::string path =
        make_file(dir / "t.bin", llmc_tokenizer(2, 3, {"a", "b", "ab", "abab", std::string("\0\xff", 2), ""}));
    const TokenDecoder decoder = TokenDecoder::open(path);
    CHECK(decoder.vocab() == 6);
    CHECK(decoder.end_token() == 3);
    CHECK(decoder.decode({3, 2, 4, 5}) == std::string("ababab\0\xff", 8));
    CHECK(decoder.encode("abab") == std::vector<int>{2, 2});  // a prompt cannot end the document
    CHECK(decoder.text_bytes() == std::vector<int>{1, 1, 2, 0, 2, 0});
}

TEST_CASE("llm.c tokenizer, version 1, ends with 50256") {
    TemporaryDirectory dir;
    std::vector<std::string> pieces(50257, "x");
    pieces[50256] = "<|endoftext|>";
    const std::string path = make_file(dir / "t.bin", llmc_tokenizer(1, 0, pieces));
    CHECK(TokenDecoder::open(path).end_token() == 50256);
    CHECK(TokenDecoder::open(path).decode({50256}) == "<|endoftext|>");
    pieces.pop_back();
    make_file(path, llmc_tokenizer(1, 0, pieces));
    check_error(ExitCode::bad_data, {"50256"}, [&] { TokenDecoder::open(path); });
}

TEST_CASE("GPT-2's size of tiktoken file gets its end token") {
    TemporaryDirectory dir;
    std::string text;
    const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 50256; ++i)
        text += std::string{digits[i >> 12 & 63], digits[i >> 6 & 63], digits[i & 63], 'A'} + " " + std::to_string(i) +
                "\n";
    const TokenDecoder decoder = TokenDecoder::open(make_file(dir / "gpt2", text));
    CHECK(decoder.vocab() == 50257);
    CHECK(decoder.end_token() == 50256);
    CHECK(decoder.decode({50256}) == "<|endoftext|>");
    // "MQAA": the 24 bits 001100 010000 000000 000000 of i = 12 << 12 | 16 << 6
    CHECK(decoder.decode({12 << 12 | 16 << 6}) == std::string("1\0\0", 3));
}

TEST_CASE("broken tokenizer files") {
    TemporaryDirectory dir;
    const std::string path = dir / "broken";
    const auto refused = [&](const std::string& content, const std::vector<std::string>& words) {
        make_file(path, content);
        check_error(ExitCode::bad_data, words, [&] { TokenDecoder::open(path); });
    };
    check_error(ExitCode::bad_data, {"cannot open the tokenizer file " + path}, [&] { TokenDecoder::open(path); });
    refused("", {path, "empty"});
    refused("YQ== 0\nYg==1\n", {"line 2"});
    refused("YQ== 0\nY*== 1\n", {"line 2"});
    refused("YQ== 0\nYg= 1\n", {"line 2"});
    refused("YQ== 0x\n", {"line 1"});
    refused("YQ== -1\n", {"line 1"});
    refused("YQ== 999999999\n", {"line 1"});
    refused("YQ== 0\nYQ== 1\n", {"line 2", "repeats"});
    const std::string good = llmc_tokenizer(2, 0, {"a", "bc"});
    make_file(path, good);
    CHECK_NOTHROW(TokenDecoder::open(path));
    refused(good.substr(0, 500), {"500 bytes"});
    refused(good.substr(0, good.size() - 1), {"token 1 of 2", "truncated"});
    refused(good.substr(0, good.size() - 3), {"token 1 of 2", "truncated"});
    refused(good + "z", {"1 bytes after"});
    refused(llmc_tokenizer(3, 0, {"a"}), {"version 3"});
    refused(llmc_tokenizer(2, 2, {"a", "bc"}), {"end token 2"});
    refused(llmc_tokenizer(2, 0, {}), {"0 tokens"});
}

// A tokenizer.json in which "é" is one token of two bytes. The ids are not in the order of the merges.
static std::string small_json(const std::string& merges, const std::string& more = "") {
    return R"({"version": "1.0", "added_tokens": [{"id": 9, "content": "<|endoftext|>", "special": true}],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
        "model": {)" +
           more +
           R"("vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "bc": 5, "Ã": 6, "©": 7, "Ã©": 8, "Ġab": 10},
        "merges": )" +
           merges + "}}";
}

TEST_CASE("tokenizer.json: both spellings of merges, by rank") {
    TemporaryDirectory dir;
    for (const char* merges :
         {R"(["Ã ©", "b c", "a b", "Ġ ab"])", R"([["Ã","©"], ["b","c"], ["a","b"], ["Ġ","ab"]])"}) {
        const TokenDecoder decoder = TokenDecoder::open(make_file(dir / "tokenizer.json", small_json(merges)));
        CHECK(decoder.vocab() == 11);
        CHECK(decoder.end_token() == 9);
        CHECK(decoder.text_bytes() == std::vector<int>{1, 1, 1, 1, 2, 2, 1, 1, 2, 0, 3});
        CHECK(decoder.decode({10, 8, 9, 3}) == " abé<|endoftext|> ");
        CHECK(decoder.encode("abc é ab") == std::vector<int>{0, 5, 3, 8, 10});  // bc (rank 1) before ab (rank 2)
        CHECK(TokenDecoder::open(dir / "").encode("ab") == std::vector<int>{4});
    }
    const auto refused = [&](const std::string& content, const std::vector<std::string>& words) {
        const std::string path = make_file(dir / "other.json", content);
        check_error(ExitCode::bad_data, words, [&] { TokenDecoder::open(path); });
    };
    refused(small_json("[]", R"("type": "Unigram", )"), {"other.json", "Unigram", "byte-level BPE"});
    refused(small_json("[]", R"("type": "WordPiece", )"), {"WordPiece"});
    refused(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})", {"characters, not bytes"});
    refused(R"({"model": {"layers": 2}})", {"not a tokenizer.json"});
    refused("{", {"other.json", "line 1"});
    refused(small_json("[]", R"("type": "\u001b[31m", )"), {R"(it is a \x1b[31m model)"});
    refused(small_json(R"(["a c"])"), {"ac"});
}

TEST_CASE("tokenizer.json: an export is read back as the table that it came from") {
    TemporaryDirectory dir;
    std::vector<std::string> pieces;
    for (int byte = 255; byte >= 0; byte--) pieces.emplace_back(1, static_cast<char>(byte));
    for (const char* piece : {"th", "the", " the", "\xc3\xa4", "\n\n", "we", "er"}) pieces.emplace_back(piece);
    pieces.insert(pieces.begin() + 258, "");
    pieces[258] = "<|endoftext|>";
    const TokenDecoder table = TokenDecoder::open(make_file(dir / "t.bin", llmc_tokenizer(2, 258, pieces)));
    CHECK(table.as_llmc() == llmc_tokenizer(2, 258, pieces));
    make_file(dir / "somebodys", "precious");
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
        std::filesystem::create_symlink("somebodys", dir / name);  // replaced, not followed
    CHECK(write_hf_tokenizer(dir / "t.bin", {dir / "", 300, 64}) == 258);
    CHECK(llmc::test::read_file(dir / "somebodys") == "precious");
    const TokenDecoder back = TokenDecoder::open(dir / "tokenizer.json");
    CHECK(back.vocab() == table.vocab());
    CHECK(back.end_token() == 258);
    CHECK_NOTHROW(back.require_same(table));
    for (int id = 0; id < table.vocab(); id++) CHECK(back.decode({id}) == table.decode({id}));
    for (const char* text : {"the other\n\n the", "\xc3\xa4\xff 7", "lower"})
        CHECK(back.encode(text) == table.encode(text));
    CHECK(back.decode({back.encode("wer")[0]}) == "we");  // its merge comes before that of "er"
    std::swap(pieces[3], pieces[4]);
    const TokenDecoder other = TokenDecoder::open(make_file(dir / "o.bin", llmc_tokenizer(2, 258, pieces)));
    check_error(ExitCode::bad_data, {"o.bin", "token 3", "tokenizer.json"}, [&] { other.require_same(back); });
}

TEST_CASE("token ids stand in for an unknown tokenizer") {
    const TokenDecoder decoder = TokenDecoder::token_ids();
    CHECK(decoder.decode({464, 3290}) == "464 3290 ");
    CHECK(decoder.encode(" 464  3290") == std::vector<int>{464, 3290});
    for (const char* text : {"hello", "4x", "-1", "99999999999"})
        check_error(ExitCode::bad_flags, {"--prompt", "--tokenizer FILE"}, [&] { decoder.encode(text); });
}

TEST_CASE("find_tokenizer: the first file that can be read and fits") {
    TemporaryDirectory dir;
    CHECK(find_tokenizer({dir / ""}, 300).problem.find("tokenizer.json, tokenizer.bin or .tiktoken") !=
          std::string::npos);
    check_error(ExitCode::bad_data, {"directory without"}, [&] { TokenDecoder::open(dir / ""); });
    make_file(dir / "b.tiktoken", "YQ== 0\n");
    make_file(dir / "c.tiktoken", "YQ== 500\n");
    CHECK(find_tokenizer({dir / "none", dir / ""}, 300).tokenizer->name().ends_with("b.tiktoken"));
    make_file(dir / "tokenizer.bin", llmc_tokenizer(2, 0, {"a", "bc"}));
    CHECK(find_tokenizer({dir / ""}, 300).tokenizer->vocab() == 2);
    CHECK(find_tokenizer({dir / ""}, 600, 400).tokenizer->vocab() == 501);
    const TokenizerSearch none = find_tokenizer({dir / ""}, 900, 800);
    CHECK(!none.tokenizer);
    CHECK(none.problem.find("it has 2 tokens, but the vocabulary has 900") != std::string::npos);
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

TEST_CASE("complete_utf8: leaves out bytes that may begin a character") {
    const std::string text = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82";  // characters of 1, 2, 3 and 4 bytes
    const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t length = 0; length <= text.size(); length++)
        CHECK(complete_utf8(text.substr(0, length)) == whole[length]);
    CHECK(complete_utf8("a\x80") == 2);  // not the beginning of a character
    CHECK(complete_utf8("\x80\x80\x80\x80") == 4);
}
