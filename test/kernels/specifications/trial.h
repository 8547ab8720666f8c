// Runs a kernel for a specification: inputs and results lie between guards, the kernel runs twice on them, and the
// first thing that is wrong is kept. Comparisons return a description of what is wrong, or "", with the first wrong
// element:
//
//   dqkv[b=1,t=70,head=0,17] is 0.0312, expected 0.0521 within 0.0004 (12 of 57216 wrong)
//
// A NaN never passes for a number, nor a number for a NaN.
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/device_errors.h"
#include "llmc/device/formats.cuh"
#include "llmc/device/transfer.h"
#include "llmc/kernels/state_array.h"
#include "test/kernels/specifications/reference.h"
#include "test/kernels/specifications/reference_quantize.h"

namespace llmc {

// ---- memory between guards ------------------------------------------------------------------------------------------
// Device memory for checks: an array between two guard zones. Every byte is 0xFF at first, a NaN in all formats. A
// kernel that writes outside its array changes a guard; a kernel that skips elements leaves NaN.

class GuardedMemory {
public:
    GuardedMemory(size_t bytes, stream_t stream) : zone_(zone()), bytes_(bytes), stream_(stream) {
        memory_ = static_cast<char*>(device_malloc(std::max<size_t>(1, bytes + 2 * zone_)));
        set_bytes(memory_, 0xFF, bytes + 2 * zone_, stream);
    }
    ~GuardedMemory() {
        tear_down([&] { synchronize(stream_); });
        tear_down([&] { device_free(memory_); });
    }
    GuardedMemory(const GuardedMemory&) = delete;
    GuardedMemory& operator=(const GuardedMemory&) = delete;

    char* data() const { return memory_ + zone_; }
    size_t bytes() const { return bytes_; }
    stream_t stream() const { return stream_; }

    // Describes a write outside the array, "writes 3 bytes past the end of its result"; "" if there was none.
    std::string trespass() const {
        const std::vector<char> before = read_back(memory_, zone_, stream_),
                                behind = read_back(memory_ + zone_ + bytes_, zone_, stream_);
        for (size_t i = 0; i < zone_; i++)
            if (behind[i] != '\xFF') return fmt::format("writes {} bytes past the end of its result", i + 1);
        for (size_t i = 0; i < zone_; i++)
            if (before[i] != '\xFF') return fmt::format("writes {} bytes before its result", zone_ - i);
        return "";
    }

    // Bytes on either side of arrays made from now on; a multiple of device_malloc()'s alignment. Tests set it to 0
    // where a sanitizer or the virtual GPU watches the bounds of allocations.
    static size_t& zone() {
        static size_t bytes = 4096;
        return bytes;
    }

private:
    size_t zone_, bytes_;
    stream_t stream_;
    char* memory_;
};

template <class T>
class GuardedArray {
public:
    GuardedArray(size_t count, stream_t stream) : memory_(count * sizeof(T), stream), count_(count) {}
    GuardedArray(const std::vector<T>& values, stream_t stream) : GuardedArray(values.size(), stream) { write(values); }

    T* data() const { return reinterpret_cast<T*>(memory_.data()); }
    operator T*() const { return data(); }
    size_t size() const { return count_; }
    void write(const std::vector<T>& values) { write_through(data(), values.data(), count_, memory_.stream()); }
    std::vector<T> read() const { return read_back<T>(data(), count_, memory_.stream()); }
    std::string trespass() const { return memory_.trespass(); }

private:
    GuardedMemory memory_;
    size_t count_;
};

// ---- comparisons ----------------------------------------------------------------------------------------------------

// An array's name and its dimensions, the slowest first: {"out", {{"b", B}, {"t", T}, {"", C}}}.
struct Axis {
    const char* name;
    size_t extent;
    template <class Number>
    Axis(const char* n, Number e) : name(n), extent(static_cast<size_t>(e)) {}
};
// Axes of a matrix of N rows.
inline std::vector<Axis> matrix(size_t N, size_t C) { return {{"n", N}, {"", C}}; }

struct ArrayShape {
    std::string name;
    std::vector<Axis> axes;

    size_t count() const;
    std::string place(size_t index) const;  // "out[b=0,t=3,17]"
};

// Real numbers, and how far from each a right one may be.
struct Bounded {
    std::vector<double> values, bounds;

