// Checks between values, and values that follow from others.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "llmc/base/error.h"
#include "llmc/flags/flags.h"
#include "llmc/kernels/attention.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

void set(Options& options, const char* flag, const std::string& text) { find_flag(flag)->set(options, text); }

Options resolved(const Options& options, const ResolveInputs& inputs = {}) {
    Options copy = options;
    resolve(copy, inputs);
    return copy;
}

std::string refusal(const Options& options, const ResolveInputs& inputs = {}) {
    return error_of([&] { resolved(options, inputs); }, ExitCode::bad_flags);
}

ResolveInputs with_ranks(int ranks) {
    ResolveInputs inputs;
    inputs.ranks = ranks;
    return inputs;
}

ResolveInputs with_data(int vocab, int64_t tokens = 0) {
    ResolveInputs inputs;
    inputs.data_vocab = vocab;
    inputs.train_tokens = tokens;
    return inputs;
}

}  // namespace

TEST_CASE("resolve: defaults") {
    const Options o = resolved({});
    CHECK(o.model_name == "d12");
    CHECK(o.model == find_model("d12"));
    CHECK(o.model.layers == 12);
    CHECK(o.model.vocab == 50257);
    CHECK(o.model.context == 1024);
    CHECK(o.seq == 1024);
    CHECK(o.total_batch == 4096);
    CHECK(o.micro_steps == 1);
    CHECK(o.schedule.steps == -1);
    CHECK(o.precision == Precision::fp8);
    CHECK(o.text("loss-scale") == "dynamic");
    CHECK(o.text("fp8-layers") == "all,-first,+lm_head");
    CHECK(o.fp8_layers == fp8_layers_from_text("all,-first,+lm_head"));
    CHECK(o.loss_scale.dynamic);
    CHECK(!o.skip_spikes);
    CHECK(o.notes.empty());
}

TEST_CASE("resolve: the model's shape") {
    Options o;
    o.model_name = "gpt3-125m";
    CHECK(resolved(o).model.context == 2048);
    CHECK(resolved(o).seq == 1024);
    CHECK(resolved(o).model.name == "gpt3-125m");
    o.model.layers = 3;  // a variation keeps the rest, the context as well
    CHECK(resolved(o).model.layers == 3);
    CHECK(resolved(o).model.context == 2048);
    CHECK(resolved(o).model.name == "custom");

    Options own;
    own.model.layers = 2, own.model.heads = 2, own.model.channels = 64;
    CHECK(resolved(own).model.context == 1024);
    own.seq = 96;
    CHECK(resolved(own).model.context == 96);  // it follows -t
    own.model.context = 128;
    CHECK(resolved(own).model.context == 128);
    CHECK(resolved(own).seq == 96);
    own.seq = 0;
    CHECK(resolved(own).seq == 128);  // 1024, or the context if that is shorter

    own.model.heads = 3;
    CHECK(contains(refusal(own), "cannot be divided by heads=3"));
    o.model_name = "no-such-model";
    CHECK(contains(refusal(o), "unknown model"));
}

TEST_CASE("resolve: the vocabulary comes from the flag, the file, the data, or is GPT-2's") {
    Options o;
    CHECK(resolved(o).model.vocab == 50257);
    CHECK(resolved(o, with_data(300)).model.vocab == 300);
    o.model.vocab = 512;
    CHECK(resolved(o, with_data(300)).model.vocab == 512);
    CHECK(contains(refusal(o, with_data(513)), "--vocab 513"));

    const TemporaryDirectory directory;
    auto from_file = [&](const std::string& text, int data_vocab) {
        Options with_file;
        with_file.model_name = make_file(directory / "model.json", text);
        return resolved(with_file, with_data(data_vocab));
    };
    CHECK(from_file(R"({"layers": 1, "heads": 1, "channels": 64, "vocab": 400})", 300).model.vocab == 400);
    CHECK(from_file(R"({"layers": 1, "heads": 1, "channels": 64})", 300).model.vocab == 300);
    CHECK(from_file(R"({"layers": 1, "heads": 1, "channels": 64})", 0).model.vocab == 50257);
    CHECK(from_file(R"({"layers": 1, "heads": 1, "channels": 64})", 0).model.context == 1024);
    CHECK(from_file(R"({"layers": 1, "heads": 1, "channels": 64, "context": 48})", 0).seq == 48);
}

