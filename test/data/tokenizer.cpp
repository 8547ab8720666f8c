// Tokenizers: the kinds of tables, broken files, exports, and safe terminal output.
#include "llmc/data/tokenizer.h"

#include "llmc/data/shards.h"
#include "test/data/shard_files.h"

using namespace llmc;

// A version 1 file must hold GPT-2's end token 50256; later versions name their own. Version 3 has wide lengths.
static std::string llmc_tokenizer(int version, int end, const std::vector<std::string>& pieces, int prefix = 0,
                                  int inexact = 0) {
    int32_t head[256] = {20240328, version, static_cast<int32_t>(pieces.size()), end, prefix, inexact};
    std::string content(reinterpret_cast<const char*>(head), sizeof head);
    for (const std::string& piece : pieces) {
        content += static_cast<char>(piece.size() & 255);
        if (version == 3) content += static_cast<char>(piece.size() >> 8);
        content += piece;
    }
    return content;
}

TEST_CASE("byte vocabulary") {
    for (const TokenDecoder& decoder : {TokenDecoder::byte_vocabulary(), TokenDecoder::open("bytes")}) {
        CHECK(decoder.vocab() == 257);
        CHECK(decoder.end_token() == 256);
        CHECK(decoder.decode({'H', 'i', 256, 0xc3, 0xa4}) == "Hi\n\xc3\xa4");
        CHECK(decoder.decode({'a', 257, -1}) == "a<|257|><|-1|>");
        CHECK(decoder.encoder() == "bytes");
        std::vector<int> bytes(257, 1);
        bytes[256] = 0;
        CHECK(decoder.text_bytes() == bytes);
    }
}

TEST_CASE("tiktoken file") {
    TemporaryDirectory dir;
    // a b c " " ab bc " a" " ab"
    const std::string text = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYmM= 4\nYWI= 5\r\nIGE= 6\nIGFi 7\n";
    const TokenDecoder decoder = TokenDecoder::open(make_file(dir / "small.tiktoken", text));
    CHECK(decoder.vocab() == 8);
    CHECK(decoder.end_token() == -1);
    CHECK(decoder.decode({5, 7, 4, 3, 2}) == "ab abbc c");
    CHECK(decoder.text_bytes() == std::vector<int>{1, 1, 1, 1, 2, 2, 2, 3});
    CHECK(decoder.encoder() == dir / "small.tiktoken");
}

TEST_CASE("llm.c tokenizer, version 2") {
    TemporaryDirectory dir;
    const std::string path =
        make_file(dir / "t.bin", llmc_tokenizer(2, 3, {"a", "b", "ab", "abab", std::string("\0\xff", 2), ""}));
    const TokenDecoder decoder = TokenDecoder::open(path);
    CHECK(decoder.vocab() == 6);
    CHECK(decoder.end_token() == 3);
    CHECK(decoder.decode({3, 2, 4, 5}) == std::string("ababab\0\xff<|5|>", 13));
    CHECK(decoder.text_bytes() == std::vector<int>{1, 1, 2, 0, 2, 0});
    CHECK(decoder.prefix_bytes() == 0);
    CHECK(decoder.counts_text());
}

