// Tests of the AdamW kernel: one update against FP64, the decay boundary, tails, skipping, and independence of
// position.
#include "llmc/kernels/update.h"

#include "llmc/kernels/quantize.h"
#include "test/kernels/updates.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr AdamWConfig kConfig{0.9, 0.95, 1e-8, 0.1};

StepState example_state() {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    state.bias_correction1 = static_cast<float>(1 / (1 - std::pow(0.9, 3)));
    state.bias_correction2 = static_cast<float>(1 / (1 - std::pow(0.95, 3)));
    return state;
}

// The tensors of one update on the device, with poison behind each.
template <class Real>
struct Tensors {
    std::vector<float> master, m, v, grad;
    DeviceArray<float> device_master, device_m, device_v, device_grad;
    DeviceArray<Real> working;
    DeviceArray<StepState> state{1};

    explicit Tensors(size_t n)
        : master(random_normal<float>(n, 0.5f, 1)),
          m(random_normal<float>(n, 0.01f, 2)),
          v(n),
          grad(random_normal<float>(n, 0.2f, 4)),
          device_master(poisoned_behind(master)),
          device_m(poisoned_behind(m)),
          device_v(n + kPoison),
          device_grad(poisoned_behind(grad)),
          working(n + kPoison) {
        for (size_t i = 0; i < n; i++) v[i] = 1e-4f + grad[i] * grad[i] * 0.01f;
        device_v.upload(poisoned_behind(v));
        state.upload({example_state()});
    }
    void update(size_t count, size_t decay_count, size_t offset = 0, Fp8State* fp8 = nullptr) {
        adamw_update<Real, float>(device_master + offset, device_m + offset, device_v + offset, working + offset, fp8,
                                  device_grad + offset, count, decay_count, kConfig, state, test_stream());
    }
};

}  // namespace

TEST_CASE_TEMPLATE("adamw_update equals PyTorch's formula in FP64", Real, float, bf16) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{8}, size_t{2048}, size_t{4101}}) {
        for (const size_t decay_count : {size_t{0}, n / 2, n}) {
            CAPTURE(n);
            CAPTURE(decay_count);
            Tensors<Real> t(n);
            t.update(n, decay_count);

            const auto expected = reference::adamw(t.master, t.m, t.v, t.grad, decay_count, kConfig, example_state());
            const std::vector<float> master = t.device_master.download(), after_v = t.device_v.download();
            const auto error = [&](const std::vector<float>& actual, const std::vector<double>& wanted, double floor) {
                return max_relative_error(first(actual, n), wanted, floor);
            };
            CHECK(error(master, expected.master, reference::kMasterFloor) < reference::kAdamWError);
            CHECK(error(t.device_m.download(), expected.m, reference::kFirstMomentFloor) < reference::kAdamWError);
            CHECK(error(after_v, expected.v, reference::kSecondMomentFloor) < reference::kAdamWError);
            check_copy_and_tail(t.working.download(), master, after_v, n);
        }
    }
}

TEST_CASE("decay stops exactly at decay_count") {
    const size_t n = 100, decay_count = 43;
    Tensors<float> none(n), some(n);
    none.update(n, 0);
    some.update(n, decay_count);
    const std::vector<float> a = none.device_master.download(), b = some.device_master.download();
    for (size_t i = 0; i < n; i++) CHECK((a[i] == b[i]) == (i >= decay_count));
}

TEST_CASE("a skipped step writes nothing") {
    const size_t n = 2051;
    Tensors<bf16> t(n);
    StepState state = example_state();
    state.skip = 1;
    t.state.upload({state});
    const auto master = t.device_master.download(), m = t.device_m.download(), v = t.device_v.download();
    const auto working = t.working.download();
    t.update(n, n);
    CHECK(same_bits(t.device_master.download(), master));
    CHECK(same_bits(t.device_m.download(), m));
    CHECK(same_bits(t.device_v.download(), v));
    CHECK(same_bits(t.working.download(), working));
}

