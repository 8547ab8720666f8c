// The command line and configuration files: every value reaches its variable, every mistake is answered.
#include "llmc/run/options.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "llmc/device/error.h"
#include "llmc/run/flags.h"
#include "llmc/run/versions.h"

using namespace llmc;
using nlohmann::json;

namespace {

using Arguments = std::vector<const char*>;

ParsedOptions parse(Arguments arguments) {
    arguments.insert(arguments.begin(), "train_gpt");
    return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

// Parsed with training data given, so that a test need not.
Options options(Arguments arguments) {
    arguments.insert(arguments.begin(), {"-i", "data"});
    ParsedOptions parsed = parse(arguments);
    CHECK(!parsed.text);
    return parsed.options;
}

std::string refusal(const Arguments& arguments) {
    try {
        parse(arguments);
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::bad_flags);
        return error.what();
    }
    return "(nothing was thrown)";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct ConfigFile {
    static inline int count = 0;
    std::string path = (std::filesystem::temp_directory_path() /
                        ("llmc_config_" + std::to_string(::getpid()) + "_" + std::to_string(count++)))
                           .string();
    explicit ConfigFile(const std::string& text) { std::ofstream(path) << text; }
    ~ConfigFile() { std::filesystem::remove(path); }
};

// What the configuration file `text` is refused with.
std::string config_refusal(const std::string& text) {
    const ConfigFile file(text);
    const std::string message = refusal({"--config", file.path.c_str()});
    CHECK(contains(message, file.path));
    return message;
}

}  // namespace

TEST_CASE("options: defaults are the promised ones") {
    const Options o = options({});
    CHECK(o.train == "data");
    CHECK(o.val.empty());
    CHECK(o.out == "");
    CHECK(o.batch == 4);
    CHECK(o.max_steps == -1);
    CHECK(o.lr == 3e-4);
    CHECK(o.schedule == "cosine");
    CHECK(o.warmup == 0);
    CHECK(o.final_lr_fraction == 0);
    CHECK(o.weight_decay == 0.1);
    CHECK(o.beta1 == 0.9);
    CHECK(o.beta2 == 0.95);
    CHECK(o.eps == 1e-8);
    CHECK(o.clip == 1);
    CHECK(o.val_every == -1);
    CHECK(o.val_batches == 20);
    CHECK(o.sample_every == 0);
    CHECK(o.sample_tokens == 64);
    CHECK(o.seed == 1337);
    CHECK(o.precision == default_precision());
    CHECK(o.recompute == "gelu");
    CHECK(!o.tf32);
    CHECK(!o.overwrite);
}

namespace {

// Every flag with a value that is not its default, and what that makes of the options.
struct Sample {
    const char *flag, *value;  // "": a switch
    void (*set)(Options&);
};
const Sample kSamples[] = {
    {"train", "t", [](Options& o) { o.train = "t"; }},
    {"val", "a=v",
     [](Options& o) {
         o.val = {{"a", "v"}};
     }},
    {"out", "dir", [](Options& o) { o.out = "dir"; }},
    {"overwrite", "", [](Options& o) { o.overwrite = true; }},
    {"model", "d6", [](Options& o) { o.model = "d6"; }},
    {"layers", "1", [](Options& o) { o.layers = 1; }},
    {"heads", "2", [](Options& o) { o.heads = 2; }},
    {"channels", "64", [](Options& o) { o.channels = 64; }},
    {"vocab", "300", [](Options& o) { o.vocab = 300; }},
    {"context", "32", [](Options& o) { o.context = 32; }},
    {"init-from", "w", [](Options& o) { o.init_from = "w"; }},
    {"batch", "8", [](Options& o) { o.batch = 8; }},
    {"seq", "16", [](Options& o) { o.seq = 16; }},
    {"total-batch", "4294967296", [](Options& o) { o.total_batch = int64_t{1} << 32; }},
    {"max-steps", "4294967297", [](Options& o) { o.max_steps = (int64_t{1} << 32) + 1; }},
    {"stop-after", "4294967298", [](Options& o) { o.stop_after = (int64_t{1} << 32) + 2; }},
    {"max-minutes", "1.5", [](Options& o) { o.max_minutes = 1.5; }},
    {"lr", "1e-3", [](Options& o) { o.lr = 1e-3; }},
    {"schedule", "wsd", [](Options& o) { o.schedule = "wsd"; }},
    {"warmup", "4294967299", [](Options& o) { o.warmup = (int64_t{1} << 32) + 3; }},
    {"final-lr-fraction", "0.1", [](Options& o) { o.final_lr_fraction = 0.1; }},
    {"weight-decay", "0.2", [](Options& o) { o.weight_decay = 0.2; }},
    {"beta1", "0.8", [](Options& o) { o.beta1 = 0.8; }},
    {"beta2", "0.99", [](Options& o) { o.beta2 = 0.99; }},
    {"eps", "1e-6", [](Options& o) { o.eps = 1e-6; }},
    {"clip", "0", [](Options& o) { o.clip = 0; }},
    {"precision", "fp32", [](Options& o) { o.precision = "fp32"; }},
    {"tf32", "", [](Options& o) { o.tf32 = true; }},
    {"recompute", "block", [](Options& o) { o.recompute = "block"; }},
    {"fp8-recipe", "current", [](Options& o) { o.fp8_recipe = "current"; }},
    {"fp8-layers", "all,-last", [](Options& o) { o.fp8_layers = "all,-last"; }},
    {"fp8-grad", "e4m3", [](Options& o) { o.fp8_grad = "e4m3"; }},
    {"fp8-history", "7", [](Options& o) { o.fp8_history = 7; }},
    {"fp8-margin", "2", [](Options& o) { o.fp8_margin = 2; }},
    {"fp8-amax-algo", "ema", [](Options& o) { o.fp8_amax_algo = "ema"; }},
    {"fp8-pow2-scales", "", [](Options& o) { o.fp8_pow2_scales = true; }},
    {"fp8-fast-accum", "all", [](Options& o) { o.fp8_fast_accum = "all"; }},
    {"fp8-log-every", "4294967300", [](Options& o) { o.fp8_log_every = (int64_t{1} << 32) + 4; }},
    {"fp8-fallback", "0.01,0.5,10", [](Options& o) { o.fp8_fallback = "0.01,0.5,10"; }},
    {"fp8-emulation", "", [](Options& o) { o.fp8_emulation = true; }},
    {"loss-scale", "256", [](Options& o) { o.loss_scale = "256"; }},
    {"loss-scale-growth-interval", "11", [](Options& o) { o.loss_scale_growth_interval = 11; }},
    {"max-skips", "12", [](Options& o) { o.max_skips = 12; }},
    {"skip-spikes", "", [](Options& o) { o.skip_spikes = true; }},
    {"zero", "3", [](Options& o) { o.zero = 3; }},
    {"shard-within", "4", [](Options& o) { o.shard_within = 4; }},
    {"comm", "tcp", [](Options& o) { o.comm = "tcp"; }},
    {"reduce", "bf16", [](Options& o) { o.reduce = "bf16"; }},
    {"reduce-order", "rank", [](Options& o) { o.reduce_order = "rank"; }},
    {"timeout-start", "1", [](Options& o) { o.timeout_start = 1; }},
    {"timeout-step", "2", [](Options& o) { o.timeout_step = 2; }},
    {"timeout-save", "3", [](Options& o) { o.timeout_save = 3; }},
    {"val-every", "4294967301", [](Options& o) { o.val_every = (int64_t{1} << 32) + 5; }},
    {"val-batches", "4294967302", [](Options& o) { o.val_batches = (int64_t{1} << 32) + 6; }},
    {"sample-every", "4294967303", [](Options& o) { o.sample_every = (int64_t{1} << 32) + 7; }},
    {"sample-tokens", "10", [](Options& o) { o.sample_tokens = 10; }},
    {"tokenizer", "tok", [](Options& o) { o.tokenizer = "tok"; }},
    {"prompt", "hi there", [](Options& o) { o.prompt = "hi there"; }},
    {"temperature", "0", [](Options& o) { o.temperature = 0; }},
    {"top-k", "40", [](Options& o) { o.top_k = 40; }},
    {"top-p", "0.9", [](Options& o) { o.top_p = 0.9; }},
    {"seed", "18446744073709551615", [](Options& o) { o.seed = 18446744073709551615u; }},
    {"print-config", "", [](Options& o) { o.print_config = true; }},
    {"dry-run", "", [](Options& o) { o.dry_run = true; }},
    {"estimate-scaling", "", [](Options& o) { o.estimate_scaling = true; }},
    {"world", "6", [](Options& o) { o.world = 6; }},
    // These need another flag beside them, or an existing file.
    {"gpu", "h100", [](Options& o) { o.gpu = "h100"; }},
    {"profile-steps", "5", [](Options& o) { o.profile_steps = "5"; }},
    {"config", "FILE", [](Options& o) { o.config_file = "FILE"; }},
};
const char* const kAnswers[] = {"help", "version"};  // a text and no options

}  // namespace

TEST_CASE("options: every long flag reaches its variable, and no other") {
    const ConfigFile empty("{}");
    std::set<std::string> sampled(std::begin(kAnswers), std::end(kAnswers)), known;
    Options unused;
    const FlagSet flags(unused);
    for (const Flag& flag : flags.flags()) known.insert(flag.long_name);
    for (const Sample& sample : kSamples) {
        const std::string name = sample.flag;
        CAPTURE(name);
        CHECK(sampled.insert(name).second);
        const Flag* flag = flags.find_long(name);
        REQUIRE(flag != nullptr);
        Arguments beside = {"-i", "data"};
        if (name == "gpu") beside.push_back("--dry-run");
        if (name == "profile-steps") beside.insert(beside.end(), {"-o", "dir"});
        const std::string dashed = "--" + name, value = name == "config" ? empty.path : sample.value;

        Arguments arguments = beside;
        arguments.push_back(dashed.c_str());
        if (!flag->is_switch()) arguments.push_back(value.c_str());
        const Options given = parse(arguments).options;
        Options expected = parse(beside).options;
        CHECK(given != expected);
        sample.set(expected);
        if (name == "config") expected.config_file = empty.path;
        CHECK(contains(given.command_line, dashed));
        expected.command_line = given.command_line;
        CHECK(given == expected);

        // The configuration has it under the flag's name, and reads it back.
        const json before = json::parse(config_json(parse(beside).options)), after = json::parse(config_json(given));
        json changed = before;
        if (!flag->command_line_only()) changed[name] = after[name];
        CHECK(changed == after);
        CHECK((before != after) == !flag->command_line_only());
        const ConfigFile printed(config_json(given));
        CHECK(config_json(parse({"--config", printed.path.c_str()}).options) == config_json(given));
    }
    for (const std::string& name : known) {  // a new flag needs a sample
        CAPTURE(name);
        CHECK(sampled.count(name) == 1);
    }
    CHECK(contains(options({"--prompt", "hi there"}).command_line, "train_gpt -i data --prompt 'hi there'"));
}

TEST_CASE("options: short forms, attached values, the command, repeated flags") {
    const Options o = options({"-o", "dir",  "-e", "d24",    "-b8", "-t=16", "-d", "256", "-x", "-1",
                               "-l", "1e-3", "-k", "linear", "-u",  "2",     "-q", "1",   "-c", "0",
                               "-v", "1",    "-m", "2",      "-s",  "3",     "-g", "4",   "-r", "none"});
    CHECK(o.out == "dir");
    CHECK(o.model == "d24");
    CHECK(o.batch == 8);
    CHECK(o.seq == 16);
    CHECK(o.total_batch == 256);
    CHECK(o.max_steps == -1);
    CHECK(o.lr == 1e-3);
    CHECK(o.schedule == "linear");
    CHECK(o.warmup == 2);
    CHECK(o.final_lr_fraction == 1);
    CHECK(o.weight_decay == 0);
    CHECK(o.val_every == 1);
    CHECK(o.val_batches == 2);
    CHECK(o.sample_every == 3);
    CHECK(o.sample_tokens == 4);
    CHECK(o.recompute == "none");

    CHECK(parse({"train", "-i", "x"}).options.train == "x");
    CHECK(options({"-b", "8", "-b", "16"}).batch == 16);  // the last one counts
    CHECK(options({"-b", "010"}).batch == 10);            // not octal
    CHECK(options({"--lr=2e-4"}).lr == 2e-4);
    CHECK(options({"--prompt=--lr"}).prompt == "--lr");
    CHECK(options({"--prompt", "-dash"}).prompt == "-dash");
    CHECK(options({"--prompt", ""}).prompt == "");
    CHECK(options({"--prompt", "[a,b]"}).prompt == "[a,b]");
    CHECK(options({"--tf32", "--tf32=false"}).tf32 == false);
    CHECK(options({"-v", "20", "-v", "auto"}).val_every == options({}).val_every);
}

TEST_CASE("options: validation sets") {
    CHECK(parse_val_set("data/val*.bin") == ValSet{"", "data/val*.bin"});
    CHECK(parse_val_set("code=data/code*.bin") == ValSet{"code", "data/code*.bin"});
    CHECK(parse_val_set("a=b=c") == ValSet{"a", "b=c"});
    CHECK(parse_val_set("dir/lang=en/x.bin") == ValSet{"", "dir/lang=en/x.bin"});
    CHECK(parse_val_set("=x") == ValSet{"", "=x"});
    CHECK(options({"-j", "a=x", "-j", "y", "--val=b=z"}).val == std::vector<ValSet>{{"a", "x"}, {"", "y"}, {"b", "z"}});
    CHECK(options({"-j", "[a,b]"}).val == std::vector<ValSet>{{"", "[a,b]"}});  // a pattern, not a list
    CHECK(contains(refusal({"-i", "d", "-j", "a=x", "-j", "a=y"}), "two sets are named \"a\""));
    CHECK(contains(refusal({"-i", "d", "-j", "x", "-j", "y"}), "name each one"));
    CHECK(contains(refusal({"-i", "d", "-j", "a="}), "no pattern"));
}

TEST_CASE("options: unknown flags name the nearest") {
    CHECK(contains(refusal({"--bacth", "4"}), "did you mean --batch?"));
    CHECK(contains(refusal({"--warm", "4"}), "did you mean --warmup?"));
    CHECK(contains(refusal({"--total_batch=4"}), "did you mean --total-batch?"));
    CHECK(contains(refusal({"-batch", "4"}), "did you mean --batch?"));
    CHECK(contains(refusal({"-seq", "4"}), "did you mean --seq?"));
    CHECK(!contains(refusal({"--completely-different"}), "did you mean"));
    CHECK(contains(refusal({"-p", "4"}), "unknown flag -p"));
    CHECK(contains(refusal({"-xx", "4"}), "unknown flag -xx"));
    CHECK(contains(refusal({"--"}), "unknown flag"));
    CHECK(contains(refusal({"eval"}), "unknown command 'eval'"));
    CHECK(contains(refusal({"-5"}), "unexpected argument '-5'"));
    CHECK(contains(refusal({"-b", "4", "stray"}), "unexpected argument 'stray'"));
    CHECK(contains(refusal({"-i", "a.bin", "b.bin"}), "quote the pattern"));
}

// What the shell makes of patterns without quotes. One file is what a pattern may well stand for.
TEST_CASE("options: patterns that the shell has expanded are answered with what to type") {
    CHECK(options({"-i", "data/a.bin", "-j", "data/b.bin"}).train == "data/a.bin");
    CHECK(
        contains(refusal({"-i", "data/a1.bin", "data/a2.bin"}),
                 "unexpected argument 'data/a2.bin': --train takes one pattern, and the shell has made 2 words of it; "
                 "quote the pattern: --train 'data/a*.bin'"));
    CHECK(contains(refusal({"-b", "8", "-j", "v/x1.bin", "v/x2.bin", "v/y1.bin", "v/z.bin", "-i", "a.bin", "b.bin"}),
                   "made 4 words of it; quote the pattern: --val 'v/*.bin'"));
    CHECK(contains(refusal({"-i", "a.bin", "-j", "code=data/a.bin", "code=data/b.bin", "--tf32"}),
                   "made 2 words of it; quote the pattern: --val 'code=data/*.bin'"));
    CHECK(contains(refusal({"-i", "a.bin", "-j", "code=v/a.bin", "v/b.bin"}), "--val 'code=v/*.bin'"));
    std::vector<std::string> names;
    for (int i = 0; i < 1000; i++) names.push_back("shards/train_" + std::to_string(100000 + i) + ".bin");
    Arguments many = {"--train"};
    for (const std::string& name : names) many.push_back(name.c_str());
    CHECK(contains(refusal(many), "made 1000 words of it; quote the pattern: --train 'shards/train_100*.bin'"));
    CHECK(contains(refusal({"--train=a.bin", "b.bin"}), "quote the pattern: --train '*.bin'"));
    CHECK(contains(refusal({"-o", "dir", "b.bin"}), "unexpected argument 'b.bin'; flags start with -"));
}

TEST_CASE("options: llm.c's spellings") {
    CHECK(contains(refusal({"-y", "1"}), "llm.c"));
    CHECK(contains(refusal({"-z", "4"}), "--zero"));
    CHECK(contains(refusal({"-ge", "1"}), "GELU"));  // not -g with the value "e"
    CHECK(contains(refusal({"-sl", "5"}), "llm.c"));
    CHECK(contains(refusal({"-h", "1"}), "HellaSwag"));
    CHECK(contains(refusal({"-r", "1"}), "-r gelu"));
    CHECK(contains(refusal({"-r", "2"}), "-r norm"));
    CHECK(contains(refusal({"-r", "0"}), "-r none"));
}

TEST_CASE("options: bad values") {
    struct Case {
        Arguments arguments;
        const char* part;
    };
    const Case cases[] = {
        {{"-b", "4x"}, "--batch: '4x' is not a whole number"},
        {{"-b", ""}, "--batch: '' is not a whole number"},
        {{"-b", "1e3"}, "'1e3' is not a whole number"},
        {{"-b", "0"}, "--batch: 0 is out of range; it must be from 1 to 2147483647"},
        {{"-b", "-4"}, "-4 is out of range"},
        {{"-b", "99999999999"}, "99999999999 is out of range; it must be from 1 to 2147483647"},
        {{"-t", "0"}, "--seq: 0"},
        {{"-d", "99999999999999999999"}, "--total-batch: 99999999999999999999 is out of range; it must be from 1 to "},
        {{"-d", "0"}, "--total-batch: 0"},
        {{"-x", "0"}, "-1: one epoch"},
        {{"-x", "-2"}, "--max-steps: -2"},
        {{"--stop-after", "-1"}, "--stop-after: -1"},
        {{"--max-minutes", "-1"}, "--max-minutes: -1"},
        {{"--max-minutes", "inf"}, "'inf' is not a number"},
        {{"-l", "0"}, "--lr: 0 is out of range; it must be above 0"},
        {{"-l", "nan"}, "'nan' is not a number"},
        {{"-l", "1e-3f"}, "'1e-3f' is not a number"},
        {{"-k", "cos"}, "'cos' is not one of cosine, linear, constant, wsd"},
        {{"-u", "-1"}, "--warmup: -1"},
        {{"-q", "1.01"}, "in [0, 1]"},
        {{"-q", "-0.1"}, "in [0, 1]"},
        {{"-c", "-0.1"}, "--weight-decay"},
        {{"--beta1", "1"}, "in [0, 1)"},
        {{"--beta2", "1"}, "in [0, 1)"},
        {{"--eps", "0"}, "above 0"},
        {{"--clip", "-1"}, "at least 0"},
        {{"--layers", "0"}, "--layers: 0"},
        {{"--heads", "-1"}, "--heads: -1"},
        {{"--channels", "0"}, "--channels: 0"},
        {{"--vocab", "0"}, "--vocab: 0"},
        {{"--context", "0"}, "--context: 0"},
        {{"-v", "-1"}, "--val-every: -1 is out of range"},
        {{"-v", "sometimes"}, "--val-every: 'sometimes' is not a whole number"},
        {{"-m", "-2"}, "--val-batches: -2"},
        {{"-s", "-1"}, "--sample-every: -1"},
        {{"-g", "-1"}, "--sample-tokens: -1"},
        {{"--temperature", "-1"}, "--temperature: -1"},
        {{"--top-k", "-1"}, "--top-k: -1"},
        {{"--top-p", "0"}, "in (0, 1]"},
        {{"--top-p", "1.5"}, "in (0, 1]"},
        {{"--seed", "-5"}, "--seed: -5 is out of range; it must be from 0 to "},
        {{"--seed", "18446744073709551616"}, "from 0 to 18446744073709551615"},
        {{"--precision", "fp16"}, "is not one of fp8, bf16, fp32, auto"},
        {{"--fp8-recipe", "tensorwise"}, "is not one of delayed, current, block, mxfp8"},
        {{"--fp8-history", "0"}, "--fp8-history"},
        {{"--loss-scale", "3"}, "power of two"},
        {{"--loss-scale", "0.5"}, "power of two"},
        {{"--precision", "BF16"}, "'BF16' is not one of"},
        {{"--gpu", "h300", "--dry-run"}, "'h300' is not in the table: a100"},
        {{"--gpu", "h200", "-i", "x"}, "add --dry-run or --estimate-scaling"},
        {{"--gpu", "h300", "--estimate-scaling"}, "'h300' is not in the table: a100"},
        {{"--profile-steps", "3", "-i", "x"}, "add --out"},
        {{"--profile-steps", "5:4", "-i", "x", "-o", "y"}, "--profile-steps: '5:4' is not a number of steps"},
        {{"--profile-steps", "-i", "x"}, "--profile-steps needs a value"},
        {{"--tf32=1"}, "=true or =false"},
        {{"-i", ""}, "--train: the value is empty"},
        {{"-b"}, "--batch needs a value"},
        {{"-b", "-t", "8"}, "--batch needs a value"},
        {{"-i", "--val", "x"}, "--train needs a value"},
        {{"--config", "no/such/file"}, "cannot open the configuration file no/such/file"},
        {{}, "no training data"},
        {{"-b", "8"}, "no training data"},
    };
    for (const Case& c : cases) {
        std::string shown;
        for (const char* argument : c.arguments) shown += std::string(argument) + " ";
        CAPTURE(shown);
        const std::string message = refusal(c.arguments);
        CAPTURE(message);
        CHECK(contains(message, c.part));
    }
    CHECK(!parse({"--dry-run"}).text);  // planning needs no data
    CHECK(!parse({"--estimate-scaling", "--gpu", "h200"}).text);
    CHECK(!parse({"--print-config"}).text);
}

TEST_CASE("options: a whole number is kept as it is or refused with its flag and range") {
    const char* const numbers[] = {"0",
                                   "-1",
                                   "2147483648",
                                   "-2147483649",
                                   "4294967296",
                                   "4294967297",
                                   "-4294967295",
                                   "9223372036854775808",
                                   "9223372036854775807",
                                   "1125899906842625",
                                   "-9223372036854775809",
                                   "18446744073709551616",
                                   "18446744073709551617"};
    Options unused;
    const FlagSet flags(unused);
    int whole = 0;
    for (const Flag& flag : flags.flags()) {
        if (flag.value != "N") continue;
        CAPTURE(flag.long_name);
        whole++;
        const bool in_files = !flag.command_line_only();
        for (const std::string number : numbers) {
            CAPTURE(number);
            const std::string name = "--" + flag.long_name, entry = "{\"" + flag.long_name + "\": " + number + "}";
            const ConfigFile file(entry);
            Arguments sources[] = {{"-i", "x", name.c_str(), number.c_str()},
                                   {"-i", "x", "--config", file.path.c_str()}};
            for (int source = 0; source < (in_files ? 2 : 1); source++) {
                CAPTURE(source);
                const std::string message = refusal(sources[source]);
                if (contains(message, "nothing was thrown")) {
                    const json value = json::parse(config_json(parse(sources[source]).options))[flag.long_name];
                    CHECK(value.dump() == number);
                    continue;
                }
                // JSON's own numbers end where the largest types do.
                const bool not_whole_in_json = source == 1 && contains(message, "is not a whole number");
                CHECK((not_whole_in_json || contains(message, "is out of range; it must be from ")));
                CHECK(contains(message, name));
            }
        }
    }
    CHECK(whole > 20);
}

TEST_CASE("options: --overwrite may not remove the weights to start from") {
    CHECK(contains(refusal({"-i", "x", "-o", "runs/a", "--overwrite", "--init-from", "runs/a"}),
                   "--overwrite would remove"));
    CHECK(contains(refusal({"-i", "x", "-o", "runs/a/", "--overwrite", "--init-from", "runs/b/../a/model.safetensors"}),
                   "--overwrite would remove"));
    CHECK_NOTHROW(parse({"-i", "x", "-o", "runs/a", "--overwrite", "--init-from", "runs/b"}));
}

TEST_CASE("options: configuration files, and flags over them") {
    const ConfigFile file(R"({"train": "t", "val": ["v", "code=w"], "batch": 8, "lr": 1e-3, "tf32": true, "out": null,
                              "seed": 18446744073709551615, "prompt": "x", "max-steps": -1})");
    const Options o = parse({"--config", file.path.c_str()}).options;
    CHECK(o.train == "t");
    CHECK(o.val == std::vector<ValSet>{{"", "v"}, {"code", "w"}});
    CHECK(o.batch == 8);
    CHECK(o.lr == 1e-3);
    CHECK(o.tf32);
    CHECK(o.out == "");
    CHECK(o.seed == 18446744073709551615u);
    const Options over = parse({"-b", "16", "--config", file.path.c_str(), "-j", "z", "--tf32=false"}).options;
    CHECK(over.batch == 16);  // whatever the order
    CHECK(over.lr == 1e-3);
    CHECK(over.val == std::vector<ValSet>{{"", "z"}});
    CHECK(!over.tf32);
}

