// Comparisons, and a kernel run twice between guards (trial.h).
// build: per device
#include "test/kernels/specifications/trial.h"

#if !LLMC_CUDA
#include "dev/emulator/loops.h"
#endif

namespace llmc {

size_t ArrayShape::count() const {
    size_t product = 1;
    for (const Axis& axis : axes) product *= axis.extent;
    return product;
}

std::string ArrayShape::place(size_t index) const {
    if (axes.empty()) return name;
    std::string inside;
    for (size_t i = axes.size(); i-- > 0;) {
        const size_t at = index % axes[i].extent;
        index /= axes[i].extent;
        const std::string label = axes[i].name;
        inside = (i > 0 ? "," : "") + label + (label.empty() ? "" : "=") + std::to_string(at) + inside;
    }
    return name + "[" + inside + "]";
}

Bounded Bounded::widened(double relative, double absolute) const {
    Bounded result = *this;
    for (size_t i = 0; i < values.size(); i++)
        result.bounds[i] += relative * (std::fabs(values[i]) + bounds[i]) + absolute;
    return result;
}

std::string not_within(const ArrayShape& shape, const std::vector<double>& actual, const Bounded& expected) {
    if (actual.size() != expected.values.size() || actual.size() != expected.bounds.size())
        return fmt::format("{} has {} elements, expected {}", shape.name, actual.size(), expected.values.size());
    Wrong wrong(shape);
    for (size_t i = 0; i < actual.size(); i++) {
        const double want = expected.values[i], bound = expected.bounds[i];
        const bool right =
            std::isnan(want) ? std::isnan(actual[i]) : actual[i] == want || std::fabs(actual[i] - want) <= bound;
        if (right) continue;
        const double found = std::isnan(actual[i]) ? NAN : actual[i];  // never "-nan"
        wrong.add(i, [&] { return fmt::format("is {:.6g}, expected {:.6g} within {:.2g}", found, want, bound); });
    }
    return wrong.text(actual.size());
}

std::string norm_not_within(const ArrayShape& shape, const std::vector<double>& actual,
                            const std::vector<double>& expected, double limit) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < actual.size() && i < expected.size(); i++) {
        difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    const double error = std::sqrt(difference / (norm > 0 ? norm : 1));
    if (actual.size() == expected.size() && error <= limit) return "";
    return fmt::format("{} is off by {:.3g} of its norm, expected at most {:.3g}", shape.name, error, limit);
}

std::string not_repeated(const ArrayShape& shape, const std::vector<char>& first, const std::vector<char>& second) {
    const size_t size = shape.count() ? first.size() / shape.count() : 1;
    Wrong wrong(shape);
    for (size_t i = 0; i * size < first.size(); i++)
        if (std::memcmp(&first[i * size], &second[i * size], size) != 0)
            wrong.add(i, [] { return "differs between two runs on the same inputs"; });
    return wrong.text(shape.count());
}

std::string wrong_state(const Fp8State& actual, const StateRange& expected) {
    Fp8State rest = actual;  // the kernel leaves all other fields as they are
    std::string problem;
    const auto compare = [&](const char* name, auto field) {
        const auto found = actual.*field, least = expected.least.*field, most = expected.most.*field;
        rest.*field = least;
        if (!problem.empty() || (least <= found && found <= most)) return;
        if constexpr (std::is_same_v<decltype(found), const float>)
            problem = fmt::format("state.{} is {:.9g}, expected {:.9g} to {:.9g}", name, found, least, most);
        else
            problem = fmt::format("state.{} is {}, expected {} to {}", name, found, least, most);
    };
    compare("amax", &Fp8State::amax);
    compare("amax_now", &Fp8State::amax_now);
    compare("elements", &Fp8State::elements);
    compare("saturated", &Fp8State::saturated);
    compare("underflowed", &Fp8State::underflowed);
    compare("nonfinite", &Fp8State::nonfinite);
    compare("bad", &Fp8State::bad);
    if (!problem.empty()) return problem;
    return std::memcmp(&rest, &expected.least, sizeof rest) == 0 ? ""
                                                                 : "state: the scale or a reserved field was changed";
}

Trial::Tampering& Trial::tampering() {
    static Tampering action;
    return action;
}

const Trial::Array& Trial::find(const void* data) const {
    for (const auto& array : arrays_)
        if (array->memory.data() == data) return *array;
    throw Error(ExitCode::failure, "no array of this trial");
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

#if LLMC_CUDA
// Defined by the virtual GPU (dev/virtual_gpu/ptx/races.h), and null on a card.
extern "C" [[gnu::weak]] void virtual_gpu_detects_races(bool on);
#endif

namespace {

// Leaves out of the second run what the first has shown. The virtual GPU detects races in whatever order threads run.
// With LLMC_LOOPS=compare the first run compares loops with kernels, and the second is of loops alone.
class LighterRun {
public:
    explicit LighterRun(bool second) {
        if (!second) return;
#if LLMC_CUDA
        if (virtual_gpu_detects_races) virtual_gpu_detects_races(false);
#else
        if (host::compares_loops()) host::runs_kernels() = false;
#endif
    }
    ~LighterRun() {
#if LLMC_CUDA
        if (virtual_gpu_detects_races) virtual_gpu_detects_races(true);
#else
        host::runs_kernels() = usual_;
#endif
    }

private:
#if !LLMC_CUDA
    const bool usual_ = host::runs_kernels();
#endif
};

}  // namespace

void Trial::run_twice(const std::function<void()>& kernel) {
    std::vector<std::vector<char>> first;
    for (int run = 0; run < 2; run++) {
        for (const auto& array : arrays_)
            if (array->kind != Kind::input) restore(*array);
        {
            const LighterRun lighter(run == 1);
            kernel();
            synchronize(stream_);  // the virtual GPU may play launches only now
        }
        for (const auto& array : arrays_)
            if (tampering() && array->kind == Kind::result)
                tampering()(array->shape, array->memory.data(), array->memory.bytes(), run, stream_);
        for (size_t i = 0; i < arrays_.size(); i++) {
            const Array& array = *arrays_[i];
            std::vector<char> bytes = take(array);
            if (run == 1 && array.kind == Kind::result) note(not_repeated(array.shape, first[i], bytes));
            if (run == 0) first.push_back(std::move(bytes));
        }
        for (const Trial* outer = outer_; outer; outer = outer->outer_)
            for (const auto& array : outer->arrays_)
                if (array->kind == Kind::input) take(*array);
    }
    if (tickets_) equal(tickets_, std::vector<unsigned>{0});
}

}  // namespace llmc
