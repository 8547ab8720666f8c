// Shared by kernel tests: device arrays, seeded random inputs, and comparisons that NaN cannot pass.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "llmc/device/formats.cuh"
#include "llmc/device/transfer.h"
#include "test/kernels/specifications/reference.h"

namespace llmc::test {

// The device that test_stream() opens; tests of several ranks use another card than the first.
inline int test_device = 0;

// The stream of all kernel tests.
inline stream_t test_stream() {
    static stream_t stream = [] {
        open_device(test_device);
        return create_stream();
    }();
    return stream;
}

// For destructors: a failure in `action` fails the test, unless another error is already on its way.
template <class Action>
void tear_down_in_test(Action&& action) noexcept {
    try {
        action();
    } catch (const Error& error) {
        if (std::uncaught_exceptions() == 0) FAIL_CHECK(std::string(error.what()));
    }
}

// An array in device memory, uploaded from or downloaded to a std::vector. Fresh arrays hold NaN on both devices.
template <class T>
class DeviceArray {
public:
    explicit DeviceArray(size_t count) : count_(count) {
        test_stream();
        data_ = static_cast<T*>(device_malloc(bytes()));
        set_bytes(data_, 0xFF, bytes(), test_stream());
        synchronize(test_stream());
    }
    explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
    ~DeviceArray() {
        tear_down_in_test([] { synchronize(test_stream()); });
        tear_down_in_test([&] { device_free(data_); });
    }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    void upload(const std::vector<T>& values) {
        REQUIRE(values.size() == count_);
        write_through(data_, values.data(), count_, test_stream());
    }
    std::vector<T> download() const { return read_back<T>(data_, count_, test_stream()); }
    T* get() { return data_; }
    const T* get() const { return data_; }
    operator T*() { return data_; }
    size_t size() const { return count_; }

private:
    size_t bytes() const { return std::max<size_t>(1, count_ * sizeof(T)); }
    size_t count_;
    T* data_ = nullptr;
};

using reference::random_normal, reference::rounding_error, reference::to_doubles;

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
template <class T>
bool same_bits(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); i++) same = same_bits(a[i], b[i]);
    return same;
}

// Largest |actual - expected| / (|expected| + floor); infinite if anything is NaN or the sizes differ.
template <class Real>
double max_relative_error(const std::vector<Real>& actual, const std::vector<double>& expected, double floor) {
    if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double error =
            std::fabs(static_cast<double>(to_float(actual[i])) - expected[i]) / (std::fabs(expected[i]) + floor);
        if (!(error <= worst)) worst = error == error ? error : std::numeric_limits<double>::infinity();
    }
    return worst;
}

// The largest |actual - expected| in units of its bound, which one rounding to Real widens; infinite if anything is
// NaN.
template <class Real>
double worst_of_bounds(const std::vector<Real>& actual, const std::vector<double>& expected,
                       const std::vector<double>& bounds) {
    REQUIRE(actual.size() == expected.size());
    REQUIRE(actual.size() == bounds.size());
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double rounding = sizeof(Real) == 2 ? rounding_error<bf16>() * (std::fabs(expected[i]) + bounds[i]) : 0.0;
        const double error = std::fabs(static_cast<double>(to_float(actual[i])) - expected[i]) / (bounds[i] + rounding);
        if (!(error <= worst)) worst = error == error ? error : std::numeric_limits<double>::infinity();
    }
    return worst;
}

// ||actual - expected|| / ||expected|| (Frobenius); infinite if anything is NaN or the sizes differ.
template <class Real>
double relative_norm_error(const std::vector<Real>& actual, const std::vector<double>& expected) {
    if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double d = static_cast<double>(to_float(actual[i])) - expected[i];
        difference += d * d;
        norm += expected[i] * expected[i];
    }
    const double error = std::sqrt(difference / (norm > 0 ? norm : 1));
    return error == error ? error : std::numeric_limits<double>::infinity();
}

}  // namespace llmc::test
