// The model table, the arithmetic on shapes, model files, and every refusal of validate().
#include "llmc/model/config.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "llmc/device/error.h"

using namespace llmc;

namespace {

// The message of the bad_flags error that `call` must throw.
template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::bad_flags);
        return error.what();
    }
    return "(nothing was thrown)";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct ModelFile {
    std::filesystem::path path;
    explicit ModelFile(const std::string& text, const std::string& name = "tiny.json") {
        path = std::filesystem::temp_directory_path() / ("llmc_model_" + std::to_string(::getpid())) / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    ~ModelFile() { std::filesystem::remove_all(path.parent_path()); }
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

TEST_CASE("model config: every table entry either validates or names its head dimension") {
    for (const std::string& name : model_names()) {
        CAPTURE(name);
        CHECK(is_model_name(name));
        const ModelConfig m = find_model(name);
        CHECK(m.name == name);
        if (name == "gpt3-760m" || name == "gpt3-2.7b") {
            const std::string message = refusal([&] { m.validate(); });
            CHECK(contains(message, "head dimension " + std::to_string(m.head_dim())));
            CHECK(contains(message, "--heads " + std::to_string(m.channels / 64)));
        } else {
            CHECK_NOTHROW(m.validate());
            CHECK((m.head_dim() == 64 || m.head_dim() == 128));
        }
    }
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
}

TEST_CASE("model config: JSON files") {
    {
        ModelFile file(R"({"layers": 2, "heads": 2, "channels": 64, "vocab": 300, "context": 32})");
        CHECK(find_model(file.path.string()) == ModelConfig{"tiny", 2, 2, 64, 300, 32});
    }
    {
        ModelFile file(R"({"layers": 2, "heads": 2, "channels": 64})");  // vocab and context come from elsewhere
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
    CHECK(contains(message("{"), "not a JSON object"));
    CHECK(contains(message(R"({"heads": 2, "channels": 64})"), "\"layers\" is missing"));
    CHECK(contains(message(R"({"layers": "2", "heads": 2, "channels": 64})"), "\"layers\" is \"2\""));
    CHECK(contains(message(R"({"layers": 0, "heads": 2, "channels": 64})"), "\"layers\" is 0"));
    CHECK(contains(message(R"({"layers": 2, "head": 2, "channels": 64})"), "unknown field \"head\""));
    CHECK(contains(message(R"({"model_type": "llama", "n_layer": 2, "n_head": 2, "n_embd": 64})"), "\"llama\""));
    CHECK(contains(message(R"({"n_inner": 100, "n_layer": 2, "n_head": 2, "n_embd": 64})"), "n_inner"));
    CHECK(contains(message(R"({"tie_word_embeddings": false, "n_layer": 2, "n_head": 2, "n_embd": 64})"), "tie_word"));
    CHECK(contains(refusal([] { find_model("no/such.json"); }), "cannot open the model file no/such.json"));

    const std::string unknown = refusal([] { find_model("gpt4"); });
    CHECK(contains(unknown, "unknown model \"gpt4\""));
    for (const std::string& name : model_names()) CHECK(contains(unknown, name));
    CHECK(contains(refusal([] { find_model("gpt2:d12"); }), "is d12 here"));
    CHECK(contains(refusal([] { find_model("gpt3:c2048"); }), "is gpt3-1.3b here"));
    CHECK(contains(refusal([] { find_model("gpt2_124M_bf16.bin"); }), "--init-from"));
}
