// Shards: both token widths, every way a file can be malformed, sidecars, vocabulary checks, files beyond 2 and 4 GiB.
#include "llmc/data/shards.h"

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "test/data/shard_files.h"

using namespace llmc;

constexpr int64_t kAnyVocab = int64_t{1} << 32;

TEST_CASE("expand_glob sorts, leaves sidecars out and refuses an empty match") {
    TemporaryDirectory dir;
    for (const char* name : {"b.bin", "a.bin", "a.bin.json", "c.txt", "lone.json"}) make_file(dir / name, "x");
    CHECK(expand_glob(dir / "*.bin") == std::vector<std::string>{dir / "a.bin", dir / "b.bin"});
    CHECK(expand_glob(dir / "a*") == std::vector<std::string>{dir / "a.bin"});
    CHECK(expand_glob(dir / "lone*") == std::vector<std::string>{dir / "lone.json"});
    CHECK(expand_glob(dir / "{b.bin,a.bin}") == std::vector<std::string>{dir / "a.bin", dir / "b.bin"});
    check_error(ExitCode::bad_data, {dir / "none*.bin"}, [&] { expand_glob(dir / "none*.bin"); });
    const NoMoreFiles no_more_files;
    check_error(ExitCode::no_resources, {"cannot list the files of '" + dir / "*'", "raise this shell's limit"},
                [&] { expand_glob(dir / "*"); });
}

TEST_CASE("expand_glob: what exists under a name is meant by it, whatever a pattern of that name matches") {
    TemporaryDirectory dir;
    for (const char* name : {"1", "[1]", "{a,b}", "*", "back\\slash"}) {
        CAPTURE(name);
        std::filesystem::create_directory(dir / name);
        const std::string file = make_file(dir / name + "/[x].bin", "x"), other = make_file(dir / name + "/x.bin", "x");
        CHECK(expand_glob(file) == std::vector<std::string>{file});
        CHECK(expand_glob(dir / name + "/*.bin") == std::vector<std::string>{file, other});
        CHECK(expand_glob(dir / name + "/[xy].bin") == std::vector<std::string>{other});
    }
    CHECK(expand_glob(dir / "\\[1\\]/\\[x\\].bin") == std::vector<std::string>{dir / "[1]/[x].bin"});
    CHECK(expand_glob(dir / "?/[x].bin") == std::vector<std::string>{dir / "*/x.bin", dir / "1/x.bin"});
}

TEST_CASE("a path that names no shard gets the pattern that does") {
    TemporaryDirectory dir;
    write_shard<uint16_t>(dir / "val_000000.bin", counting(0, 5));
    write_shard<uint16_t>(dir / "train_000000.bin", counting(0, 5));
    write_shard<uint16_t>(dir / "train_000001.bin", counting(0, 5));
    make_file(dir / "atrain_.bin", "no shard");
    const std::string train = "the directory has train_000000.bin: use '" + dir.path.string() + "/*train_*.bin'";
    check_error(ExitCode::bad_data, {"no file matches", train}, [&] { ShardSet({dir / "*_train.bin"}); });
    check_error(ExitCode::bad_data, {"is a directory", train}, [&] { ShardSet({dir.path.string()}); });
    check_error(ExitCode::bad_data, {"val_000000.bin: use '" + dir.path.string() + "/*val_*.bin'"},
                [&] { ShardSet({dir / "fineweb_val_*.bin"}); });
    TemporaryDirectory shakespeare;
    write_shard<uint16_t>(shakespeare / "tiny_train.bin", counting(0, 5));
    check_error(ExitCode::bad_data, {"use '" + shakespeare.path.string() + "/tiny_train.bin'"},
                [&] { ShardSet({shakespeare / "train_*.bin"}); });
    for (const std::string& text :
         {std::string("Call me"), std::string(5000, 'x'), std::string("Gr\xc3\xbc\xc3\x9f\n")})
        check_error(ExitCode::bad_data, {"looks like text", "`python3 -m data.prepare text`"},
                    [&] { ShardSet({make_file(dir / "book.txt", text)}); });
}

