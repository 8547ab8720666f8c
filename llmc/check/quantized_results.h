// Where a quantizing kernel under check writes: both layouts and the state; and the comparison of all three.
#pragma once
#include <string>
#include <vector>

#include "llmc/check/trial.h"
#include "llmc/kernels/quantize.h"

namespace llmc::check {

constexpr QuantizePass kAllPasses[] = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure,
                                       QuantizePass::write, QuantizePass::write_counted, QuantizePass::replay};
constexpr QuantizePass kWritingPasses[] = {QuantizePass::train, QuantizePass::train_counted, QuantizePass::write,
                                           QuantizePass::write_counted, QuantizePass::replay};

inline const char* name_of(QuantizePass pass) {
    switch (pass) {
        case QuantizePass::replay:
            return "replay";
        case QuantizePass::write:
            return "write";
        case QuantizePass::write_counted:
            return "write_counted";
        case QuantizePass::measure:
            return "measure";
        case QuantizePass::train:
            return "train";
        case QuantizePass::train_counted:
            return "train_counted";
    }
    return "";
}

// Runs `check` on a fresh trial for each pass, up to the first problem.
template <class Passes, class Check>
std::string each_pass(const Passes& passes, stream_t stream, const Check& check) {
    for (const QuantizePass pass : passes) {
        Trial trial(stream);
        check(trial, pass);
        if (!trial.problem().empty()) return std::string("pass ") + name_of(pass) + ": " + trial.problem();
    }
    return "";
}

template <class F8>
struct QuantizedResults {
    Trial& trial;
    int N, C;
    Fp8State before;
    F8 *row, *transposed;
    Fp8State* state;

    QuantizedResults(Trial& t, int rows, int columns, float scale)
        : trial(t), N(rows), C(columns), before(reference::used_state(scale)) {
        const size_t n = static_cast<size_t>(N), c = static_cast<size_t>(C);
        row = trial.template result<F8>("codes", {{"n", n}, {"", c}});
        transposed = trial.template result<F8>("transposed codes", {{"", c}, {"n", n}});
        state = trial.template result<Fp8State>("state", {{"", 1}}, std::vector<Fp8State>{before});
    }
    Quantized<F8> both() const { return {row, transposed, state}; }

    // Against what the values should become.
    void compare(const CodeRanges<F8>& expected, QuantizePass pass) const {
        trial.note(wrong_state(trial.read(state)[0], expected.after(before, pass)));
        if (pass == QuantizePass::measure) return untouched();
        const std::vector<F8> codes = trial.read(row);
        trial.note(expected.wrong_codes(trial.shape_of(row), codes));
        trial.equal(transposed, reference::turned(codes, N, C));
    }
    // Byte by byte against the plain kernel's.
    void compare(const QuantizedResults& plain) const {
        trial.equal(row, plain.trial.read(plain.row));
        trial.equal(transposed, plain.trial.read(plain.transposed));
        same_state(plain);
    }
    // Byte by byte against what quantize() makes of values (N, C).
    void compare_with_cast(const bf16* values, QuantizePass pass) const {
        Trial plain_trial(trial.stream());
        const QuantizedResults plain(plain_trial, N, C, before.scale);
        plain_trial.run_twice(
            [&] { quantize<F8>(plain.both(), nullptr, nullptr, values, nullptr, N, C, false, pass, trial.stream()); });
        compare(plain);
        trial.note(plain_trial.problem());
    }
    void same_state(const QuantizedResults& plain) const {
        const Fp8State expected = plain.trial.read(plain.state)[0];
        trial.note(wrong_state(trial.read(state)[0], {expected, expected}));
    }
    void untouched() const {
        const std::vector<F8> poison(trial.shape_of(row).count(), F8{0xFF});
        trial.equal(row, poison);
        trial.equal(transposed, poison);
    }
};

}  // namespace llmc::check
