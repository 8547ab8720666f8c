// Tokens of prompts: ids, bytes, and the conversation with data.prepare, whose part a shell script plays here. The real
// one: test/end_to_end/test_run_prompts.py.
#include "llmc/data/encoder.h"

#include "test/data/shard_files.h"

using namespace llmc;
using namespace llmc::test;
using Command = PromptEncoder::Command;

TEST_CASE("prompts of ids and of bytes need no process") {
    for (const char* tokenizer : {"", "bytes", "no such file"}) {
        PromptEncoder encoder(tokenizer, {{"no-such-program"}});
        CHECK(encoder.encode("ids:464,3290") == std::vector<int>{464, 3290});
        CHECK(encoder.encode("ids: 464, 3290 7") == std::vector<int>{464, 3290, 7});
        CHECK(encoder.encode("ids:").empty());
        for (const char* text : {"ids:hello", "ids:4x", "ids:-1", "ids:99999999999"})
            check_error(ExitCode::bad_flags, {"--prompt", "ids:464,3290"}, [&] { encoder.encode(text); });
    }
    PromptEncoder ids("");
    CHECK(ids.encode(" 464  3290") == std::vector<int>{464, 3290});
    for (const char* text : {"hello", "4x", "-1", "99999999999"})
        check_error(ExitCode::bad_flags, {"--prompt", "--tokenizer FILE", "ids:464,3290"}, [&] { ids.encode(text); });
    PromptEncoder bytes("bytes");
    CHECK(bytes.encode("").empty());
    CHECK(bytes.encode("\xc3\xa4 b\xff") == std::vector<int>{0xc3, 0xa4, ' ', 'b', 0xff});
}

namespace {

constexpr double kLong = 60;
constexpr const char* kHello = "echo '{\"vocab\": 9, \"begin\": 1, \"hash\": \"sha256:f\"}'\n";

// A command that runs the script with the arguments of data.prepare.
Command script(const TemporaryDirectory& folder, const std::string& name, const std::string& text) {
    return {"/bin/sh", make_file(folder / name, text)};
}

void fails(const std::vector<Command>& commands, const std::vector<std::string>& words, double patience = kLong) {
    PromptEncoder encoder("t.json", commands, patience);
    check_error(ExitCode::bad_data, words, [&] { encoder.encode("a"); });
}

}  // namespace

TEST_CASE("data.prepare answers prompts") {
    TemporaryDirectory folder;
    const std::string table = make_file(folder / "t.json", "{}"), log = folder / "log";
    const Command good = script(folder, "good",
                                "echo $1 $2 $3 >> " + log + "\n" + kHello +
                                    "while read -r line; do case $line in *bye*) exit 3;; "
                                    "*big*) echo '[3000000000]';; *) echo \"[1, ${#line}]\";; esac; done\n");
    PromptEncoder encoder(table,
                          {{"no-such-program"}, script(folder, "broken", "echo '{\"error\": \"no package\"}'"), good});
    CHECK(encoder.hash().empty());
    CHECK(encoder.encode("abc") == std::vector<int>{1, 5});
    CHECK(encoder.hash() == "sha256:f");
    CHECK(encoder.encode("a\n\"b\"") == std::vector<int>{1, 10});  // on one line
    check_error(ExitCode::bad_flags, {"not valid UTF-8"}, [&] { encoder.encode("\xff"); });
    CHECK(read_file(log) == "encode --tokenizer " + table + "\n");  // one process
    check_error(ExitCode::bad_data, {"--prompt", "[3000000000]"}, [&] { encoder.encode("big"); });
    check_error(ExitCode::bad_data, {"--prompt", "failed with exit code 3"}, [&] { encoder.encode("bye"); });
    CHECK(encoder.encode("abc") == std::vector<int>{1, 5});  // by another process
}

TEST_CASE("data.prepare does not answer") {
    TemporaryDirectory folder;
    int scripts = 0;
    const auto says = [&](const std::string& text) { return script(folder, std::to_string(scripts++), text); };
    fails({{"no-such-program"}}, {"no-such-program cannot be started: No such file", "pip install numpy tiktoken",
                                  "scripts/setup.sh", "ids:464,3290"});
    fails({says("echo '{\"error\": \"t.json has no end\"}'; exit 1")}, {"t.json has no end", "ids:464,3290"});
    fails({says("echo hello")}, {"begins with 'hello'"});
    fails({says("exit 4")}, {"failed with exit code 4"});
    fails({says("true")}, {"ended without an answer"});
    fails({says("exec sleep 1000")}, {"did not answer within 0.1 seconds and was killed"}, 0.1);
    for (const char* answer : {"{\"error\": \"odd\"}", "[1, -2]", "[\"a\"]", "nonsense"})
        fails({says(kHello + std::string("read -r line; echo '") + answer + "'")}, {"answers", answer});
    fails({says(kHello + std::string("exec sleep 1000"))}, {"did not answer within 0.2 seconds"}, 0.2);
}
