// The specifications at the shapes of a run, on a device that computes right and on one that lies.
#include "test/kernels/specifications/kernel_checks.h"
#include "test/kernels/specifications/specifications.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <set>

#include "llmc/base/text.h"
#include "llmc/flags/flags.h"
#include "llmc/train/trainer.h"
#include "test/helpers.h"
#include "test/kernel_test.h"
#include "test/kernels/specifications/trial.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

KernelUse tiny_model(const Architecture& architecture, int channels, int heads, int kv_heads) {
    ModelConfig model;
    model.architecture = &architecture;
    model.layers = 2, model.channels = channels, model.vocab = 509, model.context = 64;
    model.heads = heads, model.kv_heads = kv_heads;
    architecture.description->set_defaults(model);
    if (model.hidden > 0) model.hidden = channels;
    model.validate();
    KernelUse use;
    use.set_model(model);
    return use;
}
KernelUse tiny_gpt(int channels = 64, int heads = 2) { return tiny_model(kGpt2, channels, heads, heads); }

void in_blocks(KernelUse& use) {
    use.fp8 = use.e4m3_gradients = true;
    use.scaling = Fp8Scaling::block;
}

std::vector<std::string> names_of(const KernelUse& use) {
    std::vector<std::string> names;
    for (const CheckItem& item : kernel_checks(use)) names.push_back(item.name);
    return names;
}
}  // namespace

TEST_CASE("every kernel of a run is right" * doctest::test_suite(kOnce)) {
    struct Run {
        const char* name;
        KernelUse use;
        void (*set)(KernelUse&);
    };
    const Run runs[] = {
        {"bf16", tiny_gpt(), [](auto&) {}},
        {"bf16, several ranks", tiny_gpt(128, 2), [](auto& u) { u.several_ranks = u.fp8_wire = true; }},
        {"fp8 delayed, several ranks", tiny_gpt(), [](auto& u) { u.fp8 = u.several_ranks = true; }},
        {"fp8 delayed, E4M3 gradients", tiny_gpt(128, 1), [](auto& u) { u.fp8 = u.e4m3_gradients = true; }},
        {"fp8 current", tiny_gpt(), [](auto& u) { u.fp8 = u.current_scaling = true; }},
        {"fp8 block", tiny_gpt(128, 2), in_blocks},
        {"fp8 mx", tiny_gpt(), [](auto& u) { in_blocks(u), u.scaling = Fp8Scaling::mx; }},
        {"fp8, documents", tiny_gpt(128, 2), [](auto& u) { u.fp8 = u.documents = true; }},
        {"fp32", tiny_gpt(), [](auto& u) { u.bf16 = false; }},
        {"fp32, head dimension 128", tiny_gpt(128, 1), [](auto& u) { u.bf16 = false; }},
        {"Llama, bf16, grouped queries", tiny_model(kLlama, 128, 4, 2), [](auto&) {}},
        {"Llama, fp8 delayed", tiny_model(kLlama, 64, 2, 1), [](auto& u) { u.fp8 = u.several_ranks = true; }},
        {"Llama, fp8 block", tiny_model(kLlama, 128, 2, 1), in_blocks},
        {"Qwen3, fp8 delayed", tiny_model(kQwen3, 256, 2, 1), [](auto& u) { u.fp8 = true; }},
        {"Qwen3, fp32, z-loss", tiny_model(kQwen3, 64, 2, 1), [](auto& u) { u.bf16 = false, u.z_loss = 1e-2f; }},
        {"nano, fp8 current", tiny_model(kNano, 64, 2, 2), [](auto& u) { u.fp8 = u.current_scaling = true; }},
        {"nano, fp8 delayed", tiny_model(kNano, 128, 2, 2), [](auto& u) { u.fp8 = true; }},
        {"Llama, fp32, documents", tiny_model(kLlama, 64, 2, 1), [](auto& u) { u.bf16 = false, u.documents = true; }},
        {"nano, fp32", tiny_model(kNano, 64, 2, 2), [](auto& u) { u.bf16 = false; }}};
    // An item's name says everything that it depends on.
    std::set<std::string> known;
    for (const Run& run : runs) {
        CAPTURE(run.name);
        KernelUse use = run.use;
        run.set(use);
        use.hopper = use.bf16 && is_hopper();
        for (const CheckItem& item : kernel_checks(use)) {
            if (!known.insert(item.name).second) continue;
            CAPTURE(item.name);
            CHECK(item.run(test_stream()) == "");
        }
    }
}

