// The probe of layers in FP8: its errors against FP64 products of operands that the test casts itself, the format's
// range for random operands, and an outlier that only spoils its own block if scales are per block.
#include <cmath>

#include "llmc/check/reference_quantize.h"
#include "test/linear/sums.h"
#include "test/model/fp8_training.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kRows = 128, kChannels = 128;

ModelConfig probed_model() {
    ModelConfig config;
    config.name = "probed";
    config.layers = 1, config.heads = 4, config.channels = kChannels, config.vocab = 101, config.context = 64;
    return config;
}

Fp8Config probed(Fp8Recipe kind, Fp8Grad grad = Fp8Grad::e5m2) {
    Fp8Config config = recipe(kind);
    config.grad = grad;
    config.probe = true;
    return config;
}

std::vector<double> in_bf16(const std::vector<float>& values) {
    std::vector<double> rounded;
    for (const float value : values) rounded.push_back(static_cast<double>(to_float(to_bf16(value))));
    return rounded;
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

// A layer whose operands the test chooses, and its errors.
struct ProbedLayer {
    Fp8Model test;
    Linear<bf16>& layer;
    const int C, OC;
    std::vector<float> x, weight, dout;  // (N, C), (OC, C), (N, OC)

    explicit ProbedLayer(const Fp8Config& config)
        : test(probed_model(), 2, 64, Recompute::none, &config),
          layer(test.model.linear().find("h.0.fc")),
          C(layer.inputs()),
          OC(layer.outputs()) {
        test.trainer.initialize(3);
        const size_t N = kRows;
        x = random_normal<float>(N * C, 1.0f, 1);
        weight = random_normal<float>(static_cast<size_t>(OC * C), 0.02f, 2);
        dout = random_normal<float>(N * OC, 1e-3f, 3);
    }

    // Forward and backward once, in a step that calibrates.
    void run() {
        test.trainer.set_weight("h.0.fc.weight", weight);
        test.trainer.weights_are_set();
        const auto stored = [](const std::vector<float>& values) {
            std::vector<bf16> rounded;
            for (const float value : values) rounded.push_back(to_bf16(value));
            return rounded;
        };
        DeviceArray<bf16> in(stored(x)), gradient(stored(dout)), out(dout.size()), dinp(x.size());
        test.trainer.begin_step({.probes = true});
        test.fp8->laboratory().probe(true);
        run_layer(test, layer, out, dinp, in, gradient);
    }
    double error(Fp8Probed product) {
        const int place = test.fp8->find("h.0.fc.x") / kFp8Roles;
        return probed_error(test.fp8->laboratory().read_probed(test.stream)[Fp8Laboratory::probed_row(place, product)]);
    }
    Fp8State state(Fp8Role role) {
        const int place = test.fp8->find("h.0.fc.x") / kFp8Roles;
        return test.read(test.fp8->state(place, role));
    }
};

// Checks ||fp8 - bf16|| / ||bf16|| and the allowed error of the probe: sums in FP32, in any order, may move a result
// within its bound, and to BF16's neighbour if that crosses a rounding boundary.
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
        differences += difference * difference, squares += expected * expected;
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

// For a value in [2^e, 2^(e+1)) the error of rounding to M mantissa bits is evenly distributed over +-2^(e-M-1): its
// mean square is between 2^(-2M-2)/12 and four times that, relative to the value's square. Errors of both operands are
// independent of each other and of the values, so their squares add up in a product.
struct Range {
    double least, most;
    Range(int first_bits, int second_bits) {
        const double squares = std::ldexp(1.0, -2 * first_bits - 2) + std::ldexp(1.0, -2 * second_bits - 2);
        least = std::sqrt(squares / 12), most = std::sqrt(squares / 3);
    }
    bool has(double error) const { return error > least && error < most; }
};

}  // namespace

TEST_CASE("fp8 probe: errors are those of FP64 products of the same operands" *
          doctest::test_suite(kNotUnderSanitizers)) {
    for (const Fp8Grad grad : {Fp8Grad::e5m2, Fp8Grad::e4m3}) {
        CAPTURE(word_of(grad));
        ProbedLayer run(probed(Fp8Recipe::current, grad));
        run.run();
        const std::vector<double> x = in_bf16(run.x), dout = in_bf16(run.dout), w = in_bf16(run.weight);
        const std::vector<double> master(run.weight.begin(), run.weight.end());
        const auto x8 = in_fp8<e4m3>(x, run.state(Fp8Role::x)), w8 = in_fp8<e4m3>(master, run.state(Fp8Role::w));
        const Fp8State state = run.state(Fp8Role::dout);
        const auto dout8 = grad == Fp8Grad::e4m3 ? in_fp8<e4m3>(dout, state) : in_fp8<e5m2>(dout, state);
        const int N = kRows, C = run.C, OC = run.OC;
        const auto columns = [](const std::vector<double>& values, int rows, int channels) {
            return transposed(values, rows, channels);
        };
        check_error(run.error(Fp8Probed::forward), {x8, w8, C}, {x, w, C}, true);
        check_error(run.error(Fp8Probed::dgrad), {dout8, columns(w8, OC, C), OC}, {dout, columns(w, OC, C), OC}, true);
        check_error(run.error(Fp8Probed::wgrad), {columns(dout8, N, OC), columns(x8, N, C), N},
                    {columns(dout, N, OC), columns(x, N, C), N}, false);
    }
}

TEST_CASE("fp8 probe: errors of random operands are as large as the formats say") {
    for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::current, Fp8Recipe::block, Fp8Recipe::mxfp8}) {
        CAPTURE(static_cast<int>(recipe));
        ProbedLayer run(probed(recipe));
        run.run();
        const int gradient_bits = scaling_of(recipe) == Fp8Scaling::tensor ? 2 : 3;
        CHECK(Range(3, 3).has(run.error(Fp8Probed::forward)));
        CHECK(Range(gradient_bits, 3).has(run.error(Fp8Probed::dgrad)));
        CHECK(Range(gradient_bits, 3).has(run.error(Fp8Probed::wgrad)));
    }
}

// One input is 2^30 and meets weights of 0, so it affects no product. With one scale for the tensor all other inputs
// become 0, and nothing of the output is left. With scales per block only its own block does: 128 of a row's 128
// channels, or 32 of them, in one row of 128.
TEST_CASE("fp8 probe: an outlier spoils a whole tensor with one scale, but only its own block with several") {
    const auto forward_error = [](Fp8Recipe recipe) {
        ProbedLayer run(probed(recipe));
        run.x[0] = 0x1p30f;
        for (int row = 0; row < run.OC; row++) run.weight[row * run.C] = 0;
        run.run();
        return run.error(Fp8Probed::forward);
    };
    CHECK(forward_error(Fp8Recipe::current) == 1);
    const double usual = Range(3, 3).most;
    for (const auto& [recipe, share] : {std::pair{Fp8Recipe::block, 1.0 / 128}, {Fp8Recipe::mxfp8, 0.25 / 128}}) {
        const double error = forward_error(recipe);
        CHECK(error < std::sqrt(usual * usual + 1.5 * share));
        CHECK(error > std::sqrt(0.5 * share));
    }
}
