// What tests of optimizers with one moment share: the tensors of an update, and what every such kernel promises.
#pragma once
#include <cstring>

#include "llmc/kernels/adamw.h"
#include "test/kernel_test.h"

namespace llmc::test {

inline StepState example_step() {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    return state;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
inline std::vector<float> first(std::vector<float> values, size_t n) {
    values.resize(n);
    return values;
}

// On the device, with 16 elements of poison behind each.
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
          device_master(padded(master)),
          device_m(padded(m)),
          device_grad(padded(grad)),
          working(n + 16) {}
    static std::vector<float> padded(std::vector<float> values) {
        values.resize(values.size() + 16, NAN);
        return values;
    }
};

// update(tensors, count, decay_count, offset, fp8) runs the kernel on some of the tensors.
template <class Real, class Update>
void check_tails_and_copies(const Update& update) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}}) {
        CAPTURE(n);
        OneMoment<Real> t(n);
        update(t, n, n / 2, 0, nullptr);
        const std::vector<float> master = t.device_master.download(), m = t.device_m.download();
        const std::vector<Real> working = t.working.download();
        for (size_t i = 0; i < n; i++) {
            const Real rounded = to<Real>(master[i]);
            REQUIRE(std::memcmp(&working[i], &rounded, sizeof(Real)) == 0);
        }
        for (size_t i = n; i < n + 16; i++) {  // nothing behind the end was written
            REQUIRE(to_float(working[i]) != to_float(working[i]));
            REQUIRE(master[i] != master[i]);
            REQUIRE(m[i] != m[i]);
        }
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
    measured.device_master.upload(OneMoment<bf16>::padded(master));
    update(measured, n, 0, 0, fp8);
    CHECK(fp8.download()[0].amax_now == std::fabs(measured.device_master.download()[2077]));

    CHECK_THROWS_AS(update(whole, 8, 0, 1, nullptr), Error);
    CHECK_THROWS_AS(update(whole, 8, 9, 0, nullptr), Error);
}

}  // namespace llmc::test
