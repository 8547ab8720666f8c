// What tests of updates share: tensors with poison behind them, and what every kernel with one moment promises.
#pragma once
#include <cstring>

#include "llmc/kernels/update.h"
#include "test/kernel_test.h"

namespace llmc::test {

inline StepState example_step() {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    return state;
}

// Elements behind the tensors of an update that it must leave as they are.
constexpr size_t kPoison = 16;

inline std::vector<float> poisoned_behind(std::vector<float> values) {
    values.resize(values.size() + kPoison, NAN);
    return values;
}
inline std::vector<float> first(std::vector<float> values, size_t n) {
    values.resize(n);
    return values;
}

// The working copy is the master, rounded, and nothing behind the n elements was written.
template <class Real>
void check_copy_and_tail(const std::vector<Real>& working, const std::vector<float>& master,
                         const std::vector<float>& moment, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const Real rounded = to<Real>(master[i]);
        REQUIRE(std::memcmp(&working[i], &rounded, sizeof(Real)) == 0);
    }
    for (size_t i = n; i < n + kPoison; i++) {
        REQUIRE(to_float(working[i]) != to_float(working[i]));
        REQUIRE(master[i] != master[i]);
        REQUIRE(moment[i] != moment[i]);
    }
}

template <class Real>
struct OneMoment {
    std::vector<float> master, m, grad;
    DeviceArray<float> device_master, device_m, device_grad;
    DeviceArray<Real> working;
    DeviceArray<StepState> state{std::vector<StepState>{example_step()}};

    explicit OneMoment(size_t n)
        : master(random_normal<float>(n, 0.5f, 1)),
          m(random_normal<float>(n, 0.01f, 2)),
          grad(random_normal<float>(n, 0.2f, 4)),
          device_master(poisoned_behind(master)),
          device_m(poisoned_behind(m)),
          device_grad(poisoned_behind(grad)),
          working(n + kPoison) {}
};

// update(tensors, count, decay_count, offset, fp8) runs the kernel on some of the tensors.
template <class Real, class Update>
void check_tails_and_copies(const Update& update) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}}) {
        CAPTURE(n);
        OneMoment<Real> t(n);
        update(t, n, n / 2, 0, nullptr);
        check_copy_and_tail(t.working.download(), t.device_master.download(), t.device_m.download(), n);
    }
}

template <class Update>
void check_promises(const Update& update) {
    const size_t n = 4101, cut = 1004, decay_count = 1500;
    OneMoment<float> whole(n), sliced(n), undecayed(n);
    update(whole, n, decay_count, 0, nullptr);
    update(sliced, cut, cut, 0, nullptr);
    update(sliced, n - cut, decay_count - cut, cut, nullptr);
    CHECK(same_bits(first(sliced.device_master.download(), n), first(whole.device_master.download(), n)));
    CHECK(same_bits(first(sliced.device_m.download(), n), first(whole.device_m.download(), n)));

    update(undecayed, n, 0, 0, nullptr);
    const std::vector<float> with = whole.device_master.download(), without = undecayed.device_master.download();
    for (size_t i = 0; i < n; i++) REQUIRE((with[i] == without[i]) == (i >= decay_count));

    OneMoment<bf16> skipped(n), measured(n);
    StepState state = example_step();
    state.skip = 1;
    skipped.state.upload({state});
    DeviceArray<Fp8State> fp8(std::vector<Fp8State>(1));
    const auto before = skipped.device_master.download(), before_m = skipped.device_m.download();
    update(skipped, n, n, 0, fp8);
    CHECK(same_bits(skipped.device_master.download(), before));
    CHECK(same_bits(skipped.device_m.download(), before_m));
    CHECK(fp8.download()[0].amax_now == 0.0f);

    auto master = measured.master;
    master[2077] = -9.0f;
    measured.device_master.upload(poisoned_behind(master));
    update(measured, n, 0, 0, fp8);
    CHECK(fp8.download()[0].amax_now == std::fabs(measured.device_master.download()[2077]));

    CHECK_THROWS_AS(update(whole, 8, 0, 1, nullptr), Error);
    CHECK_THROWS_AS(update(whole, 8, 9, 0, nullptr), Error);
}

}  // namespace llmc::test
