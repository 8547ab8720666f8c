// A kernel run twice between guards (trial.h).
#include "llmc/check/trial.h"

namespace llmc {

Trial::Tampering& Trial::tampering() {
    static Tampering action;
    return action;
}

const Trial::Array& Trial::find(const void* data) const {
    for (const auto& array : arrays_)
        if (array->memory.data() == data) return *array;
    throw Error(ExitCode::failure, "card check: no array of this trial");
}

void Trial::restore(const Array& array) const {
    if (array.before.empty())
        set_bytes(array.memory.data(), 0xFF, array.memory.bytes(), stream_);
    else
        write_through(array.memory.data(), array.before.data(), array.before.size(), stream_);
}

// Reads an array back after a run, and notes problems that any kernel may have.
std::vector<char> Trial::take(const Array& array) {
    const std::string trespass = array.memory.trespass();
    if (!trespass.empty()) note("next to " + array.shape.name + ": " + trespass);
    std::vector<char> bytes = read_back(array.memory.data(), array.memory.bytes(), stream_);
    if (array.kind == Kind::input && bytes != array.before) note("an input was changed");
    return bytes;
}

void Trial::run_twice(const std::function<void()>& kernel) {
    std::vector<std::vector<char>> first;
    for (int run = 0; run < 2; run++) {
        for (const auto& array : arrays_)
            if (array->kind != Kind::input) restore(*array);
        kernel();
        for (const auto& array : arrays_)
            if (tampering() && array->kind == Kind::result)
                tampering()(array->shape, array->memory.data(), array->memory.bytes(), run, stream_);
        for (size_t i = 0; i < arrays_.size(); i++) {
            const Array& array = *arrays_[i];
            std::vector<char> bytes = take(array);
            if (run == 1 && array.kind == Kind::result) note(not_repeated(array.shape, first[i], bytes));
            if (run == 0) first.push_back(std::move(bytes));
        }
    }
}

}  // namespace llmc
