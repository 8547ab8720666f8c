// The run directory: refusals, contents, and logs that survive full disks and moved files.
#include "llmc/log/run_directory.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/flags/flags.h"
#include "llmc/log/metrics.h"
#include "llmc/log/provenance.h"
#include "llmc/run/start.h"
#include "test/helpers.h"
#include "test/log/example_record.h"

using namespace llmc;
using namespace llmc::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct BegunDirectory : RunDirectory {
    BegunDirectory(const std::string& path, bool overwrite) : RunDirectory(path) {
        require_room(overwrite);
        begin(overwrite);
    }
};

ExitCode code_of(auto call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code();
    }
    return ExitCode::ok;
}

}  // namespace

TEST_CASE("run directory: without one, nothing is written") {
    BegunDirectory run("", false);
    CHECK(!run.active());
    record_step(example(), run);
    record_validation(ValRecord{1, {{"", 1.0f}}}, run);
    run.append({{"a", 1}});
    write_run_json(run, {}, {});
    CHECK(!RunDirectory().active());
}

TEST_CASE("run directory: lines are on disk as soon as they are recorded") {
    TemporaryDirectory base;
    BegunDirectory run(base / "a/b", false);
    CHECK(run.active());
    record_validation(ValRecord{0, {{"", 11.0f}}}, run);
    record_step(example(), run);
    run.append({{"step", 7}, {"fp8", json::array()}});
    record_validation(ValRecord{7, {}}, run);  // nothing to say
    // Each line ends with the time, and with the seconds since the start of the process.
    const std::string lines = read_file(base / "a/b/metrics.jsonl");
    const std::regex times(R"(,"time":"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ","elapsed":\d+\.\d{1,3}\}\n)");
    CHECK(std::regex_replace(lines, times, "}\n") ==
          metrics_line(ValRecord{0, {{"", 11.0f}}}) + "\n" + metrics_line(example()) + "\n{\"step\":7,\"fp8\":[]}\n");
    CHECK(read_file(base / "a/b/main.log") == "s:0 tel:11.0000\n" + main_log_line(example()) + "\n");
}

TEST_CASE("run directory: run.json") {
    TemporaryDirectory base;
    Options options;
    options.train = "data/*.bin";
    options.prompt = "caf\xe9";  // not UTF-8
    options.seed = 18446744073709551615u;
    options.command_line = "train_gpt -i 'data/*.bin'";
    options.precision = Precision::fp8;
    find_flag("kernels")->set(options, "portable");
    resolve(options, {});
    BegunDirectory run(base / "a", false);
    write_run_json(run, options, {4, "NVIDIA H200", "0123456789abcdef", "feedbeef", -1});
    const json file = parse_json(read_file(base / "a/run.json"));
    CHECK(file["world"] == 4);
    CHECK(file["device"] == "NVIDIA H200");
    CHECK(file["command"] == options.command_line);
    CHECK(file["kernels"] == "portable");
    CHECK(file["config"]["kernels"] == "portable");
    CHECK(file["versions"].size() > 4);
    CHECK(file["versions"] == json(versions_json()));
    CHECK(file["model"]["parameters"] == 124439808);
    CHECK(file["config"]["train"] == "data/*.bin");
    CHECK(file["config"]["seed"] == 18446744073709551615u);
    CHECK(file["micro_steps"] == 1);
    CHECK(file["weights_hash"] == "0123456789abcdef");
    CHECK(file["date"].get<std::string>().size() == std::string("2024-01-01T00:00:00Z").size());
    CHECK(!fs::exists(base / "a/run.json.tmp"));
}

TEST_CASE("run directory: a resumed run can add to any run.json") {
    for (const std::string before : {"", "[]", "{\"resumed\": \"yes\"}", "{\"resumed\": [{\"step\": 2}]}"}) {
        CAPTURE(before);
        TemporaryDirectory base;
        BegunDirectory run(base / "a", false);
        std::ofstream(base / "a/run.json") << before;
        RunFacts facts;
        facts.resumed_at = 4;
        write_run_json(run, {}, facts);
        const json file = parse_json(read_file(base / "a/run.json"));
        CHECK(file["resumed"].back()["step"] == 4);
        CHECK(file["resumed"].size() == (before.ends_with("]}") ? 2 : 1));
        CHECK(file["config"]["lr"] == 3e-4);
    }
}