TEST_CASE("every optimizer's kernels are right, and are checked only where they are used") {
    const std::pair<OptimizerKind, std::string> kinds[] = {{OptimizerKind::adamw, "adamw_update"},
                                                           {OptimizerKind::lion, "lion_update"},
                                                           {OptimizerKind::sgd, "sgd_update"},
                                                           {OptimizerKind::muon, "muon"},
                                                           {OptimizerKind::normuon, "muon"}};
    for (const auto& [kind, name] : kinds)
        for (const auto& [fp8, moments] : {std::pair{false, StateFormat::fp32},
                                           {true, StateFormat::fp32},
                                           {false, StateFormat::bf16},
                                           {true, StateFormat::bf16},
                                           {true, StateFormat::fp8}}) {
            KernelUse use = tiny_gpt();
            use.optimizer.kind = kind;
            use.optimizer.adam_moments = moments;
            use.fp8 = use.bf16 = fp8;
            int found = 0;
            for (const CheckItem& item : kernel_checks(use)) {
                const bool of_adamw = item.name.starts_with("adamw_update");
                const bool update = contains(item.name, "_update") || item.name.starts_with("muon");
                if (!update || contains(item.name, "loss_scale")) continue;
                CAPTURE(item.name);
                CHECK((item.name.starts_with(name) || (is_muon(kind) && of_adamw)));
                CHECK(item.run(test_stream()) == "");
                if (of_adamw) CHECK(contains(item.name, "moments ") == (moments != StateFormat::fp32));
                found++;
            }
            CHECK(found >= 2);
        }
}

TEST_CASE("optimizers are checked with the run's momentum and decay") {
    const auto updates = [](const OptimizerConfig& optimizer) {
        KernelUse use = tiny_gpt();
        use.optimizer = optimizer;
        std::string names;
        for (const CheckItem& item : kernel_checks(use)) {
            if (!item.name.starts_with("sgd_") && !item.name.starts_with("muon_")) continue;
            names += item.name + "\n";
            CHECK(item.run(test_stream()) == "");
        }
        return names;
    };
    CHECK(contains(updates({.kind = OptimizerKind::sgd, .momentum = 0}), "sgd_update, momentum 0,"));
    CHECK(contains(updates({.kind = OptimizerKind::sgd, .momentum = 0.95, .nesterov = Nesterov::on}),
                   "sgd_update, momentum 0.95 Nesterov,"));
    const std::string muon = updates({.kind = OptimizerKind::muon, .cautious_decay = true, .nesterov = Nesterov::off});
    CHECK(contains(muon, "muon_momentum bf16 without Nesterov of fp32"));
    CHECK(contains(muon, "muon_update, cautious,"));
}

TEST_CASE("clipping's kernels are right, and are checked only where they are used") {
    for (const auto& [kind, name] :
         {std::pair{ClipKind::norm, "none"}, {ClipKind::tensor, "clip_tensors"}, {ClipKind::value, "clip_values"}}) {
        KernelUse use = tiny_gpt();
        use.optimizer.clip_kind = kind;
        int found = 0;
        for (const CheckItem& item : kernel_checks(use)) {
            if (!item.name.starts_with("clip_")) continue;
            CHECK(item.name == name);
            CHECK(item.run(test_stream()) == "");
            found++;
        }
        CHECK(found == (kind != ClipKind::norm));
    }
}

// ---- lies ----------------------------------------------------------------------------------------------------------