TEST_CASE("samples of one and several shards, uint16") {
    TemporaryDirectory dir;
    write_shard<uint16_t>(dir / "s0.bin", counting(0, 11));   // T=5: 2 samples exactly
    write_shard<uint16_t>(dir / "s1.bin", counting(11, 10));  // 1 sample, 4 tokens unused
    write_shard<uint16_t>(dir / "s2.bin", counting(21, 6));   // 1 sample
    write_shard<uint16_t>(dir / "s3.bin", {});
    const ShardSet set({dir / "s*.bin"});
    CHECK(set.shards() == 4);
    CHECK(set.token_bytes() == 2);
    CHECK(set.total_tokens() == 27);
    CHECK(set.samples(5) == 4);
    CHECK(set.samples(1) == 10 + 9 + 5);

    const int first_token[] = {0, 5, 11, 21};
    for (int sample = 0; sample < 4; ++sample) {
        std::vector<int32_t> out(7, -7);
        set.read_sample(sample, 5, out.data(), kAnyVocab);
        for (int i = 0; i <= 5; ++i) CHECK(out[i] == first_token[sample] + i);
        CHECK(out[6] == -7);  // T+1 tokens, not more
    }
    int32_t out[6];
    check_error(ExitCode::failure, {"sample 4"}, [&] { set.read_sample(4, 5, out, kAnyVocab); });
    check_error(ExitCode::failure, {"sample -1"}, [&] { set.read_sample(-1, 5, out, kAnyVocab); });
}

TEST_CASE("uint32 shards keep large ids") {
    TemporaryDirectory dir;
    write_shard<uint32_t>(dir / "a.bin", {1, 128000, 70000, 0x7fffffff, 5});
    const ShardSet set({dir / "a.bin"});
    CHECK(set.token_bytes() == 4);
    int32_t out[5];
    set.read_sample(0, 4, out, kAnyVocab);
    CHECK(std::vector<int32_t>(out, out + 5) == std::vector<int32_t>{1, 128000, 70000, 0x7fffffff, 5});
}

TEST_CASE("random tokens: from the whole vocabulary in either width, and equal for equal seeds") {
    const auto tokens_of = [](int vocab, uint64_t seed) {
        const ShardSet set = ShardSet::random(vocab, 4097, seed);
        CHECK(set.token_bytes() == (vocab > 65536 ? 4 : 2));
        CHECK(set.samples(1024) == 4);
        std::vector<int32_t> tokens(4097);
        for (int i = 0; i < 4; i++) set.read_sample(i, 1024, &tokens[static_cast<size_t>(i) * 1024], vocab);
        return tokens;
    };
    for (const int vocab : {1, 50257, 65536, 65537, 1 << 30}) {
        CAPTURE(vocab);
        const std::vector<int32_t> tokens = tokens_of(vocab, 7);
        CHECK(tokens == tokens_of(vocab, 7));
        CHECK((tokens == tokens_of(vocab, 8)) == (vocab == 1));
        double mean = 0;  // within 8 deviations of the mean of 4097 draws
        for (const int32_t token : tokens) mean += (token + 0.5) / vocab / 4097;
        CHECK(std::fabs(mean - 0.5) < 8 / std::sqrt(12 * 4097.0));
    }
}

TEST_CASE("no sample of T tokens is an error") {
    TemporaryDirectory dir;
    write_shard<uint16_t>(dir / "a.bin", counting(0, 64));
    const ShardSet set({dir / "a.bin"});
    CHECK(set.samples(63) == 1);
    check_error(ExitCode::bad_data, {"T=64", "65 tokens", "the longest has 64"}, [&] { set.samples(64); });
    check_error(ExitCode::bad_flags, {"T=0"}, [&] { set.samples(0); });
}

