// The model table, the arithmetic on shapes, model files, and every refusal of validate().
#include "llmc/model/config.h"
#include "llmc/base/json.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "llmc/base/error.h"
#include "llmc/model/model_file.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The message of the bad_flags error that `call` must throw.
template <class Call>
std::string refusal(Call call) {
    return error_of(call, ExitCode::bad_flags);
}

struct ModelFile {
    const TemporaryDirectory directory;
    const std::filesystem::path path;
    explicit ModelFile(const std::string& text, const std::string& name = "tiny.json")
        : path(make_file(directory / name, text)) {}
};

}  // namespace

TEST_CASE("model config: published parameter counts") {
    // Hugging Face's num_parameters() of gpt2, gpt2-medium, gpt2-large, gpt2-xl.
    CHECK(find_model("gpt2").parameters() == 124439808);
    CHECK(find_model("gpt2-medium").parameters() == 354823168);
    CHECK(find_model("gpt2-large").parameters() == 774030080);
    CHECK(find_model("gpt2-xl").parameters() == 1557611200);
    CHECK(find_model("d12").padded_parameters() == 124475904);  // llm.c's num_parameters, 50304 rows
    CHECK(find_model("d6").channels == 384);
    CHECK(find_model("d4") == ModelConfig{"d4", 4, 4, 256, 50257, 1024});
    CHECK(find_model("d2") == ModelConfig{"d2", 2, 2, 128, 50257, 1024});
    CHECK(find_model("tiny") == ModelConfig{"tiny", 4, 4, 128, 50257, 256});
    CHECK(find_model("d36").heads == 20);
    CHECK(find_model("gpt3-6.7b").head_dim() == 128);
    CHECK(find_model("gpt3-1.3b").context == 2048);
}

TEST_CASE("model config: padding and FLOPs") {
    ModelConfig m = find_model("d12");
    CHECK(m.padded_vocab() == 50304);
    m.vocab = 128;
    CHECK(m.padded_vocab() == 128);
    m.vocab = 129;
    CHECK(m.padded_vocab() == 256);
    m.vocab = 50257;
    // 12 blocks of 12*768*768, and 50257*768 once.
    CHECK(m.matrix_parameters() == 84934656 + 38597376);
    CHECK(m.flops_per_token(1024) == doctest::Approx(6.0 * 123532032 + 6.0 * 12 * 768 * 1024).epsilon(1e-12));
    CHECK(m.flops_per_token(2048) - m.flops_per_token(1024) == doctest::Approx(6.0 * 12 * 768 * 1024).epsilon(1e-12));
}

TEST_CASE("model config: every table entry validates") {
    for (const std::string& name : model_names()) {
        CAPTURE(name);
        CHECK(is_model_name(name));
        const ModelConfig m = find_model(name);
        CHECK(m.name == name);
        CHECK_NOTHROW(m.validate());
    }
    CHECK(find_model("gpt3-760m").head_dim() == 96);
    CHECK(find_model("gpt3-2.7b").head_dim() == 80);
    CHECK(!is_model_name("d13"));
}