TEST_CASE("options: another model does not inherit the file's shape") {
    const ConfigFile file(
        R"({"train": "t", "model": "d12", "layers": 3, "heads": 12, "channels": 768, "context": 64})");
    Options same = parse({"--config", file.path.c_str()}).options;
    resolve(same, {});
    CHECK(same.model_config.layers == 3);
    Options other = parse({"--config", file.path.c_str(), "-e", "d24", "--layers", "2"}).options;
    resolve(other, {});
    CHECK(other.model_config.layers == 2);
    CHECK(other.model_config.channels == 1024);
    CHECK(other.model_config.context == 1024);
}

TEST_CASE("options: bad configuration files") {
    CHECK(contains(config_refusal(R"({"bacth": 4})"), "unknown key \"bacth\" (did you mean \"batch\"?)"));
    CHECK(contains(config_refusal(R"({"total_batch": 4})"), "\"total-batch\""));
    CHECK(contains(config_refusal(R"({"batch": 4.5})"), "'4.5' is not a whole number"));
    CHECK(contains(config_refusal(R"({"batch": 0})"), "--batch: 0"));
    CHECK(contains(config_refusal(R"({"batch": [1]})"), "must be a number or a string"));
    CHECK(contains(config_refusal(R"({"batch": true})"), "must be a number or a string"));
    CHECK(contains(config_refusal(R"({"tf32": "yes"})"), "must be true or false"));
    for (const char* key : {"dry-run", "estimate-scaling", "print-config", "config", "overwrite", "gpu", "profile-steps",
                            "help", "version"}) {
        CAPTURE(key);
        CHECK(contains(config_refusal(std::string("{\"") + key + "\": true}"), "belongs on the command line"));
    }
    CHECK(contains(config_refusal("["), "is not JSON"));
    CHECK(contains(config_refusal("[1]"), "is not a JSON object"));
}