TEST_CASE("malformed files are refused with what is wrong") {
    TemporaryDirectory dir;
    const std::string path = dir / "bad.bin";
    const auto refused = [&](const std::string& content, const std::vector<std::string>& words) {
        make_file(path, content);
        check_error(ExitCode::bad_data, words, [&] { ShardSet({path}); });
    };
    const std::string ten(20, 'x');
    make_file(path, shard_header(20240520, 1, 10) + ten);
    CHECK_NOTHROW(ShardSet({path}));
    refused("", {path, "0 bytes"});
    refused(std::string(1023, '\0'), {"1023", "1024"});
    refused(shard_header(20240521, 1, 10) + ten, {"magic is 20240521", "20240520", "20240801"});
    refused(shard_header(20240326, 3, 10) + ten, {"model checkpoint"});
    refused("BIN.TOK\n" + std::string(2000, '\0'), {"llmq"});
    refused(shard_header(20240520, 7, 10) + ten, {"version 7"});
    refused(shard_header(20240801, 1, 5) + ten, {"version 1"});
    refused(shard_header(20240520, 1, -3), {"claims -3 tokens"});
    refused(shard_header(20240520, 1, 10) + ten.substr(1), {"truncated", "1044", "1043"});
    refused(shard_header(20240520, 1, 10) + ten + "y", {"too long", "1044", "1045"});
    refused(shard_header(20240801, 7, 10) + ten, {"truncated", "1064", "1044"});
    check_error(ExitCode::bad_data, {"is a directory", "no shards are in it"}, [&] { ShardSet({"/proc/self"}); });
    check_error(ExitCode::bad_data, {"at least one"}, [&] { ShardSet(std::vector<std::string>{}); });
}

TEST_CASE("shards of one set have one width and are named once, under whatever path") {
    TemporaryDirectory dir;
    write_shard<uint16_t>(dir / "a.bin", counting(0, 9));
    write_shard<uint32_t>(dir / "b.bin", {1, 2, 3});
    check_error(ExitCode::bad_data, {dir / "b.bin", dir / "a.bin", "width"}, [&] { ShardSet({dir / "*.bin"}); });
    std::filesystem::create_symlink(dir / "a.bin", dir / "soft_link");
    std::filesystem::create_hard_link(dir / "a.bin", dir / "hard_link");
    std::filesystem::create_directory_symlink(dir / ".", dir / "linked");
    for (const char* again : {"a*.bin", "soft_link", "hard_link", "linked/a.bin", "./a.bin"}) {
        CAPTURE(again);
        check_error(ExitCode::bad_data, {dir / "a.bin", "twice"}, [&] { ShardSet({dir / "a.bin", dir / again}); });
    }
    std::filesystem::copy_file(dir / "a.bin", dir / "copy");
    CHECK_NOTHROW(ShardSet({dir / "a.bin", dir / "copy"}));
}

