// Tests of llmc/kernels/elementwise: every size around a group of eight and around a block, exact results.
#include "llmc/kernels/elementwise.h"

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// One element, a part of a group, whole groups, whole blocks, and one more than each.
const size_t kSizes[] = {1, 7, 8, 9, 2048, 2049, 5003};

// Nothing beyond the first n elements of a poisoned array was written.
template <class T>
bool rest_is_poison(const std::vector<T>& values, size_t n) {
    for (size_t i = n; i < values.size(); i++)
        if (to_float(values[i]) == to_float(values[i])) return false;
    return true;
}

}  // namespace

TEST_CASE("cast rounds to nearest even, both ways") {
    for (const size_t n : kSizes) {
        std::vector<float> wide = random_normal<float>(n, 3.0f, 1);
        wide[0] = 1.00390625f;  // halfway between two BF16 numbers: to even, 1
        wide[n - 1] = std::numeric_limits<float>::infinity();
        std::vector<bf16> narrow(n);
        std::vector<float> back(n);
        for (size_t i = 0; i < n; i++) narrow[i] = to_bf16(wide[i]), back[i] = to_float(narrow[i]);

        DeviceArray<float> inp(wide), widened(n + 16);
        DeviceArray<bf16> rounded(n + 16);
        cast(rounded.get(), static_cast<const float*>(inp.get()), n, test_stream());
        cast(widened.get(), static_cast<const bf16*>(rounded.get()), n, test_stream());
        const std::vector<bf16> r = rounded.download();
        const std::vector<float> w = widened.download();
        CHECK(same_bits(std::vector<bf16>(r.begin(), r.begin() + n), narrow));
        CHECK(same_bits(std::vector<float>(w.begin(), w.begin() + n), back));
        CHECK(rest_is_poison(r, n));
        CHECK(rest_is_poison(w, n));
        if (n > 1) CHECK(to_float(r[0]) == 1.0f);
    }
}

TEST_CASE_TEMPLATE("add rounds the FP32 sum once, in place too", Real, float, bf16) {
    for (const size_t n : kSizes) {
        const std::vector<Real> a = random_normal<Real>(n, 1.0f, 2), b = random_normal<Real>(n, 10.0f, 3);
        std::vector<Real> expected(n);
        for (size_t i = 0; i < n; i++) expected[i] = to<Real>(to_float(a[i]) + to_float(b[i]));

        DeviceArray<Real> device_a(a), device_b(b), out(n + 16);
        add<Real>(out, device_a, device_b, n, test_stream());
        const std::vector<Real> values = out.download();
        CHECK(same_bits(std::vector<Real>(values.begin(), values.begin() + n), expected));
        CHECK(rest_is_poison(values, n));
        add<Real>(device_a, device_a, device_b, n, test_stream());
        CHECK(same_bits(device_a.download(), expected));
    }
}

TEST_CASE("elementwise launchers refuse misaligned tensors, and do nothing for n = 0") {
    DeviceArray<float> x(64);
    DeviceArray<bf16> narrow(64);
    CHECK_THROWS_AS(cast(narrow.get(), static_cast<const float*>(x.get() + 1), 8, test_stream()), Error);
    CHECK_THROWS_AS(add<float>(x, x, x + 2, 8, test_stream()), Error);
    add<float>(x, x, x, 0, test_stream());
    CHECK(rest_is_poison(x.download(), 0));
}