TEST_CASE("model config: refusals say what to do") {
    const ModelConfig good{"mine", 2, 4, 128, 1000, 64};
    CHECK_NOTHROW(good.validate());
    auto with = [&](auto change) {
        ModelConfig m = good;
        change(m);
        return refusal([&] { m.validate(); });
    };
    CHECK(contains(with([](auto& m) { m.layers = 0; }), "layers is 0"));
    CHECK(contains(with([](auto& m) { m.heads = -1; }), "heads is -1"));
    CHECK(contains(with([](auto& m) { m.channels = 0; }), "channels is 0"));
    CHECK(contains(with([](auto& m) { m.vocab = 0; }), "vocab is 0"));
    CHECK(contains(with([](auto& m) { m.context = -5; }), "context is -5"));
    CHECK(contains(with([](auto& m) { m.vocab = 1 << 30; }), "vocab"));
    CHECK(contains(with([](auto& m) { m.channels = 100; }), "use --channels 96"));
    CHECK(contains(with([](auto& m) { m.channels = 16; }), "use --channels 32"));
    CHECK(contains(with([](auto& m) { m.heads = 3; }), "channels=128 cannot be divided by heads=3"));
    CHECK(contains(with([](auto& m) { m.heads = 3; }), "--heads 2 (head dimension 64)"));
    CHECK(contains(with([](auto& m) { m.heads = 8; }), "head dimension 16"));
    // Every advised number of heads is one that validates.
    const auto advised = with([](auto& m) { m.channels = 3840, m.heads = 32; });  // head dimension 120
    for (const int HD : {32, 64, 80, 96, 128, 256}) {
        const std::string advice = fmt::format("--heads {} (head dimension {})", 3840 / HD, HD);
        CHECK(contains(advised, advice));
        CHECK(with([&](auto& m) { m.channels = 3840, m.heads = 3840 / HD; }) == "");
    }
}

TEST_CASE("model config: JSON files") {
    {
        ModelFile file(R"({"layers": 2, "heads": 2, "channels": 64, "vocab": 300, "context": 32})");
        CHECK(find_model(file.path.string()) == ModelConfig{"tiny", 2, 2, 64, 300, 32});
    }
    {
        ModelFile file(R"({"layers": 2, "heads": 2, "channels": 64})");  // vocab and context come from other sources
        CHECK(find_model(file.path.string()) == ModelConfig{"tiny", 2, 2, 64, 0, 0});
    }
    {
        ModelFile file(R"({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257,
            "n_positions": 1024, "n_ctx": 1024, "n_inner": null, "activation_function": "gelu_new", "resid_pdrop": 0.1})",
                       "config.json");
        ModelConfig m = find_model(file.path.parent_path().string());
        CHECK(m.parameters() == 124439808);
        CHECK(m.name == file.path.parent_path().filename().string());
    }
}

TEST_CASE("model config: bad files and names") {
    auto message = [](const std::string& text) {
        ModelFile file(text);
        return refusal([&] { find_model(file.path.string()); });
    };
    CHECK(contains(message("[1]"), "not a JSON object"));
    CHECK(contains(message("{"), "is not JSON: parse error"));
    CHECK(contains(message(R"({"heads": 2, "channels": 64})"), "\"layers\" is missing"));
    CHECK(contains(message(R"({"layers": "2", "heads": 2, "channels": 64})"), "\"layers\" is \"2\""));
    CHECK(contains(message(R"({"layers": 0, "heads": 2, "channels": 64})"), "\"layers\" is 0"));
    // Eight times as many channels do not fit into an int, nor does a third of that, SwiGLU's width.
    CHECK(contains(message(R"({"architecture": "llama", "layers": 2, "heads": 2, "channels": 409128256})"),
                   "\"channels\" is 409128256"));
    CHECK(
        contains(message(R"({"layers": 2, "head": 2, "channels": 64})"),
                 "unknown field \"head\"; the fields are architecture, name, layers, heads, channels, vocab, context"));
    CHECK(contains(message(R"({"architecture": "llama", "layers": 2, "head": 2, "channels": 64})"),
                   "context, kv_heads, head_dim"));
    CHECK(contains(message(R"({"model_type": "gemma", "n_layer": 2, "n_head": 2, "n_embd": 64})"), "\"gemma\""));
    CHECK(
        contains(refusal([] { find_model("no/such.json"); }), "cannot open the model file no/such.json: No such file"));

    const std::string unknown = refusal([] { find_model("gpt4"); });
    CHECK(contains(unknown, "unknown model \"gpt4\""));
    for (const std::string& name : model_names()) CHECK(contains(unknown, name));
    CHECK(contains(refusal([] { find_model("gpt2:d12"); }), "is d12 here"));
    CHECK(contains(refusal([] { find_model("gpt3:c2048"); }), "is gpt3-1.3b here"));
    CHECK(contains(refusal([] { find_model("gpt2_124M_bf16.bin"); }), "--init-from"));
}

