// A small GPT-2 with the fixture's weights, on the device, for the tests of model/ and optim/.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"
#include "llmc/model/gpt2.h"
#include "test/fixture.h"
#include "test/kernel_test.h"
#include "test/model/all_weights.h"

namespace llmc::test {

inline ModelConfig fixture_config(const Gpt2Fixture& fixture) {
    ModelConfig config;
    config.name = "fixture";
    config.layers = fixture.integer("layers");
    config.heads = fixture.integer("heads");
    config.channels = fixture.integer("channels");
    config.vocab = fixture.integer("vocab");
    config.context = fixture.integer("context");
    return config;
}

struct Batch {
    std::vector<int> tokens, targets;  // (B, T)
};

// Batch `index` of the fixture: B sequences of T + 1 tokens, as inputs and targets.
inline Batch fixture_batch(const Gpt2Fixture& fixture, int index) {
    const size_t B = fixture.integer("batch"), T = fixture.integer("seq");
    const std::vector<int32_t> all = fixture.tokens();  // (steps, B, T + 1)
    Batch batch;
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++) {
            const size_t at = (static_cast<size_t>(index) * B + b) * (T + 1) + t;
            batch.tokens.push_back(all[at]);
            batch.targets.push_back(all[at + 1]);
        }
    return batch;
}

template <class Real>
struct TestModel {
    ModelConfig config;
    ParameterTable table;
    Comm comm = Comm::self();
    Parameters<Real> parameters;
    Matmul matmul;
    std::unique_ptr<Fp8Tensors> fp8;
    Gpt2<Real> model;
    stream_t stream = test_stream();

    // fp8_config: run the blocks' linear layers in FP8 (bf16 models only).
    TestModel(const ModelConfig& config_, int B, int T, Recompute recompute, const Fp8Config* fp8_config = nullptr,
              const std::string& fp8_layers = "all")
        : config(config_),
          table(gpt2_units(config_), 1),
          parameters(table, comm),
          matmul(false, FastAccumulation::forward, fp8_config ? scaling_of(fp8_config->recipe) : Fp8Scaling::tensor),
          fp8(fp8_config ? std::make_unique<Fp8Tensors>(config_, *fp8_config, Fp8Layers(fp8_layers, config_.layers),
                                                        B * T, recompute)
                         : nullptr),
          model(config_, B, T, recompute, parameters, matmul, fp8.get()) {
        parameters.allocate(stream);
        model.allocate();
        if (fp8) fp8->allocate(stream);
        if (fp8) fp8->count_losses(true);
    }
    ~TestModel() {
        tear_down_in_test([&] { synchronize(stream); });
    }

    // The fixture's weights; wte's padded rows are 0.
    void load(const Gpt2Fixture& fixture) {
        for (size_t u = 0; u < table.units().size(); u++)
            for (size_t t = 0; t < table.unit(u).tensors.size(); t++) {
                std::vector<float> values = fixture.weight(table.unit(u).tensors[t].name);
                values.resize(table.unit(u).tensors[t].count(), 0.0f);
                parameters.set_tensor(u, t, values, stream);
            }
        model.prepare_weights(stream);
    }

    // All gradients, tensor after tensor.
    std::vector<std::vector<float>> gradients() {
        std::vector<std::vector<float>> all;
        for (size_t u = 0; u < table.units().size(); u++)
            for (size_t t = 0; t < table.unit(u).tensors.size(); t++)
                all.push_back(parameters.get_gradient(u, t, stream));
        return all;
    }

    template <class T>
    T read(const T* device) {
        return read_back(device, stream);
    }
    double mean_train_loss() {
        return read(model.train_loss_sum()) / static_cast<double>(read(model.train_loss_count()));
    }
    double mean_eval_loss() { return read(model.eval_loss_sum()) / static_cast<double>(read(model.eval_loss_count())); }
};

}  // namespace llmc::test