TEST_CASE("resolve: sequences fit the context") {
    Options o;
    o.precision = Precision::bf16;  // lengths that FP8 would refuse
    o.seq = 1024;
    CHECK_NOTHROW(resolved(o));
    o.seq = 1025;
    CHECK(contains(refusal(o), "use -t 1024 or --context 1025"));
    Options command = o;
    command.from = "runs/X";  // eval cannot change the model
    CHECK(refusal(command) == "-t 1025 is above the context 1024 of model d12; use -t 1024");
    o.model.context = 2048;
    CHECK(resolved(o).model.context == 2048);
}

TEST_CASE("resolve: the total batch is whole micro-steps on all ranks") {
    Options o;
    o.batch = 2;
    o.seq = 512;
    CHECK(resolved(o, with_ranks(3)).total_batch == 3072);
    o.total_batch = 524288;
    CHECK(resolved(o).micro_steps == 512);
    CHECK(resolved(o, with_ranks(8)).micro_steps == 64);
    const std::string message = refusal(o, with_ranks(3));
    CHECK(contains(message, "3072 tokens (-b 2 x -t 512 x 3 ranks)"));
    CHECK(contains(message, "-d 522240 or -d 525312"));
    o.total_batch = 1000;
    CHECK(contains(refusal(o), "use -d 1024"));
    CHECK(!contains(refusal(o), "-d 0"));
}

TEST_CASE("resolve: stages of a batch schedule are whole micro-steps, below the total batch") {
    Options o;
    o.batch = 2, o.seq = 512, o.total_batch = 8192;
    set(o, "batch-schedule", "2048:10,4096:5");
    CHECK(resolved(o, with_ranks(2)).batches.tokens_until(16) == 10 * 2048 + 5 * 4096 + 8192);
    CHECK(contains(refusal(o, with_ranks(4)),
                   "2048 tokens per step must be below -d 8192 and a multiple of the micro-step's 4096"));
    o.total_batch = 4096;
    CHECK(contains(refusal(o), "4096 tokens per step must be below -d 4096"));
    // One epoch of 21 steps: 10 of 2048, 5 of 4096, and 6 of 8192, the last of which needs a token more.
    o.total_batch = 8192;
    ResolveInputs inputs;
    for (const auto& [tokens, steps] : {std::pair{90113, 21}, {90112, 20}, {2049, 1}}) {
        inputs.train_tokens = tokens;
        CHECK(resolved(o, inputs).schedule.steps == steps);
    }
    inputs.train_tokens = 2048;
    CHECK(contains(refusal(o, inputs), "one step needs 2,048"));
    // Shards of 700 tokens hold one sequence each, and an epoch does not read their other tokens.
    inputs.train_tokens = 40 * 700, inputs.train_samples = [](int T) { return int64_t{40} * (699 / T); };
    CHECK(resolved(o, inputs).schedule.steps == 10);
    set(o, "batch-schedule", "off");
    o.total_batch = 2048, o.epochs = 2;
    CHECK(resolved(o, inputs).schedule.steps == 20);
}

TEST_CASE("resolve: sequences are cut into equal pieces") {
    Options o;
    o.seq = 512;
    set(o, "seq-schedule", "64:10,256:5");
    const Options done = resolved(o);
    CHECK(done.sequences.tokens_of(10) == 64);
    CHECK(done.sequences.tokens_of(15) == 256);
    CHECK(done.sequences.tokens_of(16) == 512);
    for (const char* text : {"96:10", "256:5,512:5", "1024:5"}) {
        set(o, "seq-schedule", text);
        CHECK(contains(refusal(o), std::string("--seq-schedule ") + text + ": sequences of -t 512 tokens cannot"));
    }
}