TEST_CASE("model config: other architectures, published parameter counts") {
    // Hugging Face's num_parameters() of meta-llama/Meta-Llama-3-8B, Llama-3.2-1B, TinyLlama, Mistral, Qwen 2.5 and
    // Qwen3.
    CHECK(find_model("llama3-8b").parameters() == 8030261248);
    CHECK(find_model("llama3.2-1b").parameters() == 1235814400);
    CHECK(find_model("tinyllama-1.1b").parameters() == 1100048384);
    CHECK(find_model("mistral-7b").parameters() == 7241732096);
    CHECK(find_model("qwen2.5-0.5b").parameters() == 494032768);
    CHECK(find_model("qwen2.5-1.5b").parameters() == 1543714304);
    CHECK(find_model("qwen2.5-3b").parameters() == 3085938688);
    CHECK(find_model("qwen2.5-7b").parameters() == 7615616512);
    CHECK(find_model("qwen3-0.6b").parameters() == 596049920);
    CHECK(find_model("qwen3-8b").parameters() == 8190735360);
    CHECK(find_model("qwen3-14b").parameters() == 14768307200);
    const ModelConfig llama = find_model("llama3-8b"), tied = find_model("llama3.2-1b"),
                      qwen = find_model("qwen3-0.6b");
    const int64_t block = int64_t{4096} * (4096 + 2 * 1024) + int64_t{4096} * 4096 + 3 * int64_t{4096} * 14336;
    CHECK(llama.matrix_parameters() == 32 * block + int64_t{128256} * 4096);  // the head counts, the embedding does not
    CHECK(llama.flops_per_token(8192) - llama.flops_per_token(4096) == 6.0 * 32 * 4096 * 4096);
    CHECK(llama.padded_vocab() == 128256);
    for (ModelConfig m : {llama, tied}) {
        m.vocab = 257;
        CHECK(m.padded_parameters() - m.parameters() == (384 - 257) * m.channels * (m.tied ? 1 : 2));
    }
    CHECK(qwen.head_dim() == 128);
    CHECK(qwen.attention_channels() == 2 * qwen.channels);
    CHECK(qwen.qkv_channels() == (16 + 2 * 8) * 128);
}

