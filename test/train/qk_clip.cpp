// Attention's largest logits against GPT-2 in FP64, and QK-clip against algorithm 1 of arXiv 2507.20534.
#include "llmc/kernels/clip.h"

#include <cmath>
#include <map>

#include "llmc/device/transfer.h"
#include "llmc/model/architecture.h"
#include "llmc/train/signals.h"
#include "test/kernels/specifications/reference.h"
#include "test/model/gpt2_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kBatch = 2, kLength = 32;
using Tensors = std::map<std::string, std::vector<float>>;

// ---- GPT-2 in FP64 -------------------------------------------------------------------------------------------------

// out (N, rows of the weight) = inp (N, columns) weight^T + bias.
std::vector<double> linear(const std::vector<double>& inp, const std::vector<float>& weight,
                           const std::vector<float>& bias) {
    const size_t rows = bias.size(), columns = weight.size() / rows;
    std::vector<double> out;
    for (size_t n = 0; n < inp.size() / columns; n++)
        for (size_t r = 0; r < rows; r++) {
            double sum = bias[r];
            for (size_t c = 0; c < columns; c++) sum += double{weight[r * columns + c]} * inp[n * columns + c];
            out.push_back(sum);
        }
    return out;
}

std::vector<double> layer_norm(const std::vector<double>& inp, const std::vector<float>& weight,
                               const std::vector<float>& bias) {
    const int C = static_cast<int>(weight.size()), N = static_cast<int>(inp.size()) / C;
    return reference::normed_rows(inp, reference::layernorm_statistics(inp, N, C), reference::to_doubles(weight),
                                  reference::to_doubles(bias));
}

void add(std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); i++) x[i] += y[i];
}

// The largest logit of each head (layers, NH), raised over the micro-batches of a step.
void raise_to_logits(std::vector<double>& maxima, const ModelConfig& model, const Tensors& weights,
                     const std::vector<int>& tokens) {
    const size_t C = static_cast<size_t>(model.channels);
    const reference::AttentionShape shape{kBatch, kLength, model.heads, model.head_dim()};
    std::vector<double> x;
    for (size_t n = 0; n < tokens.size(); n++)
        for (size_t c = 0; c < C; c++)
            x.push_back(double{weights.at("wte")[static_cast<size_t>(tokens[n]) * C + c]} +
                        weights.at("wpe")[n % kLength * C + c]);
    for (int l = 0; l < model.layers; l++) {
        const auto of = [&](const char* name) -> const std::vector<float>& {
            return weights.at("h." + std::to_string(l) + "." + name);
        };
        const std::vector<double> qkv =
            linear(layer_norm(x, of("ln1.weight"), of("ln1.bias")), of("qkv.weight"), of("qkv.bias"));
        const auto begin = maxima.begin() + l * model.heads;
        std::vector<double> own(begin, begin + model.heads), bounds(own.size());
        reference::raise_to_logits(own, bounds, shape, qkv, 0);
        std::copy(own.begin(), own.end(), begin);
        const std::vector<double> none(shape.elements());
        add(x, linear(reference::attention(shape, qkv, none, 0, 0).out, of("attn_proj.weight"), of("attn_proj.bias")));
        std::vector<double> hidden =
            linear(layer_norm(x, of("ln2.weight"), of("ln2.bias")), of("fc.weight"), of("fc.bias"));
        for (double& h : hidden) h = reference::Gelu(h).value;
        add(x, linear(hidden, of("fc_proj.weight"), of("fc_proj.bias")));
    }
}

// ---- runs ----------------------------------------------------------------------------------------------------------

ModelConfig grouped_model() {
    ModelConfig model = small_model(2, kLength);
    model.architecture = &kLlama;
    model.heads = 4, model.kv_heads = 2, model.channels = 128;
    return model;
}

struct Setup {
    ModelConfig model = small_model(2, kLength);
    double limit = 0;
    const Fp8Config* fp8 = nullptr;
    StateFormat masters = StateFormat::fp32;
    OptimizerKind optimizer = OptimizerKind::adamw;
    bool offload = false;
    double rate = 1e-2;
};

TrainerConfig config_of(const Setup& s) {
    TrainerConfig config = trainer_config(s.model, kBatch, kLength, Recompute::none, s.fp8);
    config.micro_steps = 2;
    config.schedule = {ScheduleKind::constant, s.rate, 0, 100, 0};
    config.optimizer.kind = s.optimizer, config.optimizer.masters = s.masters;
    config.sharding.offload_state = s.offload;
    config.qk_clip = s.limit;
    config.signals_every = 1;
    return config;
}