TEST_CASE("all shards of all sets come from one tokenizer, as far as their sidecars say") {
    TemporaryDirectory dir;
    const std::string none, gpt2 = R"({"tokenizer": "gpt2"})";
    struct Case {
        std::array<std::string, 3> sidecars;  // two shards of a set, and one of another set
        std::vector<std::string> words;       // of the refusal; none: they fit together
    };
    const std::vector<Case> cases = {
        {{none, none, none}, {}},
        {{gpt2, none, gpt2}, {}},
        {{gpt2, none, R"({"tokenizer": "gpt2", "vocab": 50257, "end_token": 50256})"}, {}},
        {{gpt2, R"({"tokenizer": "bytes"})", none}, {"b.bin and", "a.bin", "tokenizer bytes and gpt2"}},
        {{gpt2, none, R"({"tokenizer": "bytes"})"}, {"c.bin and", "a.bin", "tokenizer bytes and gpt2"}},
        {{none, gpt2, R"({"tokenizer": "bytes"})"}, {"c.bin and", "b.bin"}},
        {{R"({"tokenizer": "x", "tokenizer_hash": "a"})", gpt2, none}, {"tokenizer gpt2 and x"}},
        {{R"({"tokenizer": "x", "tokenizer_hash": "a"})", none, R"({"tokenizer": "x", "tokenizer_hash": "b"})"},
         {"tokenizer_hash b and a"}},
        {{R"({"tokenizer": "x", "tokenizer_hash": "a"})", none, R"({"tokenizer": "y", "tokenizer_hash": "a"})"}, {}},
        {{R"({"vocab": 300})", R"({"vocab": 301})", none}, {"vocab 301 and 300"}},
        {{R"({"vocab": 300})", none, R"({"vocab": 301})"}, {"vocab 301 and 300"}},
        {{R"({"end_token": 0})", none, R"({"end_token": 1})"}, {"end_token 1 and 0"}},
        {{gpt2, none, R"({"end_token": 1})"}, {"end_token 1 and 50256"}},
        {{none, none, R"({"end_token": 1})"}, {}},  // llm.c's end token is a guess, not what a sidecar says
    };
    for (const Case& c : cases) {
        for (int i = 0; i < 3; i++) {
            const std::string path = write_shard(dir / fmt::format("{}.bin", "abc"[i]), counting(i, 9));
            std::filesystem::remove(path + ".json");
            if (!c.sidecars[i].empty()) make_file(path + ".json", c.sidecars[i]);
        }
        const auto open = [&] {
            const ShardSet first({dir / "[ab].bin"}), second({dir / "c.bin"});
            std::vector<const TokenFile*> files;
            first.add_to(files);
            second.add_to(files);
            require_one_tokenizer(files);
        };
        CAPTURE(c.sidecars[0] + c.sidecars[1] + c.sidecars[2]);
        if (c.words.empty())
            CHECK_NOTHROW(open());
        else
            check_error(ExitCode::bad_data, c.words, open);
    }
}

TEST_CASE("a set shares the shards of another one, linked or copied") {
    TemporaryDirectory dir;
    write_shard(dir / "a.bin", counting(0, 9));
    write_shard(dir / "b.bin", counting(5, 9));
    std::filesystem::create_hard_link(dir / "a.bin", dir / "link.bin");
    const std::string copy = write_shard(dir / "copy.bin", counting(5, 9));
    write_shard(dir / "longer.bin", counting(5, 10));
    const ShardSet set({dir / "[ab].bin"});
    CHECK(set.shared_file(ShardSet({dir / "link.bin"})) == dir / "link.bin");
    CHECK(set.shared_file(ShardSet({copy})) == copy);
    CHECK(set.shared_file(ShardSet({dir / "longer.bin"})) == "");
    CHECK(set.copied_file() == "");
    const ShardSet copied({dir / "[bc]*.bin"});
    CHECK(copied.copied_file() == copy);
}

TEST_CASE("a sidecar's checksum is that of its tokens") {
    TemporaryDirectory dir;
    const std::string path = write_shard(dir / "a.bin", std::vector<uint16_t>{'a', 'b'});
    const auto check = [&](const std::string& checksum) {
        make_file(path + ".json", fmt::format(R"({{"checksum": "sha256:{}"}})", checksum));
        ShardSet({path}).check_checksums();
    };
    // printf 'a\0b\0' | sha256sum
    CHECK_NOTHROW(check("8fb20ef63ced4145fc2e983ffe597d1dcff39154c3bf21f0fa9dde6a0c50fdc9"));
    check_error(ExitCode::bad_data, {path, "the checksum of other tokens"}, [&] { check(std::string(64, '0')); });
}