TEST_CASE("run directory: a run is not replaced unless asked") {
    for (const bool weights : {false, true}) {
        TemporaryDirectory base;
        const std::string step = metrics_line(example()) + "\n";
        make_file(base / "metrics.jsonl", step);
        make_file(base / "run.json",
                  R"({"run_id": "7", "first_checkpoint": null, "wrote": {"model.safetensors": ""}})");
        make_file(base / "notes.txt", "mine");
        make_file(base / "decay", "7\n");
        if (weights) make_file(base / "model.safetensors", "old");
        CHECK(code_of([&] { BegunDirectory(base.path.string(), false); }) == ExitCode::bad_flags);
        CHECK(read_file(base / "metrics.jsonl") == step);
        CHECK(!fs::exists(base / "main.log"));
        BegunDirectory run(base.path.string(), true);
        CHECK(read_file(base / "metrics.jsonl") == "");
        for (const char* old : {"model.safetensors", "run.json", "decay"}) CHECK(!fs::exists(base / old));
        CHECK(read_file(base / "notes.txt") == "mine");
    }
    // A directory with other files in it is fine.
    TemporaryDirectory base;
    make_file(base / "notes.txt", "mine");
    CHECK_NOTHROW(BegunDirectory(base.path.string(), false));
}

TEST_CASE("run directory: places that cannot be written") {
    TemporaryDirectory base;
    fs::create_directories(base.path);
    std::ofstream(base / "file") << "x";
    CHECK(code_of([&] { BegunDirectory(base / "file", false); }) == ExitCode::bad_flags);
    CHECK(code_of([&] { BegunDirectory(base / "file/inside", false); }) == ExitCode::bad_flags);
    fs::create_directories(base / "dir/metrics.jsonl/inside");  // cannot be opened as a file
    CHECK(code_of([&] { BegunDirectory(base / "dir", true); }) == ExitCode::bad_flags);
}

namespace {

// Runs in a directory, as require_room() finds them.
struct RunPlace : TemporaryDirectory {
    RunPlace() { fs::create_directories(path); }
    void put(const char* name, const std::string& text) const {
        fs::create_directories(fs::path(*this / name).parent_path());
        std::ofstream(*this / name) << text;
    }
    ExitCode start(bool restart = false) const {
        return code_of([&] {
            RunDirectory run(path.string());
            run.require_room(false, restart);
            run.begin(false);
        });
    }
};

const std::string kStep = metrics_line(example()) + "\n";
const char* const kNeverSaved = R"({"run_id": "7", "first_checkpoint": null})";

}  // namespace

TEST_CASE("run directory: a run that died before its first step is begun again") {
    RunPlace place;
    place.put("run.json", kNeverSaved);
    place.put("metrics.jsonl", "");
    place.put("main.log", "");
    fs::create_directory(place / "checkpoints");
    CHECK(place.start() == ExitCode::ok);
    place.put("metrics.jsonl", metrics_line(ValRecord{0, {{"", 11.0f}}}) + "\n");
    CHECK(place.start() == ExitCode::ok);
    CHECK(read_file(place / "before-1/metrics.jsonl") == metrics_line(ValRecord{0, {{"", 11.0f}}}) + "\n");
    CHECK(read_file(place / "before-1/run.json") == kNeverSaved);
    CHECK(read_file(place / "metrics.jsonl") == "");
}

TEST_CASE("run directory: a restart begins again only a run that never saved, and keeps its records") {
    RunPlace place;
    for (const int round : {1, 2}) {
        place.put("run.json", kNeverSaved);
        place.put("metrics.jsonl", kStep);
        CHECK(place.start() == ExitCode::bad_flags);
        CHECK(place.start(true) == ExitCode::ok);
        CHECK(read_file(place / fmt::format("before-{}/metrics.jsonl", round).c_str()) == kStep);
    }
    for (const char* run : {R"({"run_id": "7", "first_checkpoint": 60})", R"({"run_id": "7", "resumed": [{}]})",
                            R"({"run_id": "of an earlier version"})", ""}) {
        CAPTURE(run);
        place.put("run.json", run);
        place.put("metrics.jsonl", kStep);
        CHECK(find_earlier_run(place.path.string()).why_not_restart() != "");
        CHECK(place.start(true) == ExitCode::bad_flags);
        CHECK(read_file(place / "metrics.jsonl") == kStep);
    }
}

TEST_CASE("run directory: signs that there were checkpoints") {
    const auto sign = [](auto make) {
        RunPlace place;
        place.put("run.json", kNeverSaved);
        make(place / "checkpoints", place.path);
        return find_earlier_run(place.path.string()).why_not_restart();
    };
    CHECK(sign([](const auto&, const auto&) {}) == "");
    CHECK(sign([](const auto& path, const auto&) { fs::create_directories(path + "/step_00000003.tmp"); }) == "");
    CHECK(sign([](const auto& path, const auto& there) { fs::create_directory_symlink(there / ".", path); }) ==
          "checkpoints/checkpoints is there");
    for (const char* name : {"step_00000003", "step_00000003.set_aside", "mine"})
        CHECK(sign([&](const auto& path, const auto&) { fs::create_directories(path + "/" + name); }) ==
              fmt::format("checkpoints/{} is there", name));
    CHECK(sign([](const auto& path, const auto&) { fs::create_symlink("/nowhere", path); }) ==
          "checkpoints is a link that leads nowhere");
    CHECK(sign([](const auto& path, const auto&) { std::ofstream(path) << "x"; }) == "checkpoints is a file");
}