    explicit Bounded(size_t count = 0) : values(count), bounds(count) {}
    // Bounds of `relative` of |value| + floor.
    Bounded(std::vector<double> numbers, double relative, double floor) : values(std::move(numbers)) {
        for (const double value : values) bounds.push_back(relative * (std::fabs(value) + floor));
    }
    Bounded(std::vector<double> numbers, std::vector<double> limits)
        : values(std::move(numbers)), bounds(std::move(limits)) {}
    template <class Real>
    static Bounded exactly(const std::vector<Real>& numbers) {
        Bounded result(numbers.size());
        for (size_t i = 0; i < numbers.size(); i++) result.values[i] = static_cast<double>(to_float(numbers[i]));
        return result;
    }
    void push_back(double value, double bound) {
        values.push_back(value);
        bounds.push_back(bound);
    }
    // Adds the bounds of one more rounding: `relative` of the value plus `absolute`.
    Bounded widened(double relative, double absolute = 0) const;
};

// One rounding to Real on top: FP32's is in the bounds.
template <class Real>
Bounded rounded(const Bounded& exact) {
    return sizeof(Real) == 2 ? exact.widened(reference::rounding_error<bf16>()) : exact;
}

// sums + before, or the sums alone if `before` is empty.
inline std::vector<double> plus(std::vector<double> sums, const std::vector<float>& before) {
    for (size_t i = 0; i < before.size(); i++) sums[i] += before[i];
    return sums;
}

// Counts wrong elements, and keeps the first one's message.
class Wrong {
public:
    explicit Wrong(const ArrayShape& shape) : shape_(shape) {}
    // `describe` returns the message; only the first element's is made.
    template <class Describe>
    void add(size_t index, const Describe& describe) {
        if (count_++ == 0) first_ = shape_.place(index) + " " + describe();
    }
    std::string text(size_t of) const {
        return count_ == 0 ? "" : first_ + fmt::format(" ({} of {} wrong)", count_, of);
    }

private:
    const ArrayShape& shape_;
    std::string first_;
    size_t count_ = 0;
};

std::string not_within(const ArrayShape& shape, const std::vector<double>& actual, const Bounded& expected);
// ||actual - expected|| <= limit ||expected||: where errors are independent, all of them together are smaller than
// bounds of the worst case say, and a tile that is a little wrong shows.
std::string norm_not_within(const ArrayShape& shape, const std::vector<double>& actual,
                            const std::vector<double>& expected, double limit);

inline std::string shown(float value) { return fmt::format("{:.9g} (bits {:08x})", value, float_bits(value)); }
inline std::string shown(bf16 value) { return fmt::format("{:.6g} (bits {:04x})", to_float(value), value.bits); }
inline std::string shown(e4m3 value) { return fmt::format("code {:02x}", value.bits); }
inline std::string shown(e5m2 value) { return fmt::format("code {:02x}", value.bits); }
inline std::string shown(double value) { return fmt::format("{:.17g}", value); }
template <class T>
requires std::is_integral_v<T> std::string shown(T value) { return std::to_string(value); }

// The same bits in every element.
template <class T>
std::string not_equal(const ArrayShape& shape, const std::vector<T>& actual, const std::vector<T>& expected) {
    if (actual.size() != expected.size())
        return fmt::format("{} has {} elements, expected {}", shape.name, actual.size(), expected.size());
    Wrong wrong(shape);
    for (size_t i = 0; i < actual.size(); i++)
        if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0)
            wrong.add(i, [&] { return "is " + shown(actual[i]) + ", expected " + shown(expected[i]); });
    return wrong.text(actual.size());
}

// Describes the difference between two runs on the same inputs.
std::string not_repeated(const ArrayShape& shape, const std::vector<char>& first, const std::vector<char>& second);

// The allowed FP8 states: amax, amax_now and the counts lie between those of `least` and `most`, and all other fields
// are equal. If a cast's input is known exactly, least == most.
struct StateRange {
    Fp8State least, most;
};
std::string wrong_state(const Fp8State& actual, const StateRange& expected);

// The allowed results of quantizing values that are known up to bounds: for each value a range of codes, and a range of
// states. For exactly known FP32 values the bounds are 0.
template <class F8>
class CodeRanges {
public:
    CodeRanges(const Bounded& values, float scale) {
        const double largest = reference::magnitudes<F8>().back();
        for (size_t i = 0; i < values.values.size(); i++) {
            const double value = values.values[i], bound = values.bounds[i];
            const bool exact = bound == 0 || !std::isfinite(value);
            // The scaled value is rounded to FP32 before it is cast.
            const auto scaled = [&](double x, double sign) {
                if (exact) return static_cast<double>(static_cast<float>(x) * scale);
                return x * static_cast<double>(scale) * (1 + sign * (x < 0 ? -1 : 1) * 0x1p-24);
            };
            const double low = scaled(exact ? value : value - bound, -1),
                         high = scaled(exact ? value : value + bound, 1);
            least_.push_back(reference::nearest_code<F8>(low).bits);
            most_.push_back(exact ? least_.back() : reference::nearest_code<F8>(high).bits);
            count(value, bound, low, high, largest, least_.back(), most_.back());
        }
        range_.least.elements = range_.most.elements = values.values.size();
        range_.least.bad = range_.most.bad = range_.least.nonfinite > 0;
    }