TEST_CASE("options: a printed configuration is accepted and prints the same") {
    for (const Arguments& arguments :
         {Arguments{},
          Arguments{"-e",
                    "gpt3-350m",
                    "-t",
                    "2048",
                    "-b",
                    "2",
                    "-d",
                    "8192",
                    "-x",
                    "100",
                    "-u",
                    "10",
                    "-l",
                    "0.1",
                    "-j",
                    "a=x",
                    "-j",
                    "y",
                    "--tf32",
                    "--prompt",
                    "\"quoted\"\n",
                    "--max-minutes",
                    "0.1",
                    "-r",
                    "norm",
                    "-c",
                    "1e-17",
                    "--seed",
                    "18446744073709551615",
                    "-o",
                    "runs/a",
                    "--precision",
                    "fp32",
                    "-q",
                    "0.3333333333333333"},
          Arguments{"--layers", "2", "--heads", "2", "--channels", "64", "-t", "32", "--vocab", "256"}}) {
        Options first = options(arguments);
        resolve(first, {});
        const std::string printed = config_json(first);
        const ConfigFile file(printed);
        Options second = parse({"--config", file.path.c_str()}).options;
        CHECK(config_json(second) == printed);
        resolve(second, {});
        CHECK(config_json(second) == printed);
        CHECK(second.model_config == first.model_config);
        CHECK(second.micro_steps == first.micro_steps);
        // A run.json holds the same under "config".
        const ConfigFile run(json{{"world", 1}, {"config", json::parse(printed)}}.dump());
        CHECK(config_json(parse({"--config", run.path.c_str()}).options) == printed);
    }
}