TEST_CASE("a sidecar's vocabulary is one that its tokens can have") {
    TemporaryDirectory dir;
    const std::string narrow = write_shard(dir / "a.bin", counting(0, 9));
    const std::string wide = write_shard(dir / "b.bin", std::vector<uint32_t>{1, 2, 3});
    const auto open = [&](const std::string& path, int64_t vocab) {
        make_file(path + ".json", fmt::format(R"({{"vocab": {}}})", vocab));
        ShardSet({path});
    };
    for (const auto& [path, vocab] : std::vector<std::pair<std::string, int64_t>>{
             {narrow, 1}, {narrow, 65536}, {wide, 65537}, {wide, kMostTokenIds}})
        CHECK_NOTHROW(open(path, vocab));
    for (const auto& [path, vocab] : std::vector<std::pair<std::string, int64_t>>{{narrow, 0},
                                                                                  {narrow, -1},
                                                                                  {narrow, 65537},
                                                                                  {wide, 0},
                                                                                  {wide, kMostTokenIds + 1},
                                                                                  {wide, 8388608},
                                                                                  {wide, 1000000000000}})
        check_error(ExitCode::bad_data, {path + ".json says a vocabulary of " + std::to_string(vocab) + " ids"},
                    [&] { open(path, vocab); });
}

// Writes a token into a shard of 2-byte tokens.
static void change(const std::string& path, int64_t token, uint16_t value) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(1024 + 2 * token);
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST_CASE("fingerprint: any token of a small set, blocks all over a large one") {
    TemporaryDirectory dir;
    const std::string small = write_shard(dir / "a.bin", counting(0, 40000)), large = dir / "b.bin";
    make_file(large, shard_header(20240520, 1, 1 << 25));
    std::filesystem::resize_file(large, 1024 + 2 * (int64_t{1} << 25));  // zeros that take no room
    for (const auto& [path, tokens] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
             {small, {0, 1, 20000, 32767, 32768, 39999}},
             {large, {0, 8192, 1 << 24, (1 << 24) + 4095, 3 << 23, (1 << 25) - 1}}}) {
        const uint64_t before = ShardSet({path}).fingerprint(), ends = ShardSet({path}).fingerprint_of_ends();
        CHECK(before == ShardSet({path}).fingerprint());
        for (const int64_t token : tokens) {
            CAPTURE(token);
            change(path, token, 60000);
            CHECK(ShardSet({path}).fingerprint() != before);
            change(path, token, path == small ? static_cast<uint16_t>(token) : 0);
            CHECK(ShardSet({path}).fingerprint() == before);
        }
        change(path, tokens[2], 60000);
        CHECK((ShardSet({path}).fingerprint_of_ends() == ends) == (path == large));
        change(path, tokens[2], path == small ? static_cast<uint16_t>(tokens[2]) : 0);
    }
    // A set of several patterns, and the sidecars.
    const std::string other = write_shard(dir / "c.bin", counting(7, 50));
    CHECK(ShardSet({small, other}).fingerprint() != ShardSet({other, small}).fingerprint());
    const ShardSet both({small, other});
    CHECK(both.fingerprints_by_pattern().size() == 2);
    make_file(other + ".json", R"({"end_token": 3})");
    CHECK(both.sidecars_fingerprint() != ShardSet({small, other}).sidecars_fingerprint());
    CHECK(both.fingerprint() == ShardSet({small, other}).fingerprint());
}

TEST_CASE("fingerprint of the ends: the value in checkpoints of version 0.1.0") {
    TemporaryDirectory dir;
    std::vector<uint16_t> tokens;
    for (int64_t i = 0; i < 70000; i++) tokens.push_back(static_cast<uint16_t>((i * 7919 + i * i) % 50257));
    CHECK(ShardSet({write_shard(dir / "a.bin", tokens)}).fingerprint_of_ends() == 0x83eaff361be578e8);
}