namespace {

// Plays a kernel that errs while it is in scope.
struct Tampered {
    explicit Tampered(Trial::Tampering action) { Trial::tampering() = std::move(action); }
    ~Tampered() { Trial::tampering() = nullptr; }
};

template <class T>
T stored(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

double number_at(const char* element, size_t size) {
    if (size == 2) return static_cast<double>(to_float(stored<bf16>(element)));
    return size == 4 ? static_cast<double>(stored<float>(element)) : stored<double>(element);
}

// One lie for every kind of element: the exponent of the largest number, of the first code, a count of a state.
void falsify(std::vector<char>& bytes, size_t elements) {
    const size_t size = bytes.size() / elements;
    if (size == 1) {
        bytes[0] ^= 8;
    } else if (size > sizeof(double)) {
        bytes[size == sizeof(Fp8State) ? offsetof(Fp8State, elements) : 0] ^= 1;
    } else {
        size_t largest = 0;
        for (size_t i = 1; i < elements; i++) {
            const double best = std::fabs(number_at(&bytes[largest * size], size));
            const double here = std::fabs(number_at(&bytes[i * size], size));
            if (std::isfinite(here) && !(best >= here)) largest = i;
        }
        bytes[(largest + 1) * size - 1] ^= 0x40;
    }
}

// The results of an item's trials, numbered as they come; both runs of a trial have the same numbers.
struct Numbered {
    explicit Numbered(size_t t) : target(t) {}
    size_t target;
    size_t next = 0, of_trial = 0, in_run = 0;
    int last_run = 1;
    std::string name;  // name of the target

    void operator()(const ArrayShape& shape, char* data, size_t bytes, int run, stream_t stream) {
        if (run != last_run && run == 0) of_trial = next;
        if (run != last_run) in_run = 0;
        last_run = run;
        const size_t number = of_trial + in_run++;
        next = std::max(next, number + 1);
        if (number != target) return;
        name = shape.name;
        auto values = read_back(data, bytes, stream);
        falsify(values, shape.count());
        write_through(data, values.data(), bytes, stream);
    }
};

// Falsifies one result after the other: the item has to see every one of them. Passes of one kernel are alike: the
// first 13 results are those of the first pass of every item.
size_t check_every_result_is_compared(const CheckItem& item) {
    CAPTURE(item.name);
    size_t results = 1, lies = 0;
    for (size_t target = 0; target < std::min<size_t>(results, 13); target++) {
        Numbered lie(target);
        Tampered tampered(std::ref(lie));
        const std::string problem = item.run(test_stream());
        results = std::max(results, lie.next);
        CAPTURE(lie.name);
        CHECK(problem != "");
        lies++;
    }
    return lies;
}

const CheckItem& item_named(const std::vector<CheckItem>& items, const std::string& begin) {
    for (const CheckItem& item : items)
        if (item.name.starts_with(begin)) return item;
    FAIL("no check is called ", begin);
    return items[0];
}

}  // namespace

TEST_CASE("every result of every check is compared" * doctest::test_suite(kOnce)) {
    KernelUse use = tiny_gpt();
    use.fp8 = use.fp8_head = use.several_ranks = true;
    size_t lies = 0;
    for (const CheckItem& item : kernel_checks(use)) lies += check_every_result_is_compared(item);
    CHECK(lies > 100);
    use = tiny_gpt(128, 2);
    use.fp8 = true;
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx}) {
        use.scaling = scaling;
        for (const CheckItem& item : kernel_checks(use))
            if (contains(item.name, "quantize_")) lies += check_every_result_is_compared(item);
    }
    CHECK(lies > 140);
    size_t of_optimizers = 0;
    for (const OptimizerKind kind : {OptimizerKind::lion, OptimizerKind::sgd, OptimizerKind::muon}) {
        use = tiny_gpt();
        use.fp8 = true, use.optimizer.kind = kind;
        for (const CheckItem& item : kernel_checks(use))
            if (item.name.starts_with("lion") || item.name.starts_with("sgd") || item.name.starts_with("muon"))
                of_optimizers += check_every_result_is_compared(item);
    }
    CHECK(of_optimizers >= 2 * 8 + 9);  // master, m, working copy and amax, twice each; Muon's
    std::set<std::string> seen;
    for (const std::string& name : names_of(tiny_gpt())) seen.insert(name);
    size_t of_models = 0;
    for (const Architecture* architecture : {&kLlama, &kQwen3, &kNano}) {
        use = tiny_model(*architecture, 64, 2, 1);
        use.fp8 = true;
        for (const CheckItem& item : kernel_checks(use))
            if (item.family == "kernels" && seen.insert(item.name).second)
                of_models += check_every_result_is_compared(item);
    }
    // rmsnorm 4 + 3 and 5 + 5, swiglu 2, relu2 2, rope 2, qk_norm_rope 4 and 2, fused ones 13 each for two norms and
    // two activations, softmax_cross_entropy 4, attention 5.
    CHECK(of_models > 100);
}