TEST_CASE("options: the printed configuration has every flag that a file may hold") {
    Options unused;
    const FlagSet flags(unused);
    std::set<std::string> in_flags, in_json;
    for (const Flag& flag : flags.flags()) {
        if (!flag.command_line_only()) in_flags.insert(flag.long_name);
    }
    const json printed = json::parse(config_json(options({})));
    for (const auto& item : printed.items()) in_json.insert(item.key());
    CHECK(in_flags == in_json);
}

TEST_CASE("options: help and version win over everything else") {
    for (const Arguments& arguments :
         {Arguments{"--help"}, Arguments{"-h"}, Arguments{"help"}, Arguments{"train", "-h"},
          Arguments{"-b", "4", "--help", "--unknown"}, Arguments{"-h", "-b"}}) {
        const ParsedOptions parsed = parse(arguments);
        REQUIRE(parsed.text);
        CHECK(*parsed.text == help_text("train_gpt"));
    }
    CHECK(contains(*parse({"--version"}).text, "train_gpt " + version_number()));
    CHECK(contains(*parse({"--version"}).text, default_precision()));
}

TEST_CASE("options: help shows every flag with its true default, in lines that fit") {
    const std::string help = help_text("train_gpt_cpu");
    CHECK(contains(help, "usage: train_gpt_cpu [train] FLAGS"));
    Options defaults;
    const FlagSet flags(defaults);
    std::set<std::string> long_names;
    std::set<char> short_names;
    for (const Flag& flag : flags.flags()) {
        CAPTURE(flag.long_name);
        CHECK(contains(help, "--" + flag.long_name));
        CHECK(contains(help, "\n" + flag.group + "\n"));
        CHECK(long_names.insert(flag.long_name).second);
        if (flag.short_name != 0) CHECK(short_names.insert(flag.short_name).second);
    }
    // The defaults written out by hand, because they read better so.
    CHECK(std::stod(flags.find_long("lr")->default_text) == defaults.lr);
    CHECK(std::stod(flags.find_long("eps")->default_text) == defaults.eps);
    CHECK(std::stoll(flags.find_long("max-steps")->default_text) == defaults.max_steps);
    CHECK(flags.find_long("batch")->default_text == "4");
    CHECK(flags.find_long("recompute")->default_text == "gelu");
    size_t start = 0;
    while (start < help.size()) {
        const size_t end = help.find('\n', start);
        CHECK(end - start <= 100);
        CHECK((end == start || help[end - 1] != ' '));
        start = end + 1;
    }
}
