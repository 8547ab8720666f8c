// The table of the files that a run writes: content decides, not the name, and nothing else is replaced or deleted.
#include "llmc/log/run_files.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "llmc/log/run_directory.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;
namespace fs = std::filesystem;

namespace {

const std::string kEvents = "tensorboard/events.out.tfevents.1764345600.0123456789abcdef-20261128T160000Z-0";

struct Example {
    std::string name;
    std::vector<std::string> own, foreign;
};
// Every name in the table. What a run records is its own by the record in run.json.
const std::vector<Example> kExamples = {
    {"run.json",
     {"{\n  \"run_id\": \"7\",\n  \"config\": {}}\n", R"({"run_id":"7"})", R"({"resumed": [{"step": 2}]})", ""},
     {R"({"name": "my bench", "run_id": 3})", "[]", "{}", "run_id", "\n"}},
    {"metrics.jsonl",
     {"{\"step\":0,\"val_loss\":11.0}\n", "{\"step\":1,\"loss\":4", ""},
     {"{\"epoch\":1}\n", "{\"global_step\":1}\n", "step,loss\n1,2\n", " {\"step\":1}\n"}},
    {"main.log", {"s:0 tel:11.0000\n", "s:1 trl:4.5 lr:0.001 norm:1.0\n", ""}, {"starting\n", "s: a\n", "ls:1\n"}},
    {"check.json",
     {"{\n \"gelu bf16\": {\n  \"family\": \"gelu\"", "{}\n", ""},
     {R"({"ok": true})", R"({"family": "gelu"})", "[]", "nothing"}},
    {"trace-rank0.json",
     {"{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":1,\"traceEvents\":[\n"},
     {"{\"traceEvents\":[]}", "{}", R"({"displayTimeUnit":"ms","traceEvents":[]})"}},
    {"watchdog_rank00001.json", {"{\n \"backend\": \"tcp\",\n"}, {R"({"rank": 1, "backend": "tcp"})", "{}"}},
    {"decay", {"2000\n", "2000", "7 \n"}, {"soon\n", " ", "2000 steps\n", "-5\n", "2000\n300\n", "0.5\n"}},
    {"lock", {"process 12 on node7\n", ""}, {"12\n", "{}", "process on node7\n", "pid process 12 on node7"}},
    {kEvents,
     {std::string(12, '\0') + "\tsomewhen\x1a\rbrain.Event:2, and so on"},
     {std::string(60, '.') + "brain.Event:2", "notes"}},
};
const char* const kRecorded[] = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer.bin",
                                 "tokenizer.tiktoken"};
const char* const kOtherNames[] = {"run.json.bak",
                                   "my-run.json",
                                   "trace-rank.json",
                                   "trace-rank0.json.gz",
                                   "trace-rank-notes.txt",
                                   "decay.txt",
                                   "lock.txt",
                                   "tokenizer.model",
                                   "tokenizer_config.json",
                                   "tensorboard/events.out.tfevents.1764345600.node7.123.0",
                                   "tensorboard/notes.txt",
                                   "tensorboard/old/events",
                                   "before-1/run.json"};

struct Place : TemporaryDirectory {
    void put(const std::string& name, const std::string& text) const {
        fs::create_directories(fs::path(*this / name).parent_path());
        make_file(*this / name, text);
    }
    bool is_ours(const std::string& name) const { return is_run_file(path.string(), name); }
    // run.json of a run that has written these files.
    void record(const std::vector<std::string>& names) const {
        std::string text = "{\"run_id\": \"7\", \"wrote\": {";
        for (const std::string& name : names)
            text += (name == names[0] ? "\"" : ", \"") + name + "\": \"" + file_fingerprint(*this / name) + "\"";
        put("run.json", text + "}}");
    }
};

}  // namespace