TEST_CASE("resolve: a micro-batch has as many tokens and sequences as kernels can count") {
    Options o;
    o.seq = o.model.context = 16384;
    o.batch = 32768;  // 2^29 tokens
    CHECK(resolved(o).total_batch == 536870912);
    o.batch = 32769;
    CHECK(contains(refusal(o), "-b 32769 x -t 16384 = 536887296 tokens"));
    CHECK(contains(refusal(o), "use -b 32768"));

    Options cut;
    cut.seq = 64;
    const auto attention_takes = [](int sequences) {
        return error_of([&] { attention::check_shape(sequences, 16, {12, 12, 64}); }, ExitCode::failure).empty();
    };
    for (const char* schedule : {"off", "16:5,32:5"}) {
        const int pieces = *schedule == 'o' ? 1 : 4;
        set(cut, "seq-schedule", schedule);
        cut.batch = 65535 / pieces;
        CHECK_NOTHROW(resolved(cut));
        CHECK(attention_takes(cut.batch * pieces));
        cut.batch++;
        CHECK(!attention_takes(cut.batch * pieces));
        CHECK(contains(refusal(cut), "65536 sequences per micro-batch, above the limit of 65535; use a smaller -b"));
    }
}

TEST_CASE("resolve: profiled steps lie within the run") {
    Options o;
    o.precision = Precision::bf16;
    o.schedule.steps = 10;
    for (const char* text : {"8", "1:11", "10:11"}) {
        set(o, "profile-steps", text);
        CHECK_NOTHROW(resolved(o));
    }
    set(o, "profile-steps", "9");
    CHECK(contains(refusal(o), "--profile-steps 9 asks for the steps 3 to 11, but the run ends after step 10"));
    set(o, "profile-steps", "4:6");
    o.stop_after = 4;
    CHECK(contains(refusal(o), "asks for the steps 4 to 5, but the run ends after step 4"));
    o.schedule.steps = -1;
    CHECK_NOTHROW(resolved(o));  // length not known yet
    o.stop_after = 0;
    CHECK_NOTHROW(resolved(o, with_data(0, 4 * 1024 * 5 + 1)));
    CHECK(contains(refusal(o, with_data(0, 4 * 1024 * 5)), "but the run ends after step 4"));  // one epoch
}

TEST_CASE("resolve: steps of one epoch, and warm-up") {
    Options o;
    o.precision = Precision::bf16;
    o.batch = 1;
    o.seq = 100;
    CHECK(resolved(o, with_data(0, 1001)).schedule.steps == 10);
    CHECK(resolved(o, with_data(0, 1000)).schedule.steps == 9);  // the last target needs one token more
    CHECK(contains(refusal(o, with_data(0, 100)), "the training set has 0 tokens in whole sequences of "));
    o.schedule.warmup = 9;
    CHECK_NOTHROW(resolved(o, with_data(0, 1001)));
    o.schedule.warmup = 10;
    CHECK(contains(refusal(o, with_data(0, 1001)), "one epoch"));
    CHECK_NOTHROW(resolved(o));  // length not known yet
    o.schedule.steps = 10;
    CHECK(contains(refusal(o), "--warmup 10 leaves none of the 10 steps"));
    o.schedule.steps = 11;
    CHECK(resolved(o, with_data(0, 1001)).schedule.steps == 11);  // given: not an epoch
    o.schedule.steps = int64_t{1} << 50;
    CHECK_NOTHROW(resolved(o));
    o.total_batch = int64_t{100} << 20;  // more tokens in all than 64 bits can count
    CHECK(contains(refusal(o), "-x 1125899906842624 steps of 104,857,600 tokens (-d) are too many"));
}

