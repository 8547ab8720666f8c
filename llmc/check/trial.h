// One check being run: inputs and results between guards, a kernel run twice on them, and the first thing that is
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

class Trial {
public:
    explicit Trial(stream_t stream) : stream_(stream) {}
    stream_t stream() const { return stream_; }

    template <class T>
    const T* input(const std::vector<T>& values) {
        const T* array = add<T>({"an input", {{"", values.size()}}}, Kind::input, bytes_of(values));
        restore(*arrays_.back());
        return array;
    }
    template <class T>
    const T* input_or_none(const std::vector<T>& values) {
        return values.empty() ? nullptr : input(values);
    }
    // NaN before each run.
    template <class T>
    T* result(const char* name, std::vector<Axis> axes) {
        return add<T>({name, std::move(axes)}, Kind::result, {});
    }
    // For what a kernel changes: these values before each run.
    template <class T>
    T* result(const char* name, std::vector<Axis> axes, const std::vector<T>& before) {
        return add<T>({name, std::move(axes)}, Kind::result, bytes_of(before));
    }
    template <class T>
    T* scratch(size_t count) {
        return add<T>({"scratch", {{"", count}}}, Kind::scratch, {});
    }

    // The kernel has to write the same bits both times and nothing beside its arrays.
    void run_twice(const std::function<void()>& kernel);

    template <class T>
    std::vector<T> read(const T* array) const {
        return read_back<T>(array, find(array).shape.count(), stream_);
    }
    template <class T>
    void within(const T* result, const Bounded& expected) {
        note(not_within(find(result).shape, reference::to_doubles(read(result)), expected));
    }
    template <class T>
    void equal(const T* result, const std::vector<T>& expected) {
        note(not_equal(find(result).shape, read(result), expected));
    }
    // The first problem stays.
    void note(const std::string& problem) {
        if (problem_.empty()) problem_ = problem;
    }
    const std::string& problem() const { return problem_; }

    const ArrayShape& shape_of(const void* array) const { return find(array).shape; }

    // For tests, which play a kernel that errs: called after each run with every array that was given by result().
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
    std::vector<std::unique_ptr<Array>> arrays_;
    std::string problem_;
};

}  // namespace llmc