TEST_CASE("run files: the content decides whether a run wrote a file") {
    for (const Example& example : kExamples) {
        CAPTURE(example.name);
        Place place;
        for (const std::string& text : example.own) {
            CAPTURE(text);
            place.put(example.name, text);
            CHECK(place.is_ours(example.name));
            // A link to such a file is no run's.
            fs::rename(place / example.name, place / "elsewhere");
            fs::create_symlink(place / "elsewhere", place / example.name);
            CHECK(!place.is_ours(example.name));
            fs::remove(place / example.name);
        }
        for (const std::string& text : example.foreign) {
            CAPTURE(text);
            place.put(example.name, text);
            CHECK(!place.is_ours(example.name));
        }
        fs::remove(place / example.name);
        fs::create_directories(place / example.name);
        CHECK(!place.is_ours(example.name));
        fs::remove(place / example.name);
        REQUIRE(::mkfifo((place / example.name).c_str(), 0600) == 0);  // reading it would wait forever
        CHECK(!place.is_ours(example.name));
    }
}

TEST_CASE("run files: model, configuration and tokenizers are the run's if run.json records their content") {
    for (const std::string name : kRecorded) {
        CAPTURE(name);
        Place place;
        place.put(name, std::string(100'000, 'x') + "end");
        CHECK(!place.is_ours(name));  // without a run.json
        place.record({"model.safetensors.index.json"});
        CHECK(!place.is_ours(name));
        place.record({name});
        CHECK(place.is_ours(name));
        for (const std::string& other : {std::string(100'000, 'x') + "enx", "y" + std::string(99'999, 'x') + "end",
                                         std::string(99'999, 'x') + "end"}) {
            place.put(name, other);
            CHECK(!place.is_ours(name));
        }
        place.put("run.json", "{\"run_id\": \"7\", \"wrote\": {\"" + name + "\": \"\"}}");
        CHECK(place.is_ours(name));  // the run died while it wrote it
        // A run of an earlier version recorded nothing. Its copy of a tokenizer cannot be told from another file.
        place.put("run.json", R"({"run_id": "7"})");
        CHECK(place.is_ours(name) == !name.starts_with("tokenizer"));
    }
}

TEST_CASE("run files: deleting and moving take the run's own files alone") {
    const std::vector<RunFileFate> fates = {RunFileFate::moves, RunFileFate::ends};
    for (const bool own : {true, false}) {
        CAPTURE(own);
        Place place;
        for (const char* name : kOtherNames) place.put(name, "mine");
        for (const Example& example : kExamples) place.put(example.name, (own ? example.own : example.foreign)[0]);
        for (const char* name : kRecorded) place.put(name, "weights");
        if (own) place.record({kRecorded, kRecorded + 5});
        fs::create_directories(place / "target");
        move_run_files(place.path.string(), {RunFileFate::moves}, place / "target");
        CHECK(fs::exists(place / ("target/" + kEvents)) == own);
        delete_run_files(place.path.string(), fates);
        for (const Example& example : kExamples)
            CHECK(fs::exists(place / example.name) == (!own || example.name == "lock"));
        for (const std::string name : kRecorded)
            CHECK(fs::exists(place / name) == (!own || name.starts_with("tokenizer")));
        for (const char* name : kOtherNames) CHECK(read_file(place / name) == "mine");
        CHECK(fs::exists(place / "target/model.safetensors") == own);
    }
    // A link to somebody's directory of events is not followed, and a run's own directory does not remain.
    Place place;
    place.put(kEvents, kExamples.back().own[0]);
    fs::rename(place / "tensorboard", place / "somebodys");
    fs::create_directory_symlink(place / "somebodys", place / "tensorboard");
    delete_run_files(place.path.string(), fates);
    CHECK(!fs::is_empty(place / "somebodys"));
    fs::remove(place / "tensorboard");
    fs::rename(place / "somebodys", place / "tensorboard");
    delete_run_files(place.path.string(), fates);
    CHECK(!fs::exists(place / "tensorboard"));
}
