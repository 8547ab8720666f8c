// The computations of `train_gpt inspect`: errors of FP8 products against FP64 products of operands that the test casts
// itself, the formats' range for a model's operands, wrong scales that are found, and gradients.
#include "llmc/train/inspection.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/model/model_file.h"
#include "test/kernels/specifications/reference_quantize.h"
#include "test/linear/sums.h"
#include "test/model/fp8_training.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kB = 2, kT = 64, kN = kB * kT;

ModelConfig tiny_llama() {
    return model_from_json({{"architecture", "llama"},
                            {"layers", 2},
                            {"channels", 64},
                            {"heads", 2},
                            {"kv_heads", 1},
                            {"hidden", 128},
                            {"context", kT},
                            {"vocab", 101}},
                           "tiny");
}

// A trainer of random weights. Its steps do not change them.
template <class Real>
struct Inspected : TestModel<Real> {
    explicit Inspected(const ModelConfig& model, const Fp8Config* fp8 = nullptr, float loss_scale = 1)
        : TestModel<Real>(config(model, fp8, loss_scale)) {
        this->trainer.initialize(3);
    }
    InspectedBatch run(float weight = 1) {
        const Batch batch = small_batch(0, kN);
        return inspect_batch(this->trainer, {batch.tokens.data(), batch.targets.data()}, weight);
    }

private:
    static TrainerConfig config(const ModelConfig& model, const Fp8Config* fp8, float loss_scale) {
        TrainerConfig config = trainer_config(model, kB, kT, Recompute::none, fp8);
        config.schedule = {ScheduleKind::constant, 0, 0, 100, 0};
        config.loss_scale.initial = loss_scale;
        return config;
    }
};

// ---- operands that the test casts itself ----------------------------------------------------------------------------

std::vector<double> in_fp64(const std::vector<bf16>& values) {
    std::vector<double> wide;
    for (const bf16 value : values) wide.push_back(static_cast<double>(to_float(value)));
    return wide;
}

// The values of the codes with one scale for all values.
template <class F8>
std::vector<double> in_fp8(const std::vector<double>& values, const Fp8State& state) {
    std::vector<double> rounded;
    for (const double value : values) {
        const double scaled = static_cast<double>(static_cast<float>(value) * state.scale);
        rounded.push_back(reference::value_of<F8>(reference::nearest_code<F8>(scaled).bits) *
                          static_cast<double>(state.scale_inv));
    }
    return rounded;
}

// Checks ||fp8 - bf16|| / ||bf16||: sums in FP32, in any order, may move a result within its bound, and to BF16's
// neighbour if that crosses a rounding boundary.
void check_error(double error, const ExactSums& fp8, const ExactSums& bf16_, bool rounded) {
    double differences = 0, squares = 0, moved = 0;
    const auto stored = [&](double value) {
        return rounded ? static_cast<double>(to_float(reference::nearest_bf16(value))) : value;
    };
    const auto may_move = [&](const ExactSums& product, size_t i, double u) {
        const double bound = (product.terms + 4) * u * product.magnitudes[i];
        return rounded ? stored(product.values[i] + bound) - stored(product.values[i] - bound) : bound;
    };
    for (size_t i = 0; i < fp8.values.size(); i++) {
        const double expected = stored(bf16_.values[i]), difference = stored(fp8.values[i]) - expected;
        differences += difference * difference;
        squares += expected * expected;
        const double both = may_move(fp8, i, fp8_unit()) + may_move(bf16_, i, fp32_unit());
        moved += both * both;
    }
    const double expected = std::sqrt(differences / squares), bound = std::sqrt(moved / squares) * (1 + expected);
    CAPTURE(expected);
    CAPTURE(bound);
    if (device_info().is_host) CHECK(bound < 0.1 * expected);
    CHECK(error == error);
    CHECK(std::fabs(error - expected) <= bound);
}

double error_of(const MatmulErrors& errors, const std::string& layer, MatmulErrors::Kind kind) {
    return MatmulErrors::error(errors.by_layer().at(layer)[kind]);
}

}  // namespace

