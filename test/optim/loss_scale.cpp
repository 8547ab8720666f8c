// Tests of loss scaling: sequences of clean and skipped steps against a simulation, and the flag's values.
#include "llmc/optim/prepare_step.h"

#include <random>

#include "llmc/base/error.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

struct Scaling {
    LossScaleConfig config;
    DeviceArray<LossScaleState> state{1};
    DeviceArray<StepState> step{1};

    int skips = 0;  // in a row

    explicit Scaling(const LossScaleConfig& c) : config(c) { reset_loss_scale(state, config, test_stream()); }
    LossScaleState after(bool skip) {
        StepState outcome = {};
        outcome.skip = skip;
        outcome.consecutive_skips = skips = skip ? skips + 1 : 0;
        step.upload({outcome});
        update_loss_scale(state, step, config, test_stream());
        return state.download()[0];
    }
};

}  // namespace

TEST_CASE("with a hysteresis of 3 the scale halves from the third skip in a row on") {
    Scaling scaling({true, 64.0f, 2, 128.0f, 1.0f, 3});
    const std::pair<bool, float> sequence[] = {{true, 64.0f}, {true, 64.0f},  {false, 64.0f}, {true, 64.0f},
                                               {true, 64.0f}, {true, 32.0f},  {true, 16.0f},  {false, 16.0f},
                                               {true, 16.0f}, {false, 16.0f}, {false, 32.0f}};
    for (const auto& [skip, scale] : sequence) CHECK(scaling.after(skip).scale == scale);
}

TEST_CASE("dynamic scaling follows a simulation, and the changes multiply up to the scale") {
    Scaling scaling({true, 65536.0f, 4, 16777216.0f, 1.0f});
    std::mt19937 random(7);
    int exponent = 16, clean = 0;
    double product = 65536;
    for (int i = 0; i < 400; i++) {
        // In stretches with few skips the scale reaches the largest value, in others the smallest.
        const bool skip = random() % 100 < (i / 100 % 2 ? 70 : 2);
        if (skip) {
            clean = 0;
            exponent = std::max(exponent - 1, 0);
        } else if (++clean == 4) {
            clean = 0;
            exponent = std::min(exponent + 1, 24);
        }
        const LossScaleState state = scaling.after(skip);
        product *= static_cast<double>(state.change);
        REQUIRE(state.scale == std::ldexp(1.0f, exponent));
        REQUIRE(product == static_cast<double>(state.scale));
    }
}

TEST_CASE("a fixed scale never changes") {
    Scaling scaling({false, 1024.0f, 2, 16777216.0f, 1.0f});
    for (const bool skip : {false, false, true, false, false, false, true, true}) {
        const LossScaleState state = scaling.after(skip);
        CHECK(state.scale == 1024.0f);
        CHECK(state.change == 1.0f);
    }
}

TEST_CASE("--loss-scale: off, dynamic, dynamic:N or a power of two") {
    CHECK(!loss_scale_config("off").dynamic);
    CHECK(loss_scale_config("off").initial == 1.0f);
    CHECK(loss_scale_config("dynamic").dynamic);
    CHECK(loss_scale_config("dynamic").initial == 65536.0f);
    CHECK(loss_scale_config("dynamic").growth_interval == 1000);
    CHECK(loss_scale_config("dynamic").hysteresis == 1);
    CHECK(loss_scale_config("dynamic:2").dynamic);
    CHECK(loss_scale_config("dynamic:2").initial == 65536.0f);
    CHECK(loss_scale_config("dynamic:2").hysteresis == 2);
    CHECK(!loss_scale_config("4096").dynamic);
    CHECK(loss_scale_config("4096").initial == 4096.0f);
    CHECK(loss_scale_config("1").initial == 1.0f);
    CHECK(loss_scale_config("16777216").initial == 16777216.0f);
    for (const char* wrong :
         {"", "on", "3", "0", "-2", "0.5", "33554432", "nan", "inf", "2x", "dynamic:", "dynamic:0", "dynamic:2x"})
        CHECK_THROWS_AS(loss_scale_config(wrong), Error);
    CHECK_THROWS_WITH(loss_scale_config("1000"),
                      "--loss-scale 1000: expected off, dynamic, dynamic:N or a power of two from 1 to 16777216");
}