template <class Real>
struct ClippedRun : TestModel<Real> {
    explicit ClippedRun(const Setup& s) : TestModel<Real>(config_of(s)) {
        this->trainer.initialize(3);
        // Queries and keys of freshly initialised weights are small. The factor differs from head to head, and biases
        // count, too.
        Tensors all = tensors();
        const size_t head = static_cast<size_t>(s.model.head_dim() * s.model.channels);
        const int heads = s.model.heads + s.model.key_value_heads();
        for (auto& [name, values] : all) {
            for (int h = 0; h < heads && name.ends_with("qkv.weight"); h++)
                for (size_t i = 0; i < head; i++)
                    values[static_cast<size_t>(h) * head + i] *= static_cast<float>(8 + 3 * (h % s.model.heads));
            for (size_t i = 0; i < values.size() && name.ends_with("qkv.bias"); i++)
                values[i] = 0.3f * static_cast<float>(std::sin(static_cast<double>(i)));
        }
        set(all);
    }
    Tensors tensors() {
        Tensors all;
        for (const Unit& unit : this->table.units())
            for (const ParameterTensor& tensor : unit.tensors) all[tensor.name] = this->trainer.get_weight(tensor.name);
        return all;
    }
    void set(const Tensors& all) {
        for (const auto& [name, values] : all) this->trainer.set_weight(name, values);
        this->trainer.weights_are_set();
    }
    StepRecord step(int index) {
        this->begin_step();
        for (int m = 0; m < 2; m++) {
            const Batch batch = small_batch(2 * index + m, kBatch * kLength);
            this->trainer.micro_step(batch.tokens.data(), batch.targets.data());
        }
        return this->finish_step();
    }
    std::vector<float> max_logits() {
        return read_back(this->model.max_logits(), this->model.max_logit_count(), this->stream);
    }
};

// Algorithm 1: the weights after the optimizer's step, scaled where the step's logits exceeded the limit. Returns the
// number of heads that it clips.
int clip(Tensors& all, const ModelConfig& model, const std::vector<float>& maxima, double limit) {
    const size_t HD = static_cast<size_t>(model.head_dim());
    const bool shared = model.key_value_heads() < model.heads;
    int clipped = 0;
    for (int l = 0; l < model.layers; l++)
        for (int h = 0; h < model.heads; h++) {
            const double gamma = std::min(1.0, limit / double{maxima[static_cast<size_t>(l * model.heads + h)]});
            clipped += gamma < 1;
            for (const auto& [name, columns] :
                 {std::pair{".qkv.weight", static_cast<size_t>(model.channels)}, {".qkv.bias", size_t{1}}}) {
                const auto tensor = all.find("h." + std::to_string(l) + name);
                if (tensor == all.end()) continue;
                const auto scale = [&](int head, double factor) {
                    for (size_t i = 0; i < HD * columns; i++) {
                        float& weight = tensor->second[static_cast<size_t>(head) * HD * columns + i];
                        weight = static_cast<float>(double{weight} * factor);
                    }
                };
                scale(h, shared ? gamma : std::sqrt(gamma));
                if (!shared) scale(model.heads + h, std::sqrt(gamma));
            }
        }
    return clipped;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); i++) largest = std::max(largest, std::fabs(double{a[i]} - b[i]));
    return largest;
}

}  // namespace

TEST_CASE_TEMPLATE("the largest logits of a step are those of GPT-2 in FP64, over its micro-batches" *
                       doctest::test_suite(kNotUnderSanitizers),
                   Real, float, bf16) {
    ClippedRun<Real> run({});
    for (int step = 0; step < 2; step++) {
        const Tensors weights = run.tensors();
        const ModelConfig& model = run.config;
        std::vector<double> expected(run.model.max_logit_count(), -INFINITY), second = expected;
        for (int m = 0; m < 2; m++)
            raise_to_logits(expected, model, weights, small_batch(2 * step + m, kBatch * kLength).tokens);
        raise_to_logits(second, model, weights, small_batch(2 * step + 1, kBatch * kLength).tokens);
        CHECK(second != expected);  // the first micro-batch has one of the largest
        const StepRecord record = run.step(step);
        const std::vector<float> measured = run.max_logits();
        for (size_t i = 0; i < measured.size(); i++)
            CHECK(measured[i] == doctest::Approx(expected[i]).epsilon(sizeof(Real) == 2 ? 0.02 : 1e-5));
        int layer = 0;
        for (const TensorSignal& signal : record.signals) {
            CHECK(signal.max_logit.has_value() == signal.tensor.ends_with("qkv.weight"));
            if (!signal.max_logit) continue;
            const auto begin = measured.begin() + layer++ * model.heads;
            CHECK(signal.max_logit->logit == *std::max_element(begin, begin + model.heads));
            CHECK(signal.max_logit->logit == begin[signal.max_logit->head]);
        }
        CHECK(layer == model.layers);
    }
}