    std::string wrong_codes(const ArrayShape& shape, const std::vector<F8>& actual) const {
        if (actual.size() != least_.size())
            return fmt::format("{} has {} elements, expected {}", shape.name, actual.size(), least_.size());
        Wrong wrong(shape);
        for (size_t i = 0; i < actual.size(); i++) {
            if (between(actual[i].bits, least_[i], most_[i])) continue;
            wrong.add(i, [&] {
                const std::string range = least_[i] == most_[i] ? "" : fmt::format(" to {:02x}", most_[i]);
                return fmt::format("is code {:02x}, expected {:02x}{}", actual[i].bits, least_[i], range);
            });
        }
        return wrong.text(actual.size());
    }
    // The state after these passes, one after the other.
    StateRange after(const Fp8State& before, const std::vector<QuantizePass>& passes) const {
        StateRange after{before, before};
        for (const QuantizePass pass : passes) {
            after.least = reference::state_after(after.least, range_.least, pass);
            after.most = reference::state_after(after.most, range_.most, pass);
        }
        return after;
    }

private:
    // Codes in the order of the numbers that they are; both zeros are one.
    static int order(uint8_t code) { return code & 0x80 ? -(code & 0x7f) : code & 0x7f; }
    static bool between(uint8_t code, uint8_t least, uint8_t most) {
        if (least == most) return code == least;
        if (reference::value_of<F8>(code) != reference::value_of<F8>(code)) return false;
        return order(least) <= order(code) && order(code) <= order(most);
    }
    void count(double value, double bound, double low, double high, double largest, uint8_t least, uint8_t most) {
        if (!std::isfinite(value)) {
            for (Fp8State* state : {&range_.least, &range_.most}) {
                state->nonfinite++;
                state->saturated += std::isinf(value);
            }
            return;
        }
        const double smallest = low < 0 && high > 0 ? 0.0 : std::min(std::fabs(low), std::fabs(high));
        const double magnitude = std::max(std::fabs(low), std::fabs(high));
        range_.least.saturated += smallest > largest;
        range_.most.saturated += magnitude > largest;
        const bool may_vanish = order(least) <= 0 && order(most) >= 0 && !(value == 0 && bound == 0);
        range_.least.underflowed += order(least) == 0 && order(most) == 0 && std::fabs(value) > bound;
        range_.most.underflowed += may_vanish;
        const auto raise = [](float& amax, double to) { amax = std::max(amax, static_cast<float>(to)); };
        raise(range_.least.amax, std::fabs(value) - bound);
        raise(range_.most.amax, std::fabs(value) + bound);
    }
    std::vector<uint8_t> least_, most_;
    StateRange range_{};
};

// ---- trials ---------------------------------------------------------------------------------------------------------

// An array on the device that a kernel reads, with its values. Without values it stands for a null pointer.
template <class T>
struct Input {
    std::vector<T> values;
    const T* data = nullptr;

    operator const T*() const { return data; }
    operator StateArray() const requires(std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
        return StateArray(const_cast<T*>(data));
    }
    std::vector<double> doubles() const { return reference::to_doubles(values); }
    float at(size_t i) const { return to_float(values[i]); }
};

class Trial {
public:
    // With `outer`, its inputs serve this trial, too.
    explicit Trial(stream_t stream, const Trial* outer = nullptr) : stream_(stream), outer_(outer) {}
    stream_t stream() const { return stream_; }

    template <class T>
    Input<T> input(const std::vector<T>& values) {
        const T* array = add<T>({"an input", {{"", values.size()}}}, Kind::input, bytes_of(values));
        restore(*arrays_.back());
        return {values, array};
    }
    template <class T>
    Input<T> input_or_none(const std::vector<T>& values) {
        return values.empty() ? Input<T>() : input(values);
    }
    template <class T>
    Input<T> input_of(const T& value) {
        return input(std::vector<T>{value});
    }
    // Normally distributed; every call has another seed.
    template <class T>
    Input<T> normal(size_t count, float deviation, float mean = 0) {
        return input(random<T>(count, deviation, mean));
    }
    template <class T>
    std::vector<T> random(size_t count, float deviation, float mean = 0) {
        return reference::random_normal<T>(count, deviation, ++seed_, mean);
    }
    // A result holds `before` before each run, or NaN if that is empty.
    template <class T>
    T* result(const char* name, std::vector<Axis> axes, const std::vector<T>& before = {}) {
        return add<T>({name, std::move(axes)}, Kind::result, bytes_of(before));
    }
    template <class T>
    T* result(const char* name, size_t count, const std::vector<T>& before = {}) {
        return result<T>(name, std::vector<Axis>{{"", count}}, before);
    }
    template <class T>
    T* result_of(const char* name, const T& before) {
        return result(name, 1, std::vector<T>{before});
    }
    // The counter of kernels that hand out their work by tickets, which each of them must leave at 0.
    unsigned* tickets() {
        if (!tickets_) {
            tickets_ = result_of("tickets", 0u);
            restore(*arrays_.back());
        }
        return tickets_;
    }
    template <class T>
    T* scratch(size_t count) {
        return add<T>({"scratch", {{"", count}}}, Kind::scratch, {});
    }