TEST_CASE("a kernel that writes beside its results, leaves elements out, or is not repeatable") {
    const auto items = kernel_checks(tiny_gpt());
    const CheckItem& attention = item_named(items, "attention bf16");
    const auto told = [&](const char* array, const std::function<void(char*, size_t, int, stream_t)>& lie) {
        Tampered tampered([&](const ArrayShape& shape, char* data, size_t bytes, int run, stream_t stream) {
            if (shape.name == array) lie(data, bytes, run, stream);
        });
        return attention.run(test_stream());
    };
    CHECK(told("lse", [](char* data, size_t bytes, int, stream_t stream) { set_bytes(data + bytes, 0, 1, stream); }) ==
          "next to lse: writes 1 bytes past the end of its result");
    CHECK(told("lse", [](char* data, size_t, int, stream_t stream) { set_bytes(data - 2, 0, 1, stream); }) ==
          "next to lse: writes 2 bytes before its result");
    CHECK(told("dqkv", [](char* data, size_t, int, stream_t stream) {
              set_bytes(data + 2 * 17, 0xFF, 2, stream);
          }).find("dqkv[b=0,t=0,head=0,17] is nan, expected ") == 0);
    CHECK(told("dqkv", [](char* data, size_t, int run, stream_t stream) {
              const char low_byte = static_cast<char>(read_back(data, stream) ^ run);
              write_through(data, low_byte, stream);
          }) == "dqkv[b=0,t=0,head=0,0] differs between two runs on the same inputs (1 of 106368 wrong)");

    Trial outer(test_stream());
    const auto inp = outer.input(std::vector<float>(8, 1.0f));
    outer.nested(
        [&](Trial& trial) { trial.run_twice([&] { set_bytes(const_cast<float*>(inp.data), 0, 4, test_stream()); }); });
    CHECK(outer.problem() == "an input was changed");
}

TEST_CASE("numbers that are 1 % off in one tile") {
    const auto items = kernel_checks(tiny_gpt());
    const CheckItem& attention = item_named(items, "attention bf16");
    Tampered tampered([](const ArrayShape& shape, char* data, size_t bytes, int, stream_t stream) {
        if (shape.name != "dqkv") return;
        auto values = read_back(reinterpret_cast<bf16*>(data), bytes / 2, stream);
        for (size_t i = 64 * 192; i < 128 * 192; i++)  // tokens 64 to 127 of the first sequence
            values[i] = to_bf16(to_float(values[i]) * 1.01f);
        write_through(reinterpret_cast<bf16*>(data), values.data(), values.size(), stream);
    });
    const std::string problem = attention.run(test_stream());
    CAPTURE(problem);
    CHECK(problem.find("dqkv[b=0,t=") == 0);
}