TEST_CASE("inspect: errors are those of FP64 products of the same operands") {
    const ModelConfig model = small_model(1, kT);
    const std::string name = "h.0.attn_proj";
    std::vector<double> x, dout;
    {
        Inspected<bf16> run(model);
        run.model.linear().observe([&](auto& layer, const auto& in, const auto& gradient, const LayerPass& pass) {
            if (layer.name() != name) return;
            const size_t n = static_cast<size_t>(kN);
            x = in_fp64(read_back(in.value, n * layer.shape().C, pass.stream));
            dout = in_fp64(read_back(gradient.value, n * layer.shape().OC, pass.stream));
        });
        run.run();
    }
    for (const Fp8Grad grad : {Fp8Grad::e5m2, Fp8Grad::e4m3}) {
        CAPTURE(word_of(grad));
        Fp8Config config = recipe(Fp8Recipe::current);
        config.grad = grad;
        Inspected<bf16> fp8(model, &config), bf16_(model);
        fp8.run();
        const MatmulErrors errors(fp8.trainer, bf16_.trainer);
        bf16_.run();
        const auto state = [&](const char* role) {
            const int tensor = fp8.fp8->find(name + role);
            return read_back(fp8.fp8->states() + tensor, fp8.stream);
        };
        const std::vector<float> masters = fp8.trainer.get_weight(name + ".weight");
        std::vector<double> w, master(masters.begin(), masters.end());
        for (const float value : masters) w.push_back(static_cast<double>(to_float(to_bf16(value))));
        const auto x8 = in_fp8<e4m3>(x, state(".x")), w8 = in_fp8<e4m3>(master, state(".w"));
        const Fp8State gradient = state(".dout");
        const auto dout8 = grad == Fp8Grad::e4m3 ? in_fp8<e4m3>(dout, gradient) : in_fp8<e5m2>(dout, gradient);
        const int C = model.channels, OC = C;
        const auto columns = [](const std::vector<double>& values, int rows, int channels) {
            return transposed(values, rows, channels);
        };
        check_error(error_of(errors, name, MatmulErrors::forward), {x8, w8, C}, {x, w, C}, true);
        check_error(error_of(errors, name, MatmulErrors::dgrad), {dout8, columns(w8, OC, C), OC},
                    {dout, columns(w, OC, C), OC}, true);
        check_error(error_of(errors, name, MatmulErrors::wgrad), {columns(dout8, kN, OC), columns(x8, kN, C), kN},
                    {columns(dout, kN, OC), columns(x, kN, C), kN}, false);
    }
}

// Rounding to M mantissa bits has an error of 2^-M-1 / sqrt(3) to twice that, relative to a normal value: 0.018 to
// 0.036 for E4M3, 0.036 to 0.072 for E5M2. Errors of both operands are independent, so their squares add up in a
// product.
TEST_CASE("inspect: a wrong scale is found in the layer and the two products that it enters") {
    for (const ModelConfig& model : {small_model(2, kT), tiny_llama()}) {
        const Fp8Config config = recipe(Fp8Recipe::delayed);
        Inspected<bf16> fp8(model, &config);
        fp8.run();  // calibrates
        fp8.trainer.finish_step();
        const std::pair<const char*, std::array<bool, 3>> tensors[] = {
            {"", {}}, {".x", {true, false, true}}, {".w", {true, true, false}}, {".dout", {false, true, true}}};
        for (const auto& [tensor, is_wrong] : tensors) {
            CAPTURE(model.name);
            CAPTURE(tensor);
            Inspected<bf16> bf16_(model);
            float* scale_inv = nullptr;
            float right = 0;
            if (*tensor) {
                const int number = fp8.fp8->find("h.1.fc" + std::string(tensor));
                scale_inv = &fp8.fp8->state(number / kFp8Roles, role_of(number))->scale_inv;
                right = read_back(scale_inv, fp8.stream);
                write_through(scale_inv, 2 * right, fp8.stream);  // results are twice as large
            }
            const MatmulErrors errors(fp8.trainer, bf16_.trainer);
            bf16_.run();
            if (scale_inv) write_through(scale_inv, right, fp8.stream);
            CHECK(errors.by_layer().size() == 8);
            for (const auto& [layer, sums] : errors.by_layer())
                for (int kind = 0; kind < MatmulErrors::kKinds; kind++) {
                    CAPTURE(layer);
                    CAPTURE(kind);
                    const double error = MatmulErrors::error(sums[kind]);
                    const bool wrong = layer == "h.1.fc" && is_wrong[static_cast<size_t>(kind)];
                    CHECK(error > (wrong ? 0.9 : 0.01));
                    CHECK(error < (wrong ? 1.1 : 0.15));
                }
        }
    }
}

TEST_CASE("inspect: cosine and gain of gradients, and neither the loss scale nor a weight changes them") {
    const GradientSums sums({2, 0, 1}, {1, 1, 0});
    CHECK(sums.gain() == 1);
    CHECK(sums.cosine() == doctest::Approx(2 / std::sqrt(10.0)));
    const ModelConfig model = small_model(2, kT);
    const InspectedBatch fp32 = Inspected<float>(model).run(), same = Inspected<float>(model, nullptr, 1024).run(0.25f);
    CHECK(same.loss == fp32.loss);
    CHECK(same.gradients == fp32.gradients);
    const Fp8Config config = recipe(Fp8Recipe::delayed);
    const InspectedBatch bf16_ = Inspected<bf16>(model).run(), fp8 = Inspected<bf16>(model, &config).run();
    CHECK(std::fabs(fp8.loss / fp32.loss - 1) < 1e-3);
    for (const auto& [tensor, reference] : fp32.gradients) {
        CAPTURE(tensor);
        const GradientSums itself(reference, reference);
        CHECK(itself.cosine() == doctest::Approx(1).epsilon(1e-12));
        CHECK(itself.gain() == 1);
        const double in_bf16 = GradientSums(bf16_.gradients.at(tensor), reference).cosine();
        const double in_fp8 = GradientSums(fp8.gradients.at(tensor), reference).cosine();
        CHECK(in_bf16 > 0.999);
        CHECK(in_bf16 < 1);
        CHECK(in_fp8 < in_bf16);
        CHECK(in_fp8 > 0.95);
    }
}