TEST_CASE("resolve: --fp8-layers auto is spelled out, with what follows it, and only in FP8") {
    const auto layers = [](const char* text, int blocks = 2, Precision precision = Precision::fp8,
                           Fp8Recipe recipe = Fp8Recipe::delayed) {
        Options o;
        o.fp8.recipe = recipe;
        o.model.layers = blocks;
        o.precision = precision;
        set(o, "fp8-layers", text);
        return resolved(o).text("fp8-layers");
    };
    CHECK(layers("auto") == "all,-first,+lm_head");
    CHECK(layers("auto", 1) == "all,+lm_head");
    CHECK(layers("auto,-fc_proj,-lm_head") == "all,-first,+lm_head,-fc_proj,-lm_head");
    CHECK(layers("auto", 2, Precision::fp8, Fp8Recipe::current) == "all,-first,+lm_head");
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mxfp8}) {
        CHECK(layers("auto", 2, Precision::fp8, recipe) == "all,-first");
        CHECK(layers("auto", 1, Precision::fp8, recipe) == "all");
    }
    CHECK(layers("auto", 2, Precision::bf16) == "auto");
    for (const char* text : {"all", "none", "all,-first", "automatic"}) CHECK(layers(text) == text);
}

TEST_CASE("resolve: precision and its notes") {
    Options o;
    o.precision = Precision::automatic;
    CHECK(resolved(o).precision == Precision::fp8);
    CHECK(contains(resolved(o).notes.at(0), "auto: fp8"));
    CHECK(resolved(o).text("loss-scale") == "dynamic");
    ResolveInputs without_fp8;
    without_fp8.fp8_supported = false;
    without_fp8.device_name = "an old card";
    CHECK(resolved(o, without_fp8).precision == Precision::bf16);
    CHECK(resolved(o, without_fp8).text("loss-scale") == "off");
    ResolveInputs old_card = without_fp8;
    old_card.bf16_supported = false;
    CHECK(resolved(o, old_card).precision == Precision::fp32);

    o.precision = Precision::fp8;
    CHECK_THROWS_WITH_AS(resolved(o, without_fp8),
                         "--precision fp8: an old card has no FP8 (GPUs from sm_89 on have it); use --precision bf16",
                         Error);
    o.batch = 3, o.seq = 20;
    CHECK_THROWS_WITH_AS(
        resolved(o),
        "-b 3 x -t 20 = 60 tokens per micro-batch is not a multiple of 16, which FP8 wgrad needs; use -b 4 "
        "or --precision bf16",
        Error);
    o.batch = 4, o.seq = 0;
    set(o, "loss-scale", "256");
    CHECK(resolved(o).loss_scale.initial == 256);

    o.precision = Precision::fp32;
    o.tf32 = true;
    CHECK(resolved(o).notes.empty());
    ResolveInputs host;
    host.host_device = true;
    CHECK(contains(resolved(o, host).notes.at(0), "CPU build"));
    o.precision = Precision::bf16;
    CHECK(contains(resolved(o).notes.at(0), "--precision fp32"));
}

TEST_CASE("resolve: a flag that the optimizer ignores is refused, unless it has its default") {
    const struct {
        const char *flag, *value;
        const char* used_by;  // and by muon and normuon
        const char* instead = "leave it out";
    } rows[] = {{"adam-moments", "bf16", "adamw"},
                {"adamw-lr", "0.001", "", "use --lr"},
                {"adamw-weight-decay", "0", "", "use --weight-decay"},
                {"muon-ns", "p", ""},
                {"muon-scale", "spectral", ""},
                {"cautious-decay", "true", "adamw"},
                {"beta1", "0.5", "adamw lion"},
                {"beta2", "0.5", "adamw lion"},
                {"eps", "1e-6", "adamw"},
                {"momentum", "0.875", "sgd"},
                {"nesterov", "on", "adamw sgd"}};
    for (const auto& [name, optimizer] : kWords<OptimizerKind>) {
        Options usual;
        usual.optimizer.kind = optimizer;
        CHECK_NOTHROW(resolved(resolved(usual)));  // as a run.json has them
        for (const auto& [flag, value, used_by, instead] : rows) {
            CAPTURE(fmt::format("--{} {} --optimizer {}", flag, value, name));
            Options o = usual;
            set(o, flag, value);
            const std::string message = refusal(o);
            if (is_muon(optimizer) || contains(words_in(used_by), name)) {
                CHECK(message == "");
                continue;
            }
            CHECK(message.starts_with(fmt::format("--{} needs --optimizer ", flag)));
            CHECK(message.ends_with(fmt::format(", and this run has --optimizer {}; {}", name, instead)));
            CHECK(contains(message, "muon or normuon"));
            for (const std::string& user : words_in(used_by)) CHECK(contains(message, user + ", "));
        }
    }
}