TEST_CASE("sidecars: read, absent, partial, contradicting, broken") {
    TemporaryDirectory dir;
    const std::string path = write_shard<uint16_t>(dir / "a.bin", counting(0, 9));
    const Sidecar none = ShardSet({path}).sidecar();
    CHECK_FALSE(
        (none.tokenizer || none.vocab || none.max_token || none.documents || none.tokens || none.entropy_floor));

    make_file(path + ".json", R"({"tokenizer": "bytes", "vocab": 257, "max_token": 8, "documents": 1, "tokens": 9,
                                   "checksum": "sha256:00", "entropy_floor": 1.0625, "note": [1, 2]})");
    const Sidecar full = ShardSet({path}).sidecar();
    CHECK(full.tokenizer == "bytes");
    CHECK(full.vocab == 257);
    CHECK(full.max_token == 8);
    CHECK(full.documents == 1);
    CHECK(full.tokens == 9);
    CHECK(full.entropy_floor == 1.0625);
    CHECK_FALSE(full.bytes.has_value());

    make_file(path + ".json", R"({"vocab": 300, "entropy_floor": null})");
    const Sidecar partial = ShardSet({path}).sidecar();
    CHECK(partial.vocab == 300);
    CHECK_FALSE(partial.entropy_floor.has_value());

    make_file(path + ".json", R"({"tokens": 10})");
    check_error(ExitCode::bad_data, {"a.bin.json", "10 tokens", "has 9"}, [&] { ShardSet({path}); });
    make_file(path + ".json", R"({"tokens": )");
    check_error(ExitCode::bad_data, {"a.bin.json", "not valid"}, [&] { ShardSet({path}); });
    for (const char* tokens : {"\"nine\"", "9.5", "9e40", "18446744073709551625"}) {
        CAPTURE(tokens);
        make_file(path + ".json", fmt::format(R"({{"tokens": {}}})", tokens));
        check_error(ExitCode::bad_data, {"a.bin.json", "not valid", "tokens is"}, [&] { ShardSet({path}); });
    }
}

TEST_CASE("the token that begins documents: the sidecar's, its tokenizer's, or llm.c's") {
    const TemporaryDirectory dir;
    const std::string path = write_shard(dir / "a.bin", counting(0, 100));
    const auto end_token = [&](const std::string& sidecar) {
        make_file(path + ".json", sidecar);
        return ShardSet({path}).end_token();
    };
    CHECK(ShardSet({path}).end_token() == 50256);
    CHECK(ShardSet({write_shard(dir / "wide.bin", std::vector<uint32_t>{1, 2, 3})}).end_token() == 128000);
    CHECK(end_token(R"({"tokenizer": "bytes"})") == 256);
    CHECK(end_token(R"({"tokenizer": "gpt2"})") == 50256);
    CHECK(end_token(R"({"tokenizer": "mine.json"})") == std::nullopt);
    CHECK(end_token(R"({"tokenizer": "mine.json", "end_token": 3})") == 3);
    CHECK(end_token(R"({"end_token": 0})") == 0);
}

TEST_CASE("bytes per token: the mean over all shards, if every sidecar has them") {
    TemporaryDirectory dir;
    write_shard<uint16_t>(dir / "a.bin", counting(0, 10));
    write_shard<uint16_t>(dir / "b.bin", counting(0, 30));
    const std::string set = dir / "*.bin";
    CHECK_FALSE(ShardSet({set}).bytes_per_token().has_value());
    make_file(dir / "a.bin.json", R"({"bytes": 50})");
    CHECK_FALSE(ShardSet({set}).bytes_per_token().has_value());
    make_file(dir / "b.bin.json", R"({"bytes": 130})");
    CHECK(ShardSet({set}).bytes_per_token() == 4.5);
    make_file(dir / "b.bin.json", R"({"bytes": 130, "documents": 4})");  // tokens that begin documents have no bytes
    CHECK(ShardSet({set}).bytes_per_token() == 5);
}

TEST_CASE("check_vocabulary scans without sidecars and names shard, position, id and vocabulary") {
    TemporaryDirectory dir;
    std::vector<uint16_t> tokens(600000, 7);  // more than one read of the scan
    tokens[599998] = 50257;
    write_shard<uint16_t>(dir / "s0.bin", {1, 2, 3});
    write_shard<uint16_t>(dir / "s1.bin", tokens);
    write_shard<uint16_t>(dir / "s2.bin", {4, 5, 6});
    const ShardSet set({dir / "s*.bin"});
    CHECK_NOTHROW(set.check_vocabulary(50258));
    check_error(ExitCode::bad_data, {dir / "s1.bin", "token 599998", "id 50257", "50257 ids"},
                [&] { set.check_vocabulary(50257); });
    CHECK_NOTHROW(set.check_vocabulary(50257, 1000));  // large set: the loaders check the middle
    check_error(ExitCode::bad_data, {dir / "s2.bin", "token 2", "id 6"}, [&] { set.check_vocabulary(6, 1000); });
    check_error(ExitCode::bad_data, {dir / "s0.bin", "token 0", "id 1"}, [&] { set.check_vocabulary(1, 1000); });
}