TEST_CASE("llm.c tokenizer: what data.prepare writes, and what is written again") {
    TemporaryDirectory dir;
    const std::string longest(65535, 'x'), wide(256, 'y'), narrow(255, 'z');
    struct Row {
        int version;
        std::vector<std::string> pieces;
        int prefix, inexact;
    };
    for (const Row& row : std::vector<Row>{{2, {"a", narrow, "<s>", ""}, 1, 0},
                                           {2, {"a", "b", "<s>"}, 0, 1},
                                           {3, {"a", wide, "<s>", longest, ""}, 1, 1}}) {
        const std::string content = llmc_tokenizer(row.version, 2, row.pieces, row.prefix, row.inexact);
        const TokenDecoder decoder = TokenDecoder::parse_table(content, "t.bin");
        CHECK(decoder.prefix_bytes() == row.prefix);
        CHECK(decoder.counts_text() == !row.inexact);
        const std::vector<int> bytes = decoder.text_bytes();
        for (size_t i = 0; i < bytes.size(); i++)
            CHECK(bytes[i] == (i == 2 ? 0 : static_cast<int>(row.pieces[i].size())));
        CHECK(decoder.decode({1, 2}) == row.pieces[1] + "<s>");
        CHECK(decoder.as_table() == content);
    }
    const std::string path = make_file(dir / "tokenizer.bin", llmc_tokenizer(2, 0, {"a", "bc"}));
    CHECK(TokenDecoder::open(path).encoder() == path);
    make_file(dir / "tokenizer.json", "{}");
    CHECK(TokenDecoder::open(path).encoder() == dir / "tokenizer.json");
    CHECK(TokenDecoder::open(dir / "").name() == path);  // a table needs no Python
    const TokenDecoder bytes = TokenDecoder::byte_vocabulary();
    CHECK(TokenDecoder::parse_table(bytes.as_table(), "kept.bin").encoder() == "bytes");
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
    for (const int version : {0, 4}) refused(llmc_tokenizer(version, 0, {"a"}), {"version " + std::to_string(version)});
    refused(llmc_tokenizer(2, 0, {"a"}, -1), {"begin with -1 bytes"});
    refused(llmc_tokenizer(2, 0, {"a"}, 1000), {"begin with 1000 bytes"});
    const std::string wide = llmc_tokenizer(3, 0, {"a", "bc"});
    for (const size_t missing : {1, 3, 4})
        refused(wide.substr(0, wide.size() - missing), {"token 1 of 2", "truncated"});
    refused(llmc_tokenizer(2, 2, {"a", "bc"}), {"end token 2"});
    refused(llmc_tokenizer(2, 0, {}), {"0 tokens"});
}

TEST_CASE("tokenizers that differ are refused") {
    const auto table = [](int end, const std::vector<std::string>& pieces) {
        return TokenDecoder::parse_table(llmc_tokenizer(2, end, pieces), "some.bin");
    };
    const TokenDecoder decoder = table(2, {"a", "b", "<s>", ""});
    for (const TokenDecoder& same : {table(2, {"a", "b", "\n"}), table(2, {"a", "b", "<s>", "more", "tokens"})})
        CHECK_NOTHROW(decoder.require_same(same));
    check_error(ExitCode::bad_data, {"some.bin", "token 1 is 'b', but 'c'"}, [&] {
        decoder.require_same(table(2, {"a", "c", "<s>"}));
    });
}

TEST_CASE("a table knows the files that its tokenizer has made") {
    std::string content = llmc_tokenizer(2, 2, {"a", "b", "<s>"});
    const auto file = [](const std::string& path, const std::optional<std::string>& hash) {
        TokenFile file;
        file.path = path;
        file.sidecar.tokenizer_hash = hash;
        return file;
    };
    const TokenFile made = file("a.bin", "sha256:" + std::string(62, '0') + "fe");
    const TokenFile other = file("b.bin", "sha256:" + std::string(64, '1')), unknown = file("c.bin", std::nullopt);
    const TokenDecoder llmc = TokenDecoder::parse_table(content, "llmc.bin");  // llm.c's has no hash
    TokenFile counted = other;
    for (const int64_t vocab : {3, 3 + 256}) {  // special tokens may be missing
        counted.sidecar.vocab = vocab;
        CHECK_NOTHROW(llmc.require_made(counted));
    }
    for (const int64_t vocab : {2, 4 + 256}) {
        counted.sidecar.vocab = vocab;
        check_error(ExitCode::bad_data, {"llmc.bin", "it has 3 tokens, and b.bin was made with a tokenizer of"},
                    [&] { llmc.require_made(counted); });
    }
    CHECK_NOTHROW(llmc.require_made(other));
    content[24 + 31] = static_cast<char>(0xfe);
    const TokenDecoder decoder = TokenDecoder::parse_table(content, "t.bin");
    CHECK(decoder.as_table() == content);
    CHECK_NOTHROW(decoder.require_made(made));
    CHECK_NOTHROW(decoder.require_made(unknown));
    check_error(ExitCode::bad_data, {"t.bin", "not the tokenizer that b.bin was made with"},
                [&] { decoder.require_made(other); });
}