TEST_CASE("resolve: clipping and momentum that contradict other flags") {
    Options o;
    o.optimizer.clip_kind = ClipKind::value, o.clip = 0;
    CHECK(refusal(o) == "--clip-kind value has no effect with --clip 0, which turns clipping off; give --clip X");
    Options low;
    low.optimizer = {.kind = OptimizerKind::muon, .momentum = 0.8, .muon_momentum_warmup = 5};
    CHECK(refusal(low) == "--momentum 0.8,5: muon's momentum grows from 0.85; use --momentum 0.8, or one above 0.85");
    Options sgd;
    sgd.optimizer = {.kind = OptimizerKind::sgd, .momentum = 0.9, .muon_momentum_warmup = 5};
    CHECK(refusal(sgd) ==
          "--momentum 0.9,5 needs --optimizer muon or normuon, and this run has --optimizer sgd; use --momentum 0.9");
}

TEST_CASE("resolve: flags that the run does not read are noted") {
    Options o;
    o.val_batches = 3, o.keep = 5, o.prompt = "x", o.top_k = 7;
    o.given = {"val-batches", "keep", "prompt", "top-k"};
    CHECK(resolved(o).notes == std::vector<std::string>{"--val-batches has no effect without --val",
                                                        "--prompt has no effect without --sample-every",
                                                        "--top-k has no effect without --sample-every",
                                                        "--keep has no effect without --out"});
    o.val = {{"", "v.bin"}}, o.sample_every = 1, o.out = "run";
    CHECK(resolved(o).notes.empty());
    o.temperature = 0;
    CHECK(joined(resolved(o).notes) == "--top-k has no effect with --temperature 0");
    o.temperature = 1;
    o.schedule.steps = 9, o.verify_every = 10;
    o.given = {"verify-every"};
    CHECK(resolved(o).notes == std::vector<std::string>{"--verify-every 10 has no effect in 9 steps"});
    o.verify_every = 9;
    CHECK(resolved(o).notes.empty());
    o.precision = Precision::fp8;
    find_flag("fp8-until")->set(o, "9");
    CHECK(joined(resolved(o).notes) == "--fp8-until 9 has no effect in 9 steps");
    find_flag("fp8-until")->set(o, "99%");
    CHECK(joined(resolved(o).notes) == "");
}

TEST_CASE("resolve: a ZeRO stage in one process is noted, and has no effect") {
    Options o;
    o.sharding.stage = 3;
    CHECK(contains(resolved(o).notes.at(0), "-z 3 has no effect in one process"));
    CHECK(resolved(o).sharding.stage == 0);
    CHECK(resolved(o, with_ranks(2)).notes.empty());
    CHECK(resolved(o, with_ranks(2)).sharding.stage == 3);
    o.sharding.stage = 0;
    CHECK(resolved(o).notes.empty());
}

