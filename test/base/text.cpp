// Numbers, durations and words as people read them.
#include "llmc/base/text.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>

using namespace llmc;

TEST_CASE("text: numbers") {
    CHECK(with_commas(0) == "0");
    CHECK(with_commas(999) == "999");
    CHECK(with_commas(1000) == "1,000");
    CHECK(with_commas(1234567890) == "1,234,567,890");
    CHECK(with_commas(-1000) == "-1,000");
    CHECK(with_commas(-100) == "-100");

    CHECK(plural(1, "step") == "1 step");
    CHECK(plural(0, "step") == "0 steps");
    CHECK(plural(2000, "step") == "2,000 steps");
    CHECK(plural(2, "batch") == "2 batches");
    CHECK(format_count(999999) == "999,999");
    CHECK(format_count(1000000) == "1.00 M");
    CHECK(format_count(124475904) == "124 M");
    CHECK(format_count(999600000) == "1.00 B");
    CHECK(format_count(1557611200) == "1.56 B");
    CHECK(format_count(10484736000) == "10.5 B");
    CHECK(format_count(15600000000000) == "15.6 T");
    CHECK(counted(1, "sequence") == "1 sequence");
    CHECK(counted(0, "step") == "0 steps");
    CHECK(counted(20000, "step") == "20,000 steps");
    CHECK(counted(1557611200, "token") == "1.56 B tokens");

    CHECK(format_bytes(0) == "0 B");
    CHECK(format_bytes(1023) == "1023 B");
    CHECK(format_bytes(1024) == "1.0 KiB");
    CHECK(format_bytes((size_t{1} << 20) - 1) == "1.0 MiB");
    CHECK(format_bytes(size_t{5} << 29) == "2.5 GiB");
    CHECK(format_bytes(size_t{3} << 40) == "3.0 TiB");

    CHECK(format_scaled(12) == "12");
    CHECK(format_scaled(1.5) == "1.5");
    CHECK(format_scaled(999.96e3) == "1.0 M");
    CHECK(format_scaled(797815296) == "797.8 M");
    CHECK(format_scaled(9.8e9) == "9.8 G");
}

TEST_CASE("text: durations") {
    CHECK(format_duration(0) == "0:00");
    CHECK(format_duration(31.6) == "0:32");
    CHECK(format_duration(59.7) == "1:00");
    CHECK(format_duration(725) == "12:05");
    CHECK(format_duration(3723) == "1:02:03");
    CHECK(format_duration(2 * 86400 + 3 * 3600 + 4 * 60 + 5) == "2d 03:04");
    CHECK(format_duration(-1) == "?");
    CHECK(format_duration(std::nan("")) == "?");
    CHECK(format_duration(INFINITY) == "?");
}

TEST_CASE("text: NaN loses its sign, numbers do not") {
    char text[16];
    std::snprintf(text, sizeof text, "%f", unsigned_nan(-std::nan("")));
    CHECK(std::string(text) == "nan");
    CHECK(unsigned_nan(-2.5) == -2.5);
    CHECK(unsigned_nan(-INFINITY) == -INFINITY);
}

TEST_CASE("text: edit distance") {
    CHECK(edit_distance("", "") == 0);
    CHECK(edit_distance("abc", "") == 3);
    CHECK(edit_distance("kitten", "sitting") == 3);
    CHECK(edit_distance("warmup", "wramup") == 1);  // neighbours swapped
    CHECK(edit_distance("batch", "bach") == 1);
}

TEST_CASE("text: nearest word") {
    const std::vector<std::string> words = {"--batch", "--total-batch", "--warmup", "--max-steps", "--lr"};
    CHECK(nearest("--bacth", words) == "--batch");
    CHECK(nearest("--totalbatch", words) == "--total-batch");
    CHECK(nearest("--max", words) == "--max-steps");
    CHECK(nearest("--learning-rate-of-adam", words) == std::nullopt);
    CHECK(nearest("a", {"b"}) == std::nullopt);  // every candidate would be near
    CHECK(nearest("steps", {"eps"}) == std::nullopt);
    CHECK(nearest("bacth", {"batch"}) == "batch");
    CHECK(nearest("lastest", {"latest", "auto"}) == "latest");
}

TEST_CASE("text: wrapping and quoting") {
    CHECK(wrap("aa bb cc", 2, 7) == "aa bb\n  cc");
    CHECK(wrap("aa bb cc", 2, 10) == "aa bb cc");
    CHECK(wrap("aaaaaaaaaaaa b", 1, 5) == "aaaaaaaaaaaa\n b");
    CHECK(wrap("", 2, 5) == "");
    CHECK(shell_quote("runs/a-1.json") == "runs/a-1.json");
    CHECK(shell_quote("a b") == "'a b'");
    CHECK(shell_quote("data/*.bin") == "'data/*.bin'");
    CHECK(shell_quote("it's") == "'it'\\''s'");
    CHECK(shell_quote("") == "''");
}

TEST_CASE("text: the pattern behind a list of files") {
    CHECK(pattern_of({"data/train_001.bin", "data/train_002.bin"}) == "data/train_00*.bin");
    CHECK(pattern_of({"a.bin", "b.bin", "cc.bin"}) == "*.bin");
    CHECK(pattern_of({"a/x.bin", "b/x.bin"}) == "*/x.bin");
    CHECK(pattern_of({"aa", "a"}) == "a*");  // a letter cannot be both in the beginning and in the end
    CHECK(pattern_of({"a.bin", "a.bin"}) == "a.bin*");
    CHECK(pattern_of({"x", "y"}) == "data/*.bin");
    CHECK(pattern_of({"", "y"}) == "data/*.bin");
}