TEST_CASE("a check needs no more than the run has") {
    const auto names = [](const KernelUse& use) {
        const std::vector<std::string> list = names_of(use);
        const std::set<std::string> names(list.begin(), list.end());
        CHECK(names.size() == list.size());
        return names;
    };
    const auto count_with = [](const KernelUse& use, const std::string& word) {
        const std::vector<std::string> list = names_of(use);
        return std::count_if(list.begin(), list.end(), [&](const std::string& name) { return contains(name, word); });
    };
    KernelUse use = tiny_gpt();
    CHECK(names(use).count("attention bf16 HD=32 NH=2 B=2 T=277") == 1);
    CHECK(names(use).count("sum_pieces fp32") == 0);
    use.several_ranks = true;
    CHECK(names(use).count("sum_pieces fp32") == 1);
    CHECK(names(use).count("cast_pieces fp8") == 0);
    use.fp8_wire = true;
    CHECK(names(use).count("cast_pieces fp8") == 1);
    CHECK(names(use).count("sum_fp8_pieces") == 1);
    use.fp8_wire = false;
    CHECK(count_with(use, "_fp8") == 0);
    use.fp8 = true;
    CHECK(count_with(use, "attention_forward_fp8") == 1);
    CHECK(count_with(use, "_fp8") > 5);
    CHECK(count_with(use, "softmax_cross_entropy_fp8") == 0);
    use.fp8_head = true;
    CHECK(names(use).count("softmax_cross_entropy_fp8 e5m2 N=16 V=509/512") == 1);
    use.fp8_head = false;
    use.current_scaling = true;  // through BF16
    CHECK(count_with(use, "attention_forward_fp8") == 0);
    use.scaling = Fp8Scaling::block;
    CHECK(count_with(use, "_fp8") == 0);
    CHECK(names(use).count("quantize_weight_tiles N=256 C=64") == 1);
    CHECK(names(use).count("bf16 to e5m2, all values") == 0);
    for (const Architecture* architecture : kArchitectures) {
        use = tiny_model(*architecture, 64, 2, 1);
        use.bf16 = false;
        for (const std::string& name : names(use)) CHECK(name.find("bf16") == std::string::npos);
    }
}

// Architectures differ in the words below; a model's items must contain exactly its own words.
TEST_CASE("a check has the items that the model's table asks for, and no others") {
    using Words = std::set<std::string>;
    const std::vector<std::string> all = split(
        "layernorm_forward bf16|layernorm_backward bf16|rmsnorm_forward bf16|rmsnorm_backward bf16|"
        "gelu_forward bf16|gelu_backward bf16|swiglu_forward bf16|relu2_forward bf16|"
        "qk_norm_rope bf16 HD=32 NH=2| NKV=1|without gains|without positions|with bias gradient|"
        "of gradients|capped at 15|layernorm_forward_fp8|layernorm_backward_fp8 e5m2|rmsnorm_forward_fp8|"
        "rmsnorm_backward_fp8 e5m2|gelu_forward_fp8|gelu_backward_fp8 e5m2|swiglu_forward_fp8|"
        "swiglu_backward_fp8 e5m2|relu2_forward_fp8|relu2_backward_fp8 e5m2|attention_forward_fp8|"
        "attention_backward_fp8",
        '|');
    const auto words_of = [&](const Architecture& architecture, int kv_heads) {
        KernelUse use = tiny_model(architecture, 64, 2, kv_heads);
        use.fp8 = true;
        Words found;
        for (const CheckItem& item : kernel_checks(use)) {
            for (const std::string& word : all)
                if (contains(item.name, word)) found.insert(word);
            if (item.name.starts_with("rope bf16")) found.insert("rope");
        }
        return found;
    };
    CHECK(words_of(kGpt2, 2) == Words{"layernorm_forward bf16", "layernorm_backward bf16", "gelu_forward bf16",
                                      "gelu_backward bf16", "with bias gradient", "layernorm_forward_fp8",
                                      "layernorm_backward_fp8 e5m2", "gelu_forward_fp8", "gelu_backward_fp8 e5m2",
                                      "attention_forward_fp8", "attention_backward_fp8"});
    Words llama = {
        "rmsnorm_forward bf16",      "rmsnorm_backward bf16", "swiglu_forward bf16",      " NKV=1",
        "without positions",         "of gradients",          "rmsnorm_forward_fp8",      "rope",
        "rmsnorm_backward_fp8 e5m2", "swiglu_forward_fp8",    "swiglu_backward_fp8 e5m2", "attention_forward_fp8"};
    CHECK(words_of(kLlama, 1) == llama);
    CHECK(words_of(kMistral, 1) == llama);
    Words qwen2 = llama;
    qwen2.erase("of gradients"), qwen2.insert("with bias gradient");
    CHECK(words_of(kQwen2, 1) == qwen2);
    llama.erase("rope"), llama.insert("qk_norm_rope bf16 HD=32 NH=2");
    CHECK(words_of(kQwen3, 1) == llama);
    CHECK(words_of(kNano, 2) ==
          Words{"rmsnorm_forward bf16", "rmsnorm_backward bf16", "relu2_forward bf16", "qk_norm_rope bf16 HD=32 NH=2",
                "without gains", "without positions", "of gradients", "capped at 15", "rmsnorm_forward_fp8",
                "rmsnorm_backward_fp8 e5m2", "relu2_forward_fp8", "relu2_backward_fp8 e5m2", "attention_forward_fp8"});
}