TEST_CASE("resolve: FP8 products that the card has to emulate are refused, unless they are asked for") {
    ResolveInputs ada;
    ada.fp8_emulated_because = [](Fp8Recipe recipe) {
        return recipe == Fp8Recipe::block ? std::string("it is no Hopper") : "";
    };
    Options o;
    o.precision = Precision::fp8;
    CHECK(resolved(o, ada).notes.empty());
    o.fp8.recipe = Fp8Recipe::block;
    CHECK(contains(refusal(o, ada),
                   "--fp8-recipe block: it is no Hopper. Use another recipe or --precision bf16; "
                   "--fp8-emulation runs the matmuls in BF16"));
    CHECK_NOTHROW(resolved(o));
    o.fp8_emulation = true;
    CHECK(contains(resolved(o, ada).notes.at(0), "all FP8 matmuls run in BF16"));
    CHECK(contains(resolved(o, ada).notes.at(0), "it is no Hopper"));
    o.precision = Precision::bf16;
    CHECK(resolved(o, ada).notes ==
          std::vector<std::string>{"--fp8-recipe, --fp8-emulation have no effect with --precision bf16"});
    o.fp8_emulation = false;
    CHECK(resolved(o, ada).notes == std::vector<std::string>{"--fp8-recipe has no effect with --precision bf16"});
    o.fp8.recipe = Fp8Recipe::delayed;
    CHECK(resolved(o, ada).notes.empty());

    // A CPU needs no flag, and a note says so.
    ResolveInputs host;
    host.host_device = true;
    o.precision = Precision::fp8;
    CHECK(contains(resolved(o, host).notes.at(0), "FP8 is emulated on the CPU"));
}

TEST_CASE("resolve: names the kernels that the run uses") {
    Options o;
    o.precision = Precision::fp8;
    ResolveInputs hopper, other, cpu;
    hopper.hopper = cpu.host_device = true;
    CHECK(resolved(o, hopper).kernels_in_use == "hopper");
    CHECK(resolved(o, other).kernels_in_use == "portable");
    CHECK(resolved(o, cpu).kernels_in_use == "loops");
    o.precision = Precision::fp32;
    CHECK(resolved(o, hopper).kernels_in_use == "portable");
    o.precision = Precision::bf16;
    hopper.tensor_maps = false;
    CHECK(resolved(o, hopper).kernels_in_use == "portable");
    CHECK(contains(resolved(o, hopper).notes.at(0), "portable kernels run instead of Hopper's: this driver"));
    o.kernels = Kernels::portable;
    CHECK(resolved(o, hopper).notes.empty());
    hopper.tensor_maps = true;
    CHECK(resolved(o, hopper).kernels_in_use == "portable");
    CHECK(resolved(o, cpu).kernels_in_use == "loops");
}

// A batch of validation is a third of a micro-step: batches / 3 < 5 % of steps * micro_steps.
TEST_CASE("resolve: validation costs less than 5 % of the steps in between, with the shortest such interval") {
    CHECK(validation_interval(20, 1) == 150);
    CHECK(validation_interval(20, 8) == 20);
    CHECK(validation_interval(20, 16) == 9);
    CHECK(validation_interval(1, 1) == 7);
    CHECK(validation_interval(3, 1) == 25);  // 20 would be 5 %
    CHECK(validation_interval(20, 512) == 1);
    CHECK(validation_interval(0, 1) == 1);
    CHECK(validation_interval(200, 1) == 1500);
    CHECK(validation_interval(14, 1) == 95);
    CHECK(validation_interval(15, 1) == 150);  // 101 would suffice
    for (int64_t batches = 1; batches < 3000; batches += 7)
        for (int64_t micro_steps = 1; micro_steps < 700; micro_steps += 13) {
            const int64_t steps = validation_interval(batches, micro_steps);
            const double share = static_cast<double>(batches) / 3 / static_cast<double>(steps * micro_steps);
            CHECK(share < 0.05);
            if (steps == 1) continue;
            const double one_less = static_cast<double>(batches) / 3 / static_cast<double>((steps - 1) * micro_steps);
            CHECK(one_less >= 0.05 / 1.5);  // rounded up by at most a half
        }
    CHECK(validation_interval(int64_t{1} << 50, 1) > 0);
}