TEST_CASE("without_token names the first shard of a pattern that lacks the token where it is looked for") {
    const TemporaryDirectory dir;
    write_shard<uint16_t>(dir / "a0.bin", {7, 1, 2, 7});
    write_shard<uint16_t>(dir / "a1.bin", {1, 2});
    write_shard<uint16_t>(dir / "b0.bin", {1, 2, 3, 7});
    const ShardSet set({dir / "a*.bin", dir / "b*.bin"});
    CHECK(set.without_token(7) == "");
    CHECK(set.without_token(7, 3) == dir / "b0.bin");
    CHECK(set.without_token(3) == dir / "a0.bin");
    CHECK(set.without_token(70000) == dir / "a0.bin");
}

TEST_CASE("check_vocabulary trusts a sidecar's largest id") {
    TemporaryDirectory dir;
    const std::string path = write_shard<uint16_t>(dir / "a.bin", {1, 9, 3});
    make_file(path + ".json", R"({"max_token": 3})");  // a lie, which shows that nothing was scanned
    CHECK_NOTHROW(ShardSet({path}).check_vocabulary(5));
    make_file(path + ".json", R"({"max_token": 9})");
    check_error(ExitCode::bad_data, {path, "token 1", "id 9", "9 ids"}, [&] { ShardSet({path}).check_vocabulary(9); });
    make_file(path + ".json", R"({"max_token": 99})");
    check_error(ExitCode::bad_data, {path, "99", "50"}, [&] { ShardSet({path}).check_vocabulary(50); });
}

TEST_CASE("read_sample refuses ids outside the vocabulary, also those beyond int32") {
    TemporaryDirectory dir;
    write_shard<uint32_t>(dir / "a.bin", {1, 2, 3, 4, 0xffffffffu});
    const ShardSet set({dir / "a.bin"});
    int32_t out[3];
    CHECK_NOTHROW(set.read_sample(0, 2, out, 4));
    check_error(ExitCode::bad_data, {dir / "a.bin", "token 4", "id 4294967295", "at least 4294967296"},
                [&] { set.read_sample(1, 2, out, 0x7fffffff); });
    check_error(ExitCode::bad_data, {"token 2", "id 3", "3 ids"}, [&] { set.read_sample(0, 2, out, 3); });
}

TEST_CASE("a shard cut after opening is an error, not old memory") {
    TemporaryDirectory dir;
    const std::string path = write_shard<uint16_t>(dir / "a.bin", counting(0, 100));
    const ShardSet set({path});
    std::filesystem::resize_file(path, 1024 + 2 * 50);
    int32_t out[11];
    CHECK_NOTHROW(set.read_sample(3, 10, out, kAnyVocab));
    check_error(ExitCode::bad_data, {path, "ends at byte"}, [&] { set.read_sample(8, 10, out, kAnyVocab); });
}