// The other run makes the optimizer's step from the same weights and moments without clipping.
TEST_CASE_TEMPLATE("QK-clip is algorithm 1 after every step" * doctest::test_suite(kNotUnderSanitizers), Real, float,
                   bf16) {
    const Fp8Config current{.recipe = Fp8Recipe::current, .fallback = {}};
    const StateFormat narrow = StateFormat::bf16;
    std::vector<Setup> setups = {{}, {.model = grouped_model()}, {.optimizer = OptimizerKind::muon}};
    if (sizeof(Real) == 2)
        for (const Setup& s : {Setup{.fp8 = &current},
                               {.masters = narrow},
                               {.fp8 = &current, .masters = narrow},
                               {.fp8 = &current, .offload = true}})
            setups.push_back(s);
    for (Setup s : setups) {
        ClippedRun<Real> other(s);
        s.limit = 6;
        ClippedRun<Real> run(s);
        int clipped = 0, heads = 0;
        for (int step = 0; step < 4; step++) {
            CAPTURE(step);
            const double loss = run.step(step).loss;
            CHECK(loss == other.step(step).loss);
            const std::vector<float> maxima = run.max_logits();
            CHECK(maxima == other.max_logits());
            const Tensors after = run.tensors(), unclipped = other.tensors();
            Tensors expected = unclipped;
            clipped += clip(expected, s.model, maxima, s.limit);
            heads += static_cast<int>(maxima.size());
            for (const auto& [name, values] : after) {
                CAPTURE(name);
                // Masters in BF16 are rounded at random to a neighbour.
                const double step_of_masters = s.masters == narrow ? 1.0 / 128 : 1e-6;
                double largest = 0;
                for (const float weight : expected.at(name)) largest = std::max(largest, std::fabs(double{weight}));
                CHECK(largest_difference(values, expected.at(name)) <= step_of_masters * largest);
                if (name.find("qkv") == std::string::npos) CHECK(values == unclipped.at(name));
            }
            other.set(after);
        }
        CHECK(clipped > 0);
        CHECK(clipped < heads);
    }
}

// In the first layer nothing changes but its own weights, if the learning rate is zero.
TEST_CASE("QK-clip brings the first layer's logits to the limit, on the same batch" *
          doctest::test_suite(kNotUnderSanitizers)) {
    const Fp8Config delayed{.recipe = Fp8Recipe::delayed, .fallback = {}},
        current{.recipe = Fp8Recipe::current, .fallback = {}};
    const auto check = [&]<class Real>(const Setup& setup, double tolerance) {
        for (const double limit : {0.0, 6.0}) {
            Setup s = setup;
            s.rate = 0, s.limit = limit;
            ClippedRun<Real> run(s);
            run.step(0);
            const std::vector<float> before = run.max_logits();
            run.step(0);
            const std::vector<float> after = run.max_logits();
            for (int h = 0; h < s.model.heads; h++) {
                CAPTURE(h);
                const double expected = limit > 0 ? std::min(double{before[h]}, limit) : before[h];
                CHECK(after[h] == doctest::Approx(expected).epsilon(tolerance));
            }
            CHECK(*std::max_element(before.begin(), before.begin() + s.model.heads) > 1.5 * 6);
        }
    };
    for (const Setup& s : {Setup{}, {.model = grouped_model()}}) {
        check.operator()<float>(s, 1e-5);
        check.operator()<bf16>(s, 0.01);
        for (const Fp8Config* fp8 : {&delayed, &current}) {
            Setup in_fp8 = s;
            in_fp8.fp8 = fp8;
            check.operator()<bf16>(in_fp8, 0.06);
        }
    }
}
