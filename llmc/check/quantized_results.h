// The output of a kernel that quantizes, codes in both layouts and the state, and its comparisons; and the loop over
// quantize passes that every such kernel's specification runs.
#pragma once
#include <string>
#include <vector>

#include "llmc/base/words.h"
#include "llmc/check/trial.h"
#include "llmc/kernels/quantize.h"

namespace llmc {

template <>
inline constexpr Word<QuantizePass> kWords<QuantizePass>[] = {
    {"replay", QuantizePass::replay},   {"write", QuantizePass::write}, {"write_counted", QuantizePass::write_counted},
    {"measure", QuantizePass::measure}, {"train", QuantizePass::train}, {"train_counted", QuantizePass::train_counted}};

}  // namespace llmc

namespace llmc::check {

using Passes = std::vector<QuantizePass>;
inline const Passes kAllPasses = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure,
                                  QuantizePass::write, QuantizePass::write_counted, QuantizePass::replay};
inline const Passes kWritingPasses = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::write,
                                      QuantizePass::write_counted, QuantizePass::replay};
// The passes of a gradient's producer, which runs once.
inline const Passes kTrainingPasses = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure};

// Which layouts a kernel is asked for; the pointers to the others are null.
enum class Layouts { both, row, transposed, neither };

template <class F8>
struct QuantizedResults {
    Trial& trial;
    int N, C;
    Layouts layouts;
    Fp8State before;
    F8 *row, *transposed;
    Fp8State* state;

    QuantizedResults(Trial& t, int rows, int columns, float scale, Layouts asked = Layouts::both)
        : trial(t), N(rows), C(columns), layouts(asked), before(reference::used_state(scale)) {
        row = trial.template result<F8>("codes", matrix(N, C));
        transposed = trial.template result<F8>("transposed codes", matrix(C, N));
        state = trial.result_of("state", before);
    }
    bool has_row() const { return layouts == Layouts::both || layouts == Layouts::row; }
    bool has_transposed() const { return layouts == Layouts::both || layouts == Layouts::transposed; }
    // The argument for the kernel.
    Quantized<F8> target() const { return {has_row() ? row : nullptr, has_transposed() ? transposed : nullptr, state}; }

    // Compares with the codes of values that are known up to bounds, after these passes.
    void compare(const CodeRanges<F8>& expected, const Passes& passes) const {
        trial.within(state, expected.after(before, passes));
        if (!has_row() || passes.back() == QuantizePass::measure) trial.untouched(row);
        if (!has_transposed() || passes.back() == QuantizePass::measure) trial.untouched(transposed);
        if (passes.back() == QuantizePass::measure || layouts == Layouts::neither) return;
        const F8* const array = has_row() ? row : transposed;
        const std::vector<F8> codes = has_row() ? trial.read(row) : reference::turned(trial.read(transposed), C, N);
        trial.note(expected.wrong_codes({trial.shape_of(array).name, matrix(N, C)}, codes));
        if (layouts == Layouts::both) trial.equal(transposed, reference::turned(codes, N, C));
    }
    // Compares byte by byte with quantize() of values (N, C), and of `low`, what was lost when they were rounded.
    void compare_with_cast(const bf16* values, const bf16* low, QuantizePass pass) const {
        compare_with([&](const Quantized<F8>& to) {
            quantize<F8>(to, nullptr, nullptr, values, low, N, C, false, pass, trial.stream());
        });
    }
    // Compares byte by byte with what other kernels write: run(to).
    template <class Run>
    void compare_with(const Run& run) const {
        Trial plain_trial(trial.stream());
        const QuantizedResults plain(plain_trial, N, C, before.scale);
        plain_trial.run_twice([&] { run(plain.target()); });
        plain_trial.equal(plain.transposed, reference::turned(plain_trial.read(plain.row), N, C));
        trial.note(plain_trial.problem());
        trial.equal_or_untouched(has_row(), row, plain_trial.read(plain.row));
        trial.equal_or_untouched(has_transposed(), transposed, plain_trial.read(plain.transposed));
        trial.equal(state, plain_trial.read(plain.state)[0]);
    }
};

// Calls run(trial, to, pass) with a fresh trial and results (N, C) for each pass; in the first also with each layout
// alone, and when measuring also without any. Notes the first problem in `outer`.
template <class F8, class Run>
void each_pass(Trial& outer, const Passes& passes, int N, int C, float scale, const Run& run) {
    const auto try_pass = [&](QuantizePass pass, Layouts layouts, const char* text) {
        if (!outer.problem().empty()) return;
        Trial trial(outer.stream(), &outer);
        run(trial, QuantizedResults<F8>(trial, N, C, scale, layouts), pass);
        if (!trial.problem().empty()) outer.note(std::string("pass ") + word_of(pass) + text + trial.problem());
    };
    for (const QuantizePass pass : passes) {
        try_pass(pass, Layouts::both, ": ");
        if (pass == QuantizePass::measure) try_pass(pass, Layouts::neither, ", no output: ");
        if (pass != passes.front()) continue;
        try_pass(pass, Layouts::row, ", rows alone: ");
        try_pass(pass, Layouts::transposed, ", columns alone: ");
    }
}

}  // namespace llmc::check