TEST_CASE("slices give the bits of the whole") {
    // A slice may start at any multiple of 4 floats (16 bytes); its elements then sit in other lanes than in the whole.
    const size_t n = 4101, cut = 1004, decay_count = 1500;
    Tensors<float> whole(n), sliced(n);
    whole.update(n, decay_count);
    sliced.update(cut, cut);
    sliced.update(n - cut, decay_count - cut, cut);
    CHECK(same_bits(first(sliced.device_master.download(), n), first(whole.device_master.download(), n)));
    CHECK(same_bits(first(sliced.device_v.download(), n), first(whole.device_v.download(), n)));
    CHECK(same_bits(first(sliced.working.download(), n), first(whole.working.download(), n)));
}

TEST_CASE("adamw_update needs no working copy, and refuses misaligned tensors") {
    const size_t n = 100;
    Tensors<float> with(n), without(n);
    with.update(n, 50);
    adamw_update<float, float>(without.device_master, without.device_m, without.device_v, nullptr, nullptr,
                               without.device_grad, n, 50, kConfig, without.state, test_stream());
    CHECK(same_bits(first(with.device_master.download(), n), first(without.device_master.download(), n)));
    CHECK_THROWS_AS(with.update(8, 0, 1), Error);
    CHECK_THROWS_AS(with.update(8, 9), Error);
}

TEST_CASE("the largest new weight is measured, whoever holds it, and nothing else changes") {
    for (const size_t n : {size_t{1}, size_t{33}, size_t{1024}, size_t{8192}, size_t{8200}, size_t{20001}}) {
        CAPTURE(n);
        Tensors<bf16> plain(n), measured(n);
        for (const size_t largest : {size_t{0}, n / 2, n - 1}) {
            auto master = plain.master;
            master[largest] = -5.0f - static_cast<float>(n);
            for (Tensors<bf16>* t : {&plain, &measured}) t->device_master.upload(poisoned_behind(master));
            Fp8State before{};
            before.scale = 3.0f, before.amax = 0.5f, before.amax_now = 0.25f, before.elements = 7;
            DeviceArray<Fp8State> fp8(std::vector<Fp8State>{before});
            plain.update(n, n / 2);
            measured.update(n, n / 2, 0, fp8);
            const auto after = first(measured.device_master.download(), n);
            CHECK(same_bits(after, first(plain.device_master.download(), n)));
            CHECK(same_bits(first(measured.device_v.download(), n), first(plain.device_v.download(), n)));
            before.amax_now = std::fabs(after[largest]);
            CHECK(same_bits(fp8.download(), std::vector<Fp8State>{before}));
        }
    }
}

TEST_CASE("the amax is that of the pass that measures weights, bit for bit") {
    const int R = 48, C = 144;
    Tensors<bf16> t(static_cast<size_t>(R * C));
    DeviceArray<Fp8State> states(std::vector<Fp8State>(2));
    for (int step = 0; step < 3; step++) {
        t.update(static_cast<size_t>(R * C), 1000, 0, states.get());
        quantize_weight({nullptr, nullptr, states + 1}, t.device_master, R, C, QuantizePass::measure, test_stream());
        const auto after = states.download();
        CHECK(after[0].amax_now > 0);
        CHECK(same_bits(std::vector<Fp8State>{after[0]}, {after[1]}));
        states.upload(std::vector<Fp8State>(2));
    }
}

TEST_CASE("a weight that is not finite makes the amax infinite; a skipped step does not measure") {
    const size_t n = 3000;
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
        Tensors<bf16> t(n);
        auto master = t.master;
        master[2077] = bad;
        t.device_master.upload(poisoned_behind(master));
        DeviceArray<Fp8State> fp8(std::vector<Fp8State>(1));
        t.update(n, n, 0, fp8);
        CHECK(fp8.download()[0].amax_now == INFINITY);

        StepState state = example_state();
        state.skip = 1;
        t.state.upload({state});
        fp8.upload(std::vector<Fp8State>(1));
        t.update(n, n, 0, fp8);
        CHECK(fp8.download()[0].amax_now == 0.0f);
    }
}