TEST_CASE("resolve: the default interval of validation") {
    Options o;
    CHECK(resolved(o).val_every == -1);  // no validation data
    CHECK(config_json(resolved(o)).find("\"val-every\": null") != std::string::npos);
    o.val = {{"", "v"}};
    CHECK(resolved(o).val_every == 150);
    CHECK(config_json(resolved(o)).find("\"val-every\": 150") != std::string::npos);
    o.total_batch = 524288;  // 128 micro-steps of 4 x 1024
    CHECK(resolved(o).val_every == 2);
    CHECK(resolved(o, with_ranks(8)).val_every == 9);  // 16 on each
    o.val_every = 20;
    CHECK(resolved(o).val_every == 20);
    o.val_every = 0;
    CHECK(resolved(o).val_every == 0);

    Options sized;  // 4 x 1024 tokens a batch
    sized.val = {{"a", "v"}, {"b", "w"}};
    CHECK(resolved(sized).val_every == 300);
    ResolveInputs inputs;
    inputs.val_tokens = {2 * 4096 + 1, 1000 * 4096 + 1};  // 2 and 1000 batches
    CHECK(resolved(sized, inputs).val_every == validation_interval(22, 1));
    sized.val_batches = -1;
    CHECK(resolved(sized, inputs).val_every == validation_interval(1002, 1));
    inputs.ranks = 2;  // half as many on each
    CHECK(resolved(sized, inputs).val_every == validation_interval(501, 1));
    CHECK(resolved(sized).val_every == -1);  // sizes unknown
    inputs.task_rows = {33, 8};              // 5 batches and 1 on each
    CHECK(resolved(sized, inputs).val_every == validation_interval(507, 1));
    sized.val_batches = 0;
    CHECK_NOTHROW(resolved(sized, inputs));
}

TEST_CASE("resolve: --epochs is a number of steps") {
    Options o;
    o.seq = 64;
    o.epochs = 3;
    const Options three = resolved(o, with_data(257, 2561));  // 10 steps of 256 tokens, and the last target
    CHECK(three.schedule.steps == 30);
    CHECK(three.epochs == 0);  // run.json only has the steps
    CHECK(contains(refusal(o), "--epochs counts passes over the training data; add --train"));
    CHECK(contains(refusal(o, with_data(257, 50)), "less than one step"));
    o.schedule.steps = 5;
    CHECK(contains(refusal(o, with_data(257, 2561)), "--epochs and -x both say"));
}

TEST_CASE("resolve: a step larger than the training set is noted") {
    Options o;
    o.seq = 64;
    o.schedule.steps = 5;
    const auto is_noted = [&](int64_t tokens) {
        for (const std::string& note : resolved(o, with_data(257, tokens)).notes)
            if (contains(note, "every step goes over all of it")) return true;
        return false;
    };
    CHECK(is_noted(256));
    CHECK(!is_noted(257));
    CHECK(!is_noted(0));  // the number is unknown
}

// The flags of each piece of advice in a refusal: "...; use -t 48 or --precision bf16" has two.
static std::vector<std::vector<std::string>> advice_in(const std::string& message) {
    std::vector<std::vector<std::string>> all;
    const size_t use = message.rfind("; use ");
    for (std::string rest = use == std::string::npos ? "" : message.substr(use + 6); !rest.empty();) {
        const size_t end = std::min(rest.find(" or "), rest.size());
        std::vector<std::string> words = words_in(rest.substr(0, end));
        if (words.size() % 2 == 0 && words[0][0] == '-') all.push_back(words);
        rest.erase(0, std::min(end + 4, rest.size()));
    }
    return all;
}