// Exported files of a tokenizer.json and these other files, if they have content.
struct Exported {
    DocumentTokens tokens;
    std::string config, map;
};
static Exported exported(const std::string& config, DocumentTokens tokens, const std::string& special_tokens = "") {
    TemporaryDirectory from, to;
    make_file(from / "tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}},
        "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}, {"id": 4, "content": "<|im_end|>"}]})");
    if (!config.empty()) make_file(from / "tokenizer_config.json", config);
    if (!special_tokens.empty()) make_file(from / "special_tokens_map.json", special_tokens);
    make_file(to / "somebodys", "precious");
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
        std::filesystem::create_symlink("somebodys", to / name);  // replaced, not followed
    Exported result;
    result.tokens = write_hf_tokenizer(from / "", {to / "", 300, 64, tokens});
    CHECK(llmc::test::read_file(to / "somebodys") == "precious");
    CHECK(llmc::test::read_file(to / "tokenizer.json") == llmc::test::read_file(from / "tokenizer.json"));
    result.config = llmc::test::read_file(to / "tokenizer_config.json");
    if (!special_tokens.empty()) result.map = llmc::test::read_file(to / "special_tokens_map.json");
    return result;
}

TEST_CASE("export: the files name the tokens at the edges of documents") {
    const std::string llama2 = R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true})";
    const auto line = [](const char* key, const char* text) {
        return std::string("\"") + key + "\": \"" + text + "\"";
    };
    struct Row {
        std::string config;
        DocumentTokens known;
        DocumentTokens expected;
        const char *begin, *end;
    };
    for (const Row& row :
         std::vector<Row>{{"", {1, 1}, {1, 1}, "<s>", "<s>"},  // a run with Llama 2's tokenizer
                          {llama2, {1, 1}, {1, 1}, "<s>", "<s>"},
                          {llama2, {2, 2}, {2, 2}, "</s>", "</s>"},  // a run with older shards
                          {llama2, {1, 2}, {1, 2}, "<s>", nullptr},  // another program's model
                          {llama2, {}, {1, 2}, "<s>", nullptr},      // a model that names none
                          {"", {}, {2, 2}, "</s>", "</s>"},          // nothing does
                          {R"({"eos_token": "<|im_end|>"})", {}, {4, 4}, "<|im_end|>", "<|im_end|>"},
                          {R"({"eos_token": {"content": "</s>"}, "bos_token": "<s>"})", {}, {1, 2}, "<s>", nullptr},
                          {"", {77, 77}, {2, 2}, "</s>", "</s>"}}) {
        const Exported result = exported(row.config, row.known);
        CHECK(result.tokens.begin == row.expected.begin);
        CHECK(result.tokens.end == row.expected.end);
        CHECK(result.config.find(line("bos_token", row.begin)) != std::string::npos);
        if (row.end) CHECK(result.config.find(line("eos_token", row.end)) != std::string::npos);
        if (!row.end) CHECK(result.config == row.config);  // the bytes of a file that is right already
    }
    const Exported map = exported(llama2, {1, 1}, R"({"eos_token": "</s>", "unk_token": "<unk>"})");
    CHECK(map.map.find(line("eos_token", "<s>")) != std::string::npos);
    CHECK(map.map.find(line("unk_token", "<unk>")) != std::string::npos);
}

TEST_CASE("export: broken files") {
    TemporaryDirectory dir;
    const auto refused = [&](const std::string& content, const std::vector<std::string>& words) {
        make_file(dir / "other.json", content);
        check_error(ExitCode::bad_data, words, [&] { write_hf_tokenizer(dir / "other.json", {dir / "", 4, 64, {}}); });
    };
    refused(R"({"model": {"layers": 2}})", {"other.json", "not a tokenizer.json"});
    refused("{", {"other.json", "line 1"});
    refused(R"({"model": {"vocab": {}}, "added_tokens": [{"id": -1}]})", {"id -1 is invalid"});
    refused(R"({"model": {"vocab": {}}, "added_tokens": [{"id": 4}]})", {"has 5 tokens, but the vocabulary has 4"});
    CHECK(!std::filesystem::exists(dir / "tokenizer.json"));
}

TEST_CASE("token ids stand in for an unknown tokenizer") {
    CHECK(TokenDecoder::token_ids().decode({464, 3290}) == "464 3290 ");
    CHECK(TokenDecoder::token_ids().encoder().empty());
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
    for (size_t length = 0; length <= text.size(); length++)
        CHECK(is_utf8(text.substr(0, length)) == (whole[length] == length));
    CHECK(!is_utf8("\xffz"));
    CHECK(!is_utf8("z\xed\xa0\x80"));  // surrogate
    CHECK(is_utf8(std::string("\0\x1b", 2)));
}
