// Multiple-choice files: reading them, and every way in which one can be malformed.
#include "llmc/data/choices.h"

#include "test/data/shard_files.h"

using namespace llmc;

namespace {

// Writes a file of these words, using only the format's definition.
std::string write_words(const std::string& path, int32_t examples, const std::vector<uint16_t>& words,
                        int32_t magic = 20240522, int32_t version = 1) {
    return make_file(path, shard_header(magic, version, examples) +
                               std::string(reinterpret_cast<const char*>(words.data()), words.size() * 2));
}

// The same for version 2.
std::string write_wide(const std::string& path, const std::vector<uint32_t>& words) {
    return make_file(path, shard_header(20240522, 2, 1) +
                               std::string(reinterpret_cast<const char*>(words.data()), words.size() * 4));
}

std::vector<std::vector<int32_t>> tokens_of(const Choices& example) {
    std::vector<std::vector<int32_t>> all;
    for (const Choices::Completion& completion : example.completions) {
        CHECK(completion.scored == completion.tokens.size());
        CHECK(completion.length == static_cast<double>(completion.tokens.size()));
        all.push_back(completion.tokens);
    }
    return all;
}

// Two examples of two completions.
const std::vector<uint16_t> kWords = {65535, 22, 0, 1, 2, 1, 7, 1, 8, 1, 9, 65535, 26, 1, 0, 2, 2, 5, 6, 2, 3, 4, 1, 2};

}  // namespace

TEST_CASE("choices: context, completions and label of every example") {
    TemporaryDirectory dir;
    const std::vector<Choices> examples = read_choices(write_words(dir / "a.bin", 2, kWords));
    REQUIRE(examples.size() == 2);
    CHECK(examples[0].label == 1);
    CHECK(examples[0].context == std::vector<int32_t>{7});
    CHECK(tokens_of(examples[0]) == std::vector<std::vector<int32_t>>{{8}, {9}});
    CHECK(examples[1].label == 0);
    CHECK(examples[1].context == std::vector<int32_t>{5, 6});
    CHECK(tokens_of(examples[1]) == std::vector<std::vector<int32_t>>{{3, 4}, {2}});
}

TEST_CASE("choices: version 2 has wide tokens, contexts that differ, and lengths") {
    TemporaryDirectory dir;
    const std::string path = dir / "a.bin";
    // Completions: scored, length, tokens.
    const std::vector<uint32_t> words = {65535, 68, 0, 1, 2, 0, 1, 9, 3, 5, 6, 128000, 2, 4, 3, 7, 6, 8};
    const auto changed = [&](size_t at, uint32_t word) {
        std::vector<uint32_t> other = words;
        other[at] = word;
        other[1] = 4 * static_cast<uint32_t>(other.size());
        return other;
    };
    const std::vector<Choices> examples = read_choices(write_wide(path, changed(0, 65535)));
    REQUIRE(examples.size() == 1);
    CHECK(examples[0].label == 1);
    CHECK(examples[0].context.empty());
    REQUIRE(examples[0].completions.size() == 2);
    const Choices::Completion &first = examples[0].completions[0], &second = examples[0].completions[1];
    CHECK(first.tokens == std::vector<int32_t>{5, 6, 128000});
    CHECK(first.scored == 1);
    CHECK(first.length == 9);
    CHECK(second.tokens == std::vector<int32_t>{7, 6, 8});
    CHECK(second.scored == 2);
    CHECK(second.length == 4);
    CHECK_NOTHROW(check_choices(examples, 128001, 2, path));
    check_error(ExitCode::bad_data, {"token 128000", "vocabulary of 128000"},
                [&] { check_choices(examples, 128000, 2, path); });
    check_error(ExitCode::bad_data, {"example 0 is a sequence of 2 tokens, but -t is 1"},
                [&] { check_choices(examples, 128001, 1, path); });

    const auto check = [&](const std::vector<std::string>& parts, const std::vector<uint32_t>& wrong) {
        write_wide(path, wrong);
        check_error(ExitCode::bad_data, parts, [&] { read_choices(path); });
    };
    check({"completion 0 scores 0 of its 3 tokens after a context of 0"}, changed(6, 0));
    check({"completion 0 scores 3 of its 3 tokens after a context of 0"}, changed(6, 3));
    check({"completion 1 scores 4 of its 3 tokens"}, changed(12, 4));
    check({"completion 1 has the length 0"}, changed(13, 0));
    check({"ends inside"}, changed(14, 0xffffffff));
    check({"says 68 bytes, but has 72"}, words);
    check({"its label is 4294967295"}, changed(3, 0xffffffff));
    const std::vector<Choices> negative = read_choices(write_wide(path, changed(9, 0xffffffff)));
    check_error(ExitCode::bad_data, {"token 4294967295"}, [&] { check_choices(negative, 300, 2, path); });
}

TEST_CASE("choices: files of another kind, and examples that do not fit") {
    TemporaryDirectory dir;
    const std::string path = dir / "a.bin";
    const auto check = [&](const std::vector<std::string>& parts, int32_t examples,
                           const std::vector<uint16_t>& words) {
        write_words(path, examples, words);
        check_error(ExitCode::bad_data, parts, [&] { read_choices(path); });
    };
    const auto one_wrong = [](size_t at, uint16_t word) {
        std::vector<uint16_t> words = kWords;
        words[at] = word;
        return words;
    };
    check({"a.bin", "no examples"}, 0, {});
    check({"example 0", "says 20 bytes, but has 22"}, 2, one_wrong(1, 20));
    check({"example 2", "ends inside"}, 3, kWords);
    check({"after its last example, number 0"}, 1, kWords);
    check({"example 1", "begins with 3 instead of 65535"}, 2, one_wrong(11, 3));
    check({"example 0", "its label is 2, but it has 2 completions"}, 2, one_wrong(3, 2));
    check({"example 0", "has 1 completions"}, 2, one_wrong(4, 1));
    check({"example 0", "completion 0 scores 7 of its 7 tokens after a context of 0"}, 1,
          {65535, 34, 0, 1, 2, 0, 7, 1, 2, 3, 4, 5, 6, 7, 1, 1, 1});
    check({"example 0", "completion 0 scores 0 of its 0 tokens"}, 2, one_wrong(7, 0));
    check({"example 1", "ends inside"}, 2, one_wrong(22, 9));
    make_file(path, "short");
    check_error(ExitCode::bad_data, {"a.bin", "not a file of multiple-choice examples"}, [&] { read_choices(path); });
    write_words(path, 2, kWords, 20240520);
    check_error(ExitCode::bad_data, {"20240520 (a token shard"}, [&] { read_choices(path); });
    write_words(path, 2, kWords, 20240522, 3);
    check_error(ExitCode::bad_data, {"has version 3"}, [&] { read_choices(path); });
    check_error(ExitCode::bad_data, {"cannot open", "nowhere", "hellaswag"}, [&] { read_choices(dir / "nowhere"); });

    const std::vector<Choices> examples = read_choices(write_words(path, 2, kWords));
    CHECK_NOTHROW(check_choices(examples, 10, 3, path));
    check_error(ExitCode::bad_data, {"example 0", "token 9", "vocabulary of 9"},
                [&] { check_choices(examples, 9, 3, path); });
    check_error(ExitCode::bad_data, {"example 1", "3 tokens, but -t is 2", "-t 16"},
                [&] { check_choices(examples, 10, 2, path); });
}