TEST_CASE("resolve: the program accepts what its refusals advise") {
    struct Case {
        const char* flags;
        size_t advice;  // pieces of advice
        ResolveInputs inputs = {};
    };
    const std::vector<Case> cases = {
        {"--vocab 100", 1, with_data(300)},
        {"-t 2048", 2},
        {"-e tiny -t 1000", 2},
        {"-b 3 --layers 1 --heads 2 --channels 128 --context 40 -t 48", 2},
        {"-b 1 --layers 1 --heads 2 --channels 128 --context 12 -t 16", 1},
        {"-b 4 --layers 1 --heads 2 --channels 128 --context 50 -t 64 --fp8-recipe mxfp8", 2},
        {"-b 60000 -t 10000 --context 20000", 1},
        {"-b 60001 -t 9001 --context 20000", 1},
        {"-b 6000000 -t 100", 1},
        {"-b 6000000 -t 100 --fp8-recipe block", 1},
        {"-d 1000", 1},
        {"-d 5000", 2},
        {"-d 100000 -b 2 -t 512", 2, with_ranks(3)},
        {"-b 3 -t 37", 2},
        {"-b 3 -t 37 --fp8-recipe mxfp8", 2},
        {"-b 3 -t 37 --fp8-recipe block", 2},
        {"-b 3 -t 37 --fp8-recipe current --context 40", 2},
        {"-b 3 -t 37 --layers 1 --heads 2 --channels 128", 2},
        {"-b 3 -t 37 -d 222 --fp8-recipe mxfp8", 2, with_ranks(2)},
        {"-b 1 -t 8", 2},
        {"--precision fp8", 1,
         [] {
             ResolveInputs inputs;
             inputs.fp8_supported = false;
             return inputs;
         }()},
    };
    const auto parsed = [](const std::string& flags, const std::vector<std::string>& more) {
        std::vector<std::string> all = words_in("train_gpt -i data " + flags);
        all.insert(all.end(), more.begin(), more.end());
        std::vector<const char*> pointers;
        for (const std::string& word : all) pointers.push_back(word.c_str());
        return parse_options(static_cast<int>(pointers.size()), pointers.data()).options;
    };
    for (const Case& c : cases) {
        CAPTURE(c.flags);
        const std::string message = refusal(parsed(c.flags, {}), c.inputs);
        CAPTURE(message);
        const std::vector<std::vector<std::string>> advice = advice_in(message);
        CHECK(advice.size() == c.advice);
        for (const std::vector<std::string>& flags : advice) {
            const Options o = parsed(c.flags, flags);
            CHECK(error_of([&] { resolved(o, c.inputs); }, ExitCode::bad_flags) == "");
            CHECK((o.precision != Precision::fp8 || int64_t{o.batch} * o.seq % 16 == 0));
        }
    }
}

TEST_CASE("token schedule: tokens of a step, of all steps up to it, and steps that tokens suffice for") {
    for (const char* text : {"off", "3:2", "3:2,5:1,6:4"}) {
        CAPTURE(text);
        const TokenSchedule batches(batch_stages_from_text(text), 7);
        std::vector<int64_t> expected;
        for (const auto& [tokens, steps] : batches.stages()) expected.insert(expected.end(), steps, tokens);
        const size_t staged = expected.size();
        expected.resize(12, 7);
        int64_t until = 0;
        for (int64_t step = 1; step <= 12; step++) {
            CAPTURE(step);
            const int64_t tokens = expected[static_cast<size_t>(step) - 1];
            CHECK(batches.tokens_of(step) == tokens);
            CHECK(batches.tokens_until(step - 1) == until);
            CHECK(batches.grows_after(step - 1) == (static_cast<size_t>(step) <= staged));
            for (int64_t left = 0; left < tokens; left++) CHECK(batches.steps_within(until + left) == step - 1);
            until += tokens;
        }
    }
}

TEST_CASE("token schedule: invalid texts are refused") {
    for (const char* text :
         {"", "on", "3", "3:", ":3", "3:2,", ",3:2", "3:2,3:1", "5:2,3:1", "0:2", "3:0", "-3:2", "3:2 ", "3:2x",
          "3:2:1", "3.5:2", "300000000:1", "1:300000000", "99999999999999999999:1"}) {
        CAPTURE(text);
        const std::string message = error_of([&] { batch_stages_from_text(text); }, ExitCode::bad_flags);
        CHECK(message.starts_with(std::string("--batch-schedule ") + text + ": "));
        CHECK_THROWS_AS(seq_stages_from_text(text), Error);
    }
}