TEST_CASE("run directory: files that no run wrote are never replaced") {
    const std::string parts = "model-00001-of-00002.safetensors", index = "model.safetensors.index.json";
    for (const std::string name :
         {"config.json", "main.log", "metrics.jsonl", "run.json", "model.safetensors", "check.json", "lock", "decay",
          "trace-rank3.json", "watchdog_rank00000.json", "tokenizer.json", "tokenizer.bin", "tokenizer.tiktoken",
          parts.c_str(), index.c_str()}) {
        CAPTURE(name);
        RunPlace place;
        place.put(name.c_str(), "mine");
        place.put("notes.txt", "mine too");
        CHECK(place.start() == ExitCode::bad_flags);
        CHECK(place.start(true) == ExitCode::bad_flags);
        const bool stays_beside = name == parts || name == index;
        CHECK(code_of([&] { BegunDirectory(place.path.string(), true); }) ==
              (stays_beside ? ExitCode::ok : ExitCode::bad_flags));
        const bool is_weights = name == "model.safetensors" || name == "config.json";
        if (name != "lock") {
            RunDirectory resumed(place.path.string());
            const bool matters = is_weights || name.ends_with("k.json") || name.find("rank") != std::string::npos;
            CHECK(code_of([&] { resumed.require_own_files(); }) == (matters ? ExitCode::bad_flags : ExitCode::ok));
            if (is_weights) resumed.remove_weights();
        }
        CHECK(read_file(place / name.c_str()) == "mine");
        CHECK(read_file(place / "notes.txt") == "mine too");
    }
}

TEST_CASE("run directory: a link in place of a log is not followed") {
    for (const char* name : {"metrics.jsonl", "main.log", "run.json"}) {
        RunPlace place;
        place.put("thesis", kStep);
        fs::create_symlink("thesis", place / name);
        CHECK(place.start() == ExitCode::bad_flags);
        RunDirectory resumed(place.path.string());
        if (name != std::string("run.json")) CHECK(code_of([&] { resumed.go_on({}); }) == ExitCode::bad_flags);
        CHECK(read_file(place / "thesis") == kStep);
    }
}

TEST_CASE("run directory: the tokenizer's copy replaces only earlier runs' copies") {
    RunPlace place;
    const auto is_input = [&](const std::string& path) { return path.ends_with("tokenizer.json"); };
    const auto keep = [&](bool overwrite, const char* name, const char* content) {
        RunDirectory run(place.path.string());
        run.require_room(overwrite, false, is_input);
        run.begin(overwrite);
        write_run_json(run, {}, {});
        run.keep_tokenizer(*name == '\0' ? std::map<std::string, std::string>()
                                         : std::map<std::string, std::string>{{name, content}});
    };
    place.put("tokenizer.json", "somebody's");  // next to the shards: --out is the directory of the data
    keep(false, "tokenizer.json", "another");
    CHECK(read_file(place / "tokenizer.json") == "somebody's");
    keep(true, "tokenizer.bin", "a run's");
    keep(true, "tokenizer.tiktoken", "the next run's");
    CHECK(!fs::exists(place / "tokenizer.bin"));
    CHECK(read_file(place / "tokenizer.tiktoken") == "the next run's");
    keep(true, "tokenizer.tiktoken", "changed");
    CHECK(read_file(place / "tokenizer.tiktoken") == "changed");
    keep(true, "", "");
    CHECK(!fs::exists(place / "tokenizer.tiktoken"));
    CHECK(read_file(place / "tokenizer.json") == "somebody's");
}

TEST_CASE("run directory: final weights are the run's own, and a run whose every save failed begins again") {
    const std::vector<std::pair<const char*, bool>> configs = {
        {R"({"checkpoint-every": 0, "checkpoint-minutes": 30})", true},
        {R"({"checkpoint-every": 5})", true},
        {R"({"checkpoint-every": 0, "checkpoint-minutes": 0})", false},
        {"{}", false},
        {"3", false}};
    for (const auto& [config, saves] : configs) {
        CAPTURE(config);
        RunPlace place;
        {
            RunDirectory run(place.path.string());
            run.begin(false);
            place.put("run.json", fmt::format(R"({{"run_id": "7", "first_checkpoint": null, "config": {}}})", config));
            place.put("metrics.jsonl", kStep);
            run.note_files({"model.safetensors", "config.json"}, false);
            place.put("model.safetensors", "weights");
            run.note_files({"model.safetensors", "config.json"}, true);
        }
        CHECK(is_run_file(place.path.string(), "model.safetensors"));
        CHECK(place.start(true) == (saves ? ExitCode::ok : ExitCode::bad_flags));
        CHECK(read_file(place / (saves ? "before-1/model.safetensors" : "model.safetensors")) == "weights");
    }
}