TEST_CASE("documents of a check: of all lengths, to the end of each row, and none where the run has none") {
    KernelUse use = tiny_gpt();
    CHECK(check::example_documents(use, 2, 149).empty());
    use.documents = true;
    const std::vector<int> begins = check::example_documents(use, 2, 8);
    CHECK(begins == std::vector<int>{0, 1, 1, 1, 1, 5, 5, 5, 0, 0, 2, 2, 2, 2, 2, 2});
    CHECK(check::example_documents(use, 2, 149).size() == 298);
    for (const CheckItem& item : kernel_checks(use))
        CHECK((item.name.starts_with("attention")) == (contains(item.name, " in documents")));
}

TEST_CASE("windows of a check: in one more item of attention, where the run has some") {
    const auto names = [](int window) {
        KernelUse use = tiny_model(kQwen3, 64, 2, 1);
        use.window = window;
        std::vector<std::string> names = names_of(use);
        std::erase_if(names, [](const std::string& name) { return !name.starts_with("attention bf16"); });
        return names;
    };
    using Names = std::vector<std::string>;
    CHECK(names(0) == Names{"attention bf16 HD=32 NH=2 NKV=1 B=2 T=277"});
    CHECK(names(5) ==
          Names{"attention bf16 HD=32 NH=2 NKV=1 B=2 T=277", "attention bf16 HD=32 NH=2 NKV=1 window=5 B=2 T=277"});
    CHECK(names(4096)[1] == "attention bf16 HD=32 NH=2 NKV=1 window=69 B=2 T=277");

    ModelConfig model;
    model.architecture = &kQwen3;
    model.layers = 3, model.heads = 2, model.channels = 64, model.vocab = 101, model.context = 64;
    KernelUse use;
    for (const auto& [layers, window] : {std::pair{"LLL", 0}, {"LLS", 7}, {"", 7}}) {
        model.window = 7, model.window_layers = layers;
        use.set_model(model);
        CHECK(use.window == window);
    }
}

TEST_CASE("heads of a check: grouped as the run's, and few") {
    const auto heads = [](int NH, int NKV) {
        KernelUse use;
        use.heads = NH, use.kv_heads = NKV, use.head_dim = 64;
        return reference::text_of(check::few_heads(use));
    };
    CHECK(heads(12, 12) == "HD=64 NH=3");
    CHECK(heads(1, 1) == "HD=64 NH=1");
    CHECK(heads(32, 8) == "HD=64 NH=8 NKV=2");
    CHECK(heads(6, 3) == "HD=64 NH=4 NKV=2");
    CHECK(heads(32, 1) == "HD=64 NH=4 NKV=1");
}

TEST_CASE("kernel checks: flags decide which kernels a run uses") {
    using Flags = std::vector<std::pair<const char*, const char*>>;
    std::set<std::vector<std::string>> seen;
    for (const Flags& flags :
         {Flags{}, Flags{{"precision", "bf16"}}, Flags{{"precision", "fp32"}, {"optimizer", "lion"}},
          Flags{{"precision", "fp32"}, {"cautious-decay", "true"}}, Flags{{"precision", "fp32"}, {"nesterov", "on"}},
          Flags{{"fp8-recipe", "mxfp8"}, {"reduce", "fp8"}, {"z-loss", "1e-4"}},
          Flags{{"fp8-recipe", "current"}, {"fp8-grad", "e4m3"}, {"doc-mask", "true"}}, Flags{{"model", "llama3.2-1b"}},
          Flags{{"model", "nano-d4"}, {"optimizer", "normuon"}}}) {
        Options o;
        o.precision = Precision::fp8;
        for (const auto& [flag, value] : flags) find_flag(flag)->set(o, value);
        ResolveInputs inputs;
        inputs.ranks = 3;
        resolve(o, inputs);
        CHECK(seen.insert(names_of(KernelUse(o, 3))).second);
    }
}
