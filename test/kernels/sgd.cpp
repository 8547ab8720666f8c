// Tests of SGD's kernels: steps after each other against torch.optim.SGD's formula with decoupled decay in FP64, and
// what every update promises.
#include "llmc/kernels/update.h"

#include "test/kernels/updates.h"

using namespace llmc;
using namespace llmc::test;

namespace {

auto update_with(const SgdConfig& config) {
    return [config](auto& t, size_t count, size_t decay_count, size_t offset, Fp8State* fp8) {
        sgd_update(t.device_master + offset, t.device_m + offset, t.working + offset, fp8, t.device_grad + offset,
                   count, decay_count, config, t.state, test_stream());
    };
}

}  // namespace

TEST_CASE_TEMPLATE("sgd_update equals PyTorch's formula in FP64, with and without momentum and Nesterov's", Real, float,
                   bf16) {
    for (const SgdConfig& config : {SgdConfig{0.9, false, 0.1}, SgdConfig{0.9, true, 0.1}, SgdConfig{0, false, 0.1}})
        for (const size_t n : {size_t{1}, size_t{7}, size_t{4101}}) {
            CAPTURE(config.momentum);
            CAPTURE(config.nesterov);
            CAPTURE(n);
            OneMoment<Real> t(n);
            std::vector<float> master = t.master,
                               m(n, 0.0f);  // PyTorch's first buffer is the gradient: from 0 it is too
            t.device_m.upload(poisoned_behind(m));
            for (int step = 0; step < 3; step++) {
                update_with(config)(t, n, n / 2, 0, nullptr);
                const auto expected = reference::sgd(master, m, t.grad, n / 2, config, example_step());
                master = first(t.device_master.download(), n), m = first(t.device_m.download(), n);
                CHECK(max_relative_error(master, expected.master, reference::kMasterFloor) < reference::kAdamWError);
                if (config.momentum > 0)
                    CHECK(max_relative_error(m, expected.m, reference::kSumMomentFloor) < reference::kAdamWError);
                else
                    CHECK(same_bits(m, std::vector<float>(n, 0.0f)));
            }
        }
}

TEST_CASE("sgd_update: momentum and Nesterov's each make another update") {
    std::vector<std::vector<float>> results;
    for (const SgdConfig& config : {SgdConfig{0.9, false, 0.1}, SgdConfig{0.9, true, 0.1}, SgdConfig{0, false, 0.1}}) {
        OneMoment<float> t(64);
        update_with(config)(t, 64, 32, 0, nullptr);
        results.push_back(first(t.device_master.download(), 64));
    }
    CHECK(!same_bits(results[0], results[1]));
    CHECK(!same_bits(results[0], results[2]));
}

TEST_CASE_TEMPLATE("sgd_update writes what it should and nothing more", Real, float, bf16) {
    check_tails_and_copies<Real>(update_with({0.9, true, 0.1}));
}

TEST_CASE("sgd_update keeps the promises of all updates") {
    check_promises(update_with({0.9, true, 0.1}));
    check_promises(update_with({0.9, false, 0.1}));
    check_promises(update_with({0, false, 0.1}));
}

TEST_CASE("sgd_update without momentum needs no moment") {
    OneMoment<float> with(100), without(100);
    update_with({0, false, 0.1})(with, 100, 50, 0, nullptr);
    sgd_update<float>(without.device_master, nullptr, nullptr, nullptr, without.device_grad, 100, 50, {0, false, 0.1},
                      without.state, test_stream());
    CHECK(same_bits(first(with.device_master.download(), 100), first(without.device_master.download(), 100)));
}
