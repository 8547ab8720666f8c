// Tests of Lion's kernel: one update against the definition in FP64, and what every update promises.
#include "llmc/kernels/update.h"

#include "test/kernels/updates.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr LionConfig kConfig{0.9, 0.99, 0.1};

const auto kUpdate = [](auto& t, size_t count, size_t decay_count, size_t offset, Fp8State* fp8) {
    lion_update(t.device_master + offset, t.device_m + offset, t.working + offset, fp8, t.device_grad + offset, count,
                decay_count, kConfig, t.state, test_stream());
};

}  // namespace

TEST_CASE_TEMPLATE("lion_update equals the published algorithm in FP64", Real, float, bf16) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}})
        for (const size_t decay_count : {size_t{0}, n / 2, n}) {
            CAPTURE(n);
            CAPTURE(decay_count);
            OneMoment<Real> t(n);
            for (size_t i = 0; i < n; i++) {  // the sign is not a matter of rounding
                const double a = 0.9 * t.m[i], b = 0.1 * 0.25 * t.grad[i];
                REQUIRE(std::fabs(a + b) > 1e-6 * (std::fabs(a) + std::fabs(b)));
            }
            kUpdate(t, n, decay_count, 0, nullptr);
            const auto expected = reference::lion(t.master, t.m, t.grad, decay_count, kConfig, example_step());
            const auto error = [&](const std::vector<float>& actual, const std::vector<double>& wanted, double floor) {
                return max_relative_error(first(actual, n), wanted, floor);
            };
            CHECK(error(t.device_master.download(), expected.master, reference::kMasterFloor) < reference::kAdamWError);
            CHECK(error(t.device_m.download(), expected.m, reference::kFirstMomentFloor) < reference::kAdamWError);
        }
}

TEST_CASE("lion_update: where average and gradient are 0 nothing but decay happens") {
    OneMoment<float> t(64);
    t.device_m.upload(poisoned_behind(std::vector<float>(64, 0.0f)));
    t.device_grad.upload(poisoned_behind(std::vector<float>(64, 0.0f)));
    kUpdate(t, 64, 32, 0, nullptr);
    const std::vector<float> after = t.device_master.download();
    for (size_t i = 0; i < 64; i++)
        CHECK(after[i] == doctest::Approx(i < 32 ? t.master[i] * (1 - 2e-3 * 0.1) : t.master[i]).epsilon(1e-6));
    for (size_t i = 32; i < 64; i++) CHECK(after[i] == t.master[i]);
}

TEST_CASE_TEMPLATE("lion_update writes what it should and nothing more", Real, float, bf16) {
    check_tails_and_copies<Real>(kUpdate);
}

TEST_CASE("lion_update keeps the promises of all updates") { check_promises(kUpdate); }