TEST_CASE("run directory: a link to a directory of checkpoints survives --overwrite") {
    RunPlace place;
    place.put("big/step_00000003/manifest.json", "{}");
    place.put("big/notes", "mine");
    fs::create_directory_symlink(place / "big", place / "checkpoints");
    BegunDirectory run(place.path.string(), true);
    CHECK(fs::is_symlink(place / "checkpoints"));
    CHECK(fs::is_directory(place / "checkpoints"));
    CHECK(!fs::exists(place / "big/step_00000003"));
    CHECK(read_file(place / "big/notes") == "mine");
    CHECK_NOTHROW(require_checkpoint_directory(place / "checkpoints"));
    CHECK_NOTHROW(require_checkpoint_directory(place / "none"));
    fs::remove_all(place / "big");
    CHECK(code_of([&] { require_checkpoint_directory(place / "checkpoints"); }) == ExitCode::checkpoint);
}

TEST_CASE("run directory: the lock is no link, and a lost lock is harmless") {
    RunPlace place;
    place.put("thesis", "mine");
    fs::create_symlink("thesis", place / "lock");
    CHECK(place.start() == ExitCode::bad_flags);
    CHECK(read_file(place / "thesis") == "mine");
    fs::remove(place / "lock");
    BegunDirectory run(place.path.string(), false);
    place.put("run.json", kNeverSaved);
    fs::remove(place / "lock");
    run.note_checkpoint(7);
    run.note_checkpoint(8);
    CHECK(parse_json(read_file(place / "run.json"))["first_checkpoint"] == 7);
}

TEST_CASE("run directory: a start that is refused leaves no lock") {
    RunPlace place;
    place.put("config.json", "mine");
    CHECK(place.start() == ExitCode::bad_flags);
    CHECK(!fs::exists(place / "lock"));
    place.put("lock", "");  // of an earlier run
    CHECK(place.start() == ExitCode::bad_flags);
    CHECK(fs::exists(place / "lock"));
    fs::remove(place / "lock");
    fs::remove(place / "config.json");
    CHECK(place.start() == ExitCode::ok);
    CHECK(fs::exists(place / "lock"));
}

TEST_CASE("log file: a disk that takes nothing does not end the run, and lines come later") {
    RunPlace place;
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const auto at_most = [&](rlim_t bytes) {
        const rlimit lower{bytes, limit.rlim_max};
        REQUIRE(setrlimit(RLIMIT_FSIZE, &lower) == 0);
    };
    const auto before = signal(SIGXFSZ, SIG_IGN);
    {
        LogFile log;
        log.open(place / "log", 0);
        at_most(0);
        log.append("one");
        log.append("two");
        at_most(limit.rlim_cur);
        signal(SIGXFSZ, before);
        CHECK(log.size() == 8);
        CHECK(read_file(place / "log") == "");
        log.synchronizer()();
        log.append("three");  // there is room again
        CHECK(read_file(place / "log") == "one\ntwo\nthree\n");
        CHECK(log.size() == 14);
    }
    CHECK(read_file(place / "log") == "one\ntwo\nthree\n");
}

TEST_CASE("log file: lines follow the name when the file is moved away or cut") {
    RunPlace place;
    LogFile log;
    log.open(place / "log", 0);
    log.append("one");
    fs::rename(place / "log", place / "log.1");
    const auto synchronize = log.synchronizer();
    log.append("two");
    synchronize();
    CHECK(read_file(place / "log.1") == "one\n");
    CHECK(read_file(place / "log") == "two\n");
    CHECK(log.size() == 4);
    fs::resize_file(place / "log", 0);
    log.append("three");
    CHECK(read_file(place / "log") == "three\n");
}

TEST_CASE("log file: a resumed run cuts it to its length at the checkpoint, unless it is another file") {
    RunPlace place;
    const auto after = [&](const char* before, int64_t bytes) {
        place.put("log", before);
        LogFile log;
        log.open(place / "log", bytes);
        log.append("new");
        return read_file(place / "log");
    };
    CHECK(after("one\ntwo\n", 4) == "one\nnew\n");
    CHECK(after("one\ntwo\n", 0) == "new\n");
    CHECK(after("one\n", 100) == "one\nnew\n");
    CHECK(after("one\ntw", 4) == "one\nnew\n");
    CHECK(after("one\ntw", 100) == "one\ntw\nnew\n");
    CHECK(after("one\ntwo\n", 6) == "one\ntwo\nnew\n");
}
