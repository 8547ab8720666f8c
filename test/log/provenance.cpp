// The versions that a program reports for itself and its libraries. Fingerprints of batches and weights: changes that
// must not affect them, and changes that must.
// build: per device, gpu test
#include "llmc/log/provenance.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "llmc/flags/options.h"
#include "llmc/shard/weights.h"
#include "llmc/train/trainer.h"

using namespace llmc;

TEST_CASE("versions: numbers of libraries") {
    CHECK(dotted_version(13000, {1000, 10}) == "13.0");
    CHECK(dotted_version(12090, {1000, 10}) == "12.9");
    CHECK(dotted_version(130101, {10000, 100, 1}) == "13.1.1");
    CHECK(dotted_version(22809, {10000, 100, 1}) == "2.28.9");
}

TEST_CASE("versions: the checkout, the compiler and the libraries of this build") {
    const std::map<std::string, std::string> by_name = versions_json();
    for (const auto& [name, version] : by_name) {
        if (name == "train_gpt") continue;
        CAPTURE(name);
        CHECK(!version.empty());
        CHECK(version_text().find("\n" + name + ": " + version + "\n") != std::string::npos);
    }
    CHECK(by_name.at("compiler").find(std::to_string(__GNUC__) + ".") != std::string::npos);
    CHECK(by_name.count("git") == 1);
    CHECK(by_name.count("built_for") == 1);
#if LLMC_CUDA
    for (const char* library : {"cuda", "cuda_runtime", "cublaslt"}) CHECK(by_name.count(library) == 1);
    CHECK(by_name.count("openblas") == 0);
#else
    CHECK(by_name.at("openblas").rfind("OpenBLAS ", 0) == 0);
    CHECK(by_name.count("openblas_core") == 1);
    CHECK(by_name.count("cuda") == 0);
#endif
}

namespace {

struct Samples {
    int count, T;
    std::vector<int> tokens, targets;  // (count, T)
    Samples(int n, int T_, uint32_t seed) : count(n), T(T_) {
        std::mt19937 random(seed);
        for (int b = 0; b < n; b++)
            for (int t = 0; t <= T; t++) {
                const int token = static_cast<int>(random() % 1000);
                if (t < T) tokens.push_back(token);
                if (t > 0) targets.push_back(token);
            }
    }
    void add_to(BatchFingerprint& fingerprint, int first, int n, int64_t place) const {
        const size_t at = static_cast<size_t>(first) * static_cast<size_t>(T);
        fingerprint.add(tokens.data() + at, targets.data() + at, n, T, place);
    }
    uint64_t whole() const {
        BatchFingerprint fingerprint;
        add_to(fingerprint, 0, count, 0);
        return fingerprint.value();
    }
};

ModelConfig tiny() {
    ModelConfig config;
    config.layers = 1, config.heads = 1, config.channels = 32, config.vocab = 100, config.context = 16;
    return config;
}

template <class Real>
struct SmallModel {
    TrainerConfig config;
    std::unique_ptr<Trainer<Real>> trainer;
    explicit SmallModel(uint64_t seed, StateFormat masters = StateFormat::fp32) {
        config.model = tiny();
        config.seq = 16;
        config.optimizer.masters = masters;
        trainer = std::make_unique<Trainer<Real>>(config, Comm::self());
        trainer->allocate();
        trainer->initialize(seed);
    }
    uint64_t fingerprint() {
        return weights_fingerprint(trainer->weights(), trainer->model().spare_memory(), trainer->stream());
    }
    std::vector<float> get(const char* name) {
        const auto place = trainer->table().find(name);
        return trainer->weights().get_tensor(place.unit, place.tensor, trainer->stream());
    }
    void set(const char* name, const std::vector<float>& values) {
        const auto place = trainer->table().find(name);
        trainer->weights().set_tensor(place.unit, place.tensor, values, trainer->stream());
    }
};

}  // namespace