TEST_CASE("model config: Hugging Face's rotary positions of version 4 and 5, and errors that name a field") {
    const nlohmann::json common = {{"model_type", "llama"},    {"hidden_size", 128},           {"num_hidden_layers", 2},
                                   {"num_attention_heads", 4}, {"num_key_value_heads", 2},     {"vocab_size", 300},
                                   {"intermediate_size", 256}, {"max_position_embeddings", 64}};
    const auto read = [&](nlohmann::json more) {
        nlohmann::json file = common;
        file.update(more);
        return model_from_json(file, "there");
    };
    nlohmann::json scaling = {{"factor", 32.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
    scaling["rope_type"] = "llama3";
    const ModelConfig v4 = read({{"rope_theta", 500000.0}, {"rope_scaling", scaling}});
    scaling["rope_theta"] = 500000.0;
    const ModelConfig v5 = read({{"rope_parameters", scaling}});
    CHECK(v4 == v5);
    CHECK(v4.rope == RopeConfig{500000, 32, 1, 4, 8192});
    CHECK(read(nlohmann::json::object()).rope == RopeConfig{});
    CHECK(read(nlohmann::json::object()).kv_heads == 2);
    CHECK(!read(nlohmann::json::object()).tied);
    CHECK(read({{"rms_norm_eps", 1e-5}}).norm_eps == 1e-5);
    // A written model has both.
    const nlohmann::json written = hf_model_json(v4);
    CHECK(written.at("architectures")[0] == "LlamaForCausalLM");
    CHECK(written.at("rope_theta") == 500000.0);
    CHECK(written.at("rope_scaling").at("factor") == 32.0);
    CHECK(written.at("rope_parameters") == scaling);

    const auto refused = [&](nlohmann::json more) { return refusal([&] { read(more); }); };
    CHECK(contains(refused({{"num_key_value_heads", 0}}), "\"num_key_value_heads\" is 0"));
    CHECK(contains(refusal([&] { read({{"num_key_value_heads", 3}}).validate(); }), "cannot share 3 heads"));
    CHECK(contains(refusal([&] { read({{"head_dim", 72}}).validate(); }), "head dimension 72"));
    CHECK_NOTHROW(read({{"head_dim", 256}}).validate());
    // 64 heads of 2^26 + 1 channels are 64 channels too many for 32 bits, and this model has 64.
    CHECK(contains(refused({{"head_dim", (1 << 26) + 1}, {"num_attention_heads", 64}, {"hidden_size", 64}}),
                   "64 heads of queries and 2 of keys and values, with 67108865 channels each, are too many"));
}

TEST_CASE("model config: windows in Qwen3's file and in ours") {
    const auto read = [](nlohmann::json more) {
        nlohmann::json file = {{"model_type", "qwen3"},    {"num_hidden_layers", 4},  {"num_attention_heads", 2},
                               {"hidden_size", 64},        {"intermediate_size", 96}, {"max_position_embeddings", 64},
                               {"num_key_value_heads", 1}, {"head_dim", 32},          {"vocab_size", 101}};
        file.update(more);
        ModelConfig model = model_from_json(file, "config.json");
        model.validate();
        return model;
    };
    const auto windows = [](const ModelConfig& model) {
        std::vector<int> of_layers;
        for (int layer = 0; layer < model.layers; layer++) of_layers.push_back(model.window_of(layer));
        return of_layers;
    };
    using Windows = std::vector<int>;
    const nlohmann::json on = {{"use_sliding_window", true}, {"sliding_window", 8}};
    const auto with = [&](nlohmann::json more) {
        more.update(on);
        return more;
    };
    const nlohmann::json types = {"sliding_attention", "sliding_attention", "full_attention", "sliding_attention"};
    CHECK(windows(read(with({{"layer_types", types}}))) == Windows{8, 8, 0, 8});
    CHECK(windows(read(with({{"max_window_layers", 3}}))) == Windows{0, 0, 0, 8});
    // Layers that the file calls full are full, and unused window settings are ignored.
    CHECK(read(with({{"max_window_layers", 4}})).window == 0);
    CHECK(read({{"use_sliding_window", false}, {"sliding_window", 8}}).window == 0);

    // Our form, written and read back, and in the other program's form.
    ModelConfig model = read(nlohmann::json::object());
    model.window = 8, model.window_layers = "SL";
    CHECK(windows(model) == Windows{8, 0, 8, 0});
    CHECK(model_from_json(model_json(model), "").window_layers == "SL");
    const nlohmann::json written = hf_model_json(model);
    CHECK(written.at("use_sliding_window") == true);
    CHECK(written.at("sliding_window") == 8);
    CHECK(written.at("layer_types")[1] == "full_attention");
    CHECK(windows(read(written)) == windows(model));
    model.window_layers = "";
    CHECK(windows(model) == Windows(4, 8));

    // Useful work: a query attends to W of T keys, at 4 NH HD each per layer in the forward pass, except the first W
    // queries, which have fewer. As for full layers, half a key more or less is ignored.
    model.window_layers = "LLSL";
    const double full = 6.0 * 64 * 64, one = 12.0 * 64 * (8 - 8.0 * 8 / (2 * 64));
    CHECK(model.attention_flops_per_token(64) == doctest::Approx(3 * full + one));
    CHECK(model.attention_flops_per_token(8) == doctest::Approx(4 * 6.0 * 64 * 8));  // every query sees every key

    const auto refused = [&](nlohmann::json more) { return refusal([&] { read(more); }); };
    CHECK(contains(refused(with({{"layer_types", {"sliding_attention"}}})), "has 1 layers of 4"));
    CHECK(contains(refused(with({{"layer_types", {"linear_attention"}}})), "has \"linear_attention\""));
    CHECK(contains(refused({{"layer_types", types}}), "no window"));
    CHECK(contains(refused(with({{"max_window_layers", "all"}})), "\"max_window_layers\" is \"all\""));
    CHECK(contains(refused({{"use_sliding_window", true}, {"sliding_window", 0}, {"max_window_layers", 0}}),
                   "\"sliding_window\" is 0"));
    model.window_layers = "SLX";
    CHECK(contains(refusal([&] { model.validate(); }), "\"SLX\""));
    model.window = 0, model.window_layers = "SL";
    CHECK(contains(refusal([&] { model.validate(); }), "window is 0"));
}

TEST_CASE("model config: nano-dN for every depth, nanochat's 64 channels a layer in whole heads of 128") {
    const int shapes[][3] = {{1, 1, 128}, {8, 4, 512}, {10, 5, 640}, {11, 6, 768}, {12, 6, 768}, {26, 13, 1664}};
    for (const auto& [depth, heads, channels] : shapes) {
        const std::string name = "nano-d" + std::to_string(depth);
        CAPTURE(name);
        CHECK(is_model_name(name));
        const ModelConfig m = find_model(name);
        CHECK(m.name == name);
        CHECK(m.architecture == &kNano);
        CHECK(m.layers == depth);
        CHECK(m.heads == heads);
        CHECK(m.key_value_heads() == heads);
        CHECK(m.channels == channels);
        CHECK(m.head_dim() == 128);
        CHECK(m.mlp_channels() == 4 * channels);
        CHECK(!m.tied);
        CHECK(m.vocab == 32768);
        CHECK(m.context == 2048);
        CHECK(m.logit_cap == 15);
        CHECK(m.rope.theta == 100000);
    }
    for (const char* name : {"nano-d", "nano-d0", "nano-d012", "nano-d-1", "nano-d1001", "nano-d12x", "nano-d1e1"}) {
        CHECK(!is_model_name(name));
        CHECK(contains(refusal([&] { find_model(name); }), std::string("unknown model \"") + name));
    }
}

TEST_CASE("model config: our own fields of other architectures") {
    const auto read = [](const char* text) { return model_from_json(parse_json(text), "there"); };
    const ModelConfig llama = read(R"({"architecture": "llama", "layers": 2, "heads": 4, "channels": 128, "kv_heads": 2,
        "rope_scaling": {"factor": 8}})");
    CHECK(llama.architecture == &kLlama);
    CHECK(llama.hidden == 512);  // 8 * 128 / 3, in whole 256
    CHECK(llama.kv_heads == 2);
    CHECK(llama.rope == RopeConfig{500000, 8, 1, 4, 8192});
    for (const char* name : {"llama3.2-1b", "mistral-7b", "qwen2.5-3b", "qwen3-0.6b", "nano-d12"}) {
        const ModelConfig m = find_model(name);
        ModelConfig again = model_from_json(nlohmann::json(model_json(m)), "there");
        CHECK(model_json(again) == model_json(m));
        CHECK(again.parameters() == m.parameters());
    }
    CHECK(contains(refusal([&] { read(R"({"architecture": "lama", "layers": 2})"); }),
                   "gpt2, llama, mistral, qwen2, qwen3, nano"));
    CHECK(contains(refusal([&] { read(R"({"kv_heads": 2, "layers": 2, "heads": 4, "channels": 128})"); }),
                   "\"kv_heads\" is not for the architecture gpt2"));
}