    // The kernel must write the same bits both times, and nothing outside its arrays.
    void run_twice(const std::function<void()>& kernel);

    template <class T>
    std::vector<T> read(const T* array) const {
        return read_back<T>(array, find(array).shape.count(), stream_);
    }
    template <class T>
    void within(const T* result, const Bounded& expected) {
        note(not_within(find(result).shape, reference::to_doubles(read(result)), expected));
    }
    // formula(i) returns the value of element i and how far from it a right one may be.
    template <class T, std::invocable<size_t> Formula>
    void within(const T* result, const Formula& formula) {
        Bounded expected;
        for (size_t i = 0; i < find(result).shape.count(); i++) {
            const auto [value, bound] = formula(i);
            expected.push_back(value, bound);
        }
        within(result, expected);
    }
    // The same bits.
    template <class T>
    void equal(const T* result, const std::vector<T>& expected) {
        note(not_equal(find(result).shape, read(result), expected));
    }
    // The bits of formula(i) in each element i.
    template <class T, std::invocable<size_t> Formula>
    void equal(const T* result, const Formula& formula) {
        std::vector<T> expected;
        for (size_t i = 0; i < find(result).shape.count(); i++) expected.push_back(formula(i));
        equal(result, expected);
    }
    void within(const Fp8State* state, const StateRange& expected) { note(wrong_state(read(state)[0], expected)); }
    void equal(const Fp8State* state, const Fp8State& expected) { within(state, {expected, expected}); }
    template <class T>
    void untouched(const T* result) {
        std::vector<T> poison(find(result).shape.count());
        std::memset(static_cast<void*>(poison.data()), 0xFF, poison.size() * sizeof(T));
        equal(result, poison);
    }
    template <class T>
    void equal_or_untouched(bool is_written, const T* result, const std::vector<T>& expected) {
        if (is_written)
            equal(result, expected);
        else
            untouched(result);
    }
    // Runs `check` on a trial of its own.
    void nested(const std::function<void(Trial&)>& check) {
        Trial trial(stream_, this);
        check(trial);
        note(trial.problem());
    }
    // Keeps the first problem.
    void note(const std::string& problem) {
        if (problem_.empty()) problem_ = problem;
    }
    const std::string& problem() const { return problem_; }

    const ArrayShape& shape_of(const void* array) const { return find(array).shape; }

    // Tests play a faulty kernel with it: called after each run with every array that result() returned.
    using Tampering = std::function<void(const ArrayShape& shape, char* data, size_t bytes, int run, stream_t stream)>;
    static Tampering& tampering();

private:
    enum class Kind { input, result, scratch };
    struct Array {
        ArrayShape shape;
        Kind kind;
        std::vector<char> before;  // empty: NaN
        GuardedMemory memory;
        Array(const ArrayShape& s, Kind k, std::vector<char> b, size_t bytes, stream_t stream)
            : shape(s), kind(k), before(std::move(b)), memory(bytes, stream) {}
    };
    template <class T>
    static std::vector<char> bytes_of(const std::vector<T>& values) {
        const char* begin = reinterpret_cast<const char*>(values.data());
        return {begin, begin + values.size() * sizeof(T)};
    }
    template <class T>
    T* add(const ArrayShape& shape, Kind kind, std::vector<char> before) {
        arrays_.push_back(std::make_unique<Array>(shape, kind, std::move(before), shape.count() * sizeof(T), stream_));
        return reinterpret_cast<T*>(arrays_.back()->memory.data());
    }
    void restore(const Array& array) const;
    std::vector<char> take(const Array& array);
    const Array& find(const void* data) const;

    stream_t stream_;
    const Trial* outer_;
    uint32_t seed_ = 0;
    unsigned* tickets_ = nullptr;
    std::vector<std::unique_ptr<Array>> arrays_;
    std::string problem_;
};

}  // namespace llmc