TEST_CASE("batch fingerprint: the same for any split of a step into micro-steps and ranks") {
    const Samples samples(8, 33, 1);
    for (const int split : {1, 2, 4}) {
        uint64_t sum = 0;  // over two ranks that take turns
        for (int rank = 0; rank < 2; rank++) {
            BatchFingerprint fingerprint;
            for (int first = 0; first < samples.count; first += split)
                if (first / split % 2 == rank) samples.add_to(fingerprint, first, split, first);
            sum += fingerprint.value();
        }
        CHECK(sum == samples.whole());
    }
    BatchFingerprint again;
    samples.add_to(again, 0, 8, 0);
    again.clear();
    CHECK(again.value() == 0);
}

TEST_CASE("batch fingerprint: every token, the last target and every place count") {
    const Samples samples(4, 17, 2);
    for (const int row : {0, 3})
        for (const int t : {0, 1, 16}) {
            Samples changed = samples;
            changed.tokens[row * 17 + t]++;
            CHECK(changed.whole() != samples.whole());
        }
    Samples last = samples;
    last.targets.back()++;
    CHECK(last.whole() != samples.whole());

    BatchFingerprint swapped, moved;
    samples.add_to(swapped, 0, 1, 1);
    samples.add_to(swapped, 1, 1, 0);
    samples.add_to(swapped, 2, 2, 2);
    CHECK(swapped.value() != samples.whole());
    samples.add_to(moved, 0, 4, 4);
    CHECK(moved.value() != samples.whole());
}

TEST_CASE("weights fingerprint: follows every master weight, and does not depend on the working copy") {
    SmallModel<bf16> a(1), other(2);
    SmallModel<float> b(1);
    const uint64_t first = a.fingerprint();
    CHECK(first == a.fingerprint());
    CHECK(first == b.fingerprint());
    CHECK(first != other.fingerprint());
    for (const char* name : {"wte", "lnf.bias"}) {
        const std::vector<float> values = a.get(name);
        for (const size_t at : {size_t{0}, values.size() - 1})
            for (const uint32_t bit : {0u, 22u, 31u}) {
                std::vector<float> changed = values;
                changed[at] = float_from_bits(float_bits(values[at]) ^ (1u << bit));
                a.set(name, changed);
                CHECK(a.fingerprint() != first);
            }
        a.set(name, values);
        CHECK(a.fingerprint() == first);
    }
}

TEST_CASE("weights fingerprint: depends on the place of a value in its tensor and in the model") {
    SmallModel<float> model(1);
    const uint64_t first = model.fingerprint();
    const std::vector<float> matrix = model.get("h.0.attn_proj.weight");
    std::vector<float> exchanged = matrix;
    std::swap(exchanged[3], exchanged[700]);
    model.set("h.0.attn_proj.weight", exchanged);
    CHECK(model.fingerprint() != first);
    model.set("h.0.attn_proj.weight", matrix);

    // Two tensors of one shape, in one unit and in two.
    for (const char* other : {"h.0.ln2.bias", "lnf.bias"}) {
        const std::vector<float> values = model.get("h.0.ln1.bias");
        std::vector<float> different = values;
        different[5] = 1.5f;
        model.set("h.0.ln1.bias", different);
        const uint64_t here = model.fingerprint();
        model.set("h.0.ln1.bias", values);
        model.set(other, different);
        CHECK(model.get(other) != values);
        CHECK(model.fingerprint() != here);
        model.set(other, values);
        CHECK(model.fingerprint() == first);
    }
}

TEST_CASE("weights fingerprint: the same for BF16 and FP32 masters with the same values") {
    SmallModel<bf16> narrow(1, StateFormat::bf16);
    SmallModel<float> wide(1);
    CHECK(narrow.fingerprint() != wide.fingerprint());
    for (const Unit& unit : wide.trainer->table().units())
        for (const ParameterTensor& tensor : unit.tensors)
            wide.set(tensor.name.c_str(), narrow.get(tensor.name.c_str()));
    CHECK(narrow.fingerprint() == wide.fingerprint());
}

TEST_CASE("fingerprints are written as 16 digits") {
    CHECK(fingerprint_text(0x1fe) == "00000000000001fe");
    CHECK(fingerprint_text(~uint64_t{0}) == "ffffffffffffffff");
}