TEST_CASE("a shard that was replaced after opening is an error, not other tokens") {
    for (const int shards : {1, 300}) {  // the last one is kept open or not
        CAPTURE(shards);
        TemporaryDirectory dir;
        for (int i = 1; i < shards; i++) write_shard<uint16_t>(dir / fmt::format("a{:03}.bin", i), counting(0, 11));
        const std::string path = write_shard<uint16_t>(dir / "b.bin", counting(0, 101));
        const ShardSet set({dir / "*.bin"});
        int32_t out[11];
        const auto read = [&] {
            set.read_sample(set.samples(10) - 1, 10, out, kAnyVocab);
            CHECK(out[0] == 90);
        };
        const auto write = [&](const std::string& name, int first) {
            write_shard<uint16_t>(dir / name, counting(first, 101));
            // The clock of files may be as slow as this test is fast.
            std::filesystem::last_write_time(dir / name,
                                             std::filesystem::file_time_type(std::chrono::hours(first + 1)));
        };
        write("b.bin", 0);  // the same content
        CHECK_NOTHROW(read());
        write("b.bin", 1);
        CHECK_THROWS_AS(read(), ReadError);
        check_error(ExitCode::bad_data, {path, "was changed or replaced during the run"}, read);
        write("b.bin", 0);
        CHECK_NOTHROW(read());
        write("new", 1);
        std::filesystem::rename(dir / "new", path);
        if (shards == 1)
            CHECK_NOTHROW(read());  // the open file is still the old one
        else
            CHECK_THROWS_AS(read(), ReadError);
    }
}

TEST_CASE("sets of more shards than are kept open, moved around") {
    TemporaryDirectory dir;
    for (int i = 0; i < 300; ++i) write_shard<uint16_t>(dir / fmt::format("s{:03}.bin", i), counting(3 * i, 3));
    ShardSet first({dir / "s*.bin"});
    ShardSet set = std::move(first);
    CHECK(set.samples(2) == 300);
    const auto open_files = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    CHECK(open_files < 290);
    for (int i = 0; i < 300; ++i) {
        int32_t out[3];
        set.read_sample(i, 2, out, kAnyVocab);
        CHECK(out[0] == 3 * i);
        CHECK(out[2] == 3 * i + 2);
    }
    set = ShardSet({dir / "s00*.bin"});
    CHECK(set.shards() == 10);
    CHECK(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}) < open_files - 200);
}

// Writes a sparse file with `marks` as its last tokens.
template <typename Token>
static std::string sparse_shard(const std::string& path, int32_t magic, int32_t version, int32_t tokens,
                                const std::vector<Token>& marks) {
    make_file(path, shard_header(magic, version, tokens));
    const int64_t size = 1024 + int64_t{tokens} * static_cast<int64_t>(sizeof(Token));
    std::filesystem::resize_file(path, static_cast<uintmax_t>(size));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const int64_t bytes = static_cast<int64_t>(marks.size() * sizeof(Token));
    file.seekp(size - bytes);
    file.write(reinterpret_cast<const char*>(marks.data()), bytes);
    return path;
}

TEST_CASE("shards beyond 2 GiB and 4 GiB (sparse)") {
    TemporaryDirectory dir;
    const int32_t tokens = 1300000000;  // 2.6e9 bytes as uint16, 5.2e9 as uint32
    const int T = 4;
    int32_t out[T + 1];
    for (const bool wide : {false, true}) {
        const std::string path = dir / (wide ? "wide.bin" : "narrow.bin");
        if (wide)
            sparse_shard<uint32_t>(path, 20240801, 7, tokens, {10, 11, 12, 13, 14, 15, 16});
        else
            sparse_shard<uint16_t>(path, 20240520, 1, tokens, {10, 11, 12, 13, 14, 15, 16});
        const ShardSet set({path});
        CHECK(set.total_tokens() == tokens);
        CHECK(set.samples(T) == (tokens - 1) / T);
        set.read_sample(set.samples(T) - 1, T, out, kAnyVocab);  // covers tokens -8..-4 from the end: 0 10 11 12 13
        CHECK(std::vector<int32_t>(out, out + T + 1) == std::vector<int32_t>{0, 10, 11, 12, 13});
    }
    // Two shards: the second one's samples lie beyond 2^31 in the set as well.
    write_shard<uint16_t>(dir / "narrow2.bin", counting(100, 9));
    const ShardSet both({dir / "narrow*.bin"});
    both.read_sample(both.samples(T) - 1, T, out, kAnyVocab);
    CHECK(out[0] == 104);
    CHECK(out[4] == 108);
}
