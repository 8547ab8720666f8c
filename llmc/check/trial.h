// A specification at work: inputs and results between guards, a kernel run twice on them, and the first thing that is
// wrong.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/check/compare.h"
#include "llmc/check/guarded_array.h"
#include "llmc/check/random_values.h"

namespace llmc {

// An array on the device that a kernel reads, with its values. Without values it stands for a null pointer.
template <class T>
struct Input {
    std::vector<T> values;
    const T* data = nullptr;

    operator const T*() const { return data; }
    std::vector<double> doubles() const { return reference::to_doubles(values); }
};

class Trial {
public:
    explicit Trial(stream_t stream) : stream_(stream) {}
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
    // Normally distributed; every call has another seed.
    template <class T>
    Input<T> normal(size_t count, float deviation, float mean = 0) {
        return input(random<T>(count, deviation, mean));
    }
    template <class T>
    std::vector<T> random(size_t count, float deviation, float mean = 0) {
        return reference::random_normal<T>(count, deviation, ++seed_, mean);
    }
    // A result holds NaN before each run.
    template <class T>
    T* result(const char* name, std::vector<Axis> axes) {
        return add<T>({name, std::move(axes)}, Kind::result, {});
    }
    // A result that the kernel changes holds `before` before each run.
    template <class T>
    T* result(const char* name, std::vector<Axis> axes, const std::vector<T>& before) {
        return add<T>({name, std::move(axes)}, Kind::result, bytes_of(before));
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
    // The same bits.
    template <class T>
    void equal(const T* result, const std::vector<T>& expected) {
        note(not_equal(find(result).shape, read(result), expected));
    }
    template <class T>
    void untouched(const T* result) {
        std::vector<T> poison(find(result).shape.count());
        std::memset(static_cast<void*>(poison.data()), 0xFF, poison.size() * sizeof(T));
        equal(result, poison);
    }
    // Runs `check` on a trial of its own.
    void nested(const std::function<void(Trial&)>& check) {
        Trial trial(stream_);
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
    uint32_t seed_ = 0;
    std::vector<std::unique_ptr<Array>> arrays_;
    std::string problem_;
};

// Axes of a vector, and of a matrix of N rows.
inline std::vector<Axis> line(size_t count) { return {{"", count}}; }
inline std::vector<Axis> matrix(size_t N, size_t C) { return {{"n", N}, {"", C}}; }

}  // namespace llmc
