// Shared by the specifications of kernels: how a family adds them, and results that take more than a formula to
// compare, which are FP8 codes with their state, and arrays of an optimizer's state.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/text.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/step_state.h"
#include "llmc/optim/config.h"
#include "test/kernels/specifications/kernel_checks.h"
#include "test/kernels/specifications/reference.h"
#include "test/kernels/specifications/trial.h"

namespace llmc {

template <>
inline constexpr WordTable<QuantizePass> kWords<QuantizePass> = {
    {"replay", QuantizePass::replay},   {"write", QuantizePass::write}, {"write_counted", QuantizePass::write_counted},
    {"measure", QuantizePass::measure}, {"train", QuantizePass::train}, {"train_counted", QuantizePass::train_counted}};

}  // namespace llmc

namespace llmc::check {

// ---- families of kernels --------------------------------------------------------------------------------------------
// A family's file holds one specification for each of its kernels: inputs, the kernel's call, an FP64 reference and
// bounds. add_FAMILY() lists the specifications at the shapes of a run, for check_card; add_FAMILY_tests() lists them
// at small, odd and large shapes, for unit tests.

using Items = std::vector<CheckItem>;

// Adds an item that runs `specification` on a trial of its own, and returns it.
using Specification = std::function<void(Trial&)>;
inline CheckItem& add_kernel(Items& items, const std::string& name, const Specification& specification) {
    items.push_back({name, "kernels", [specification](stream_t stream) {
                         Trial trial(stream);
                         specification(trial);
                         return trial.problem();
                     }});
    return items.back();
}

template <class T>
constexpr const char* type_name() {
    if (sizeof(T) == 1) return std::is_same_v<T, e4m3> ? "e4m3" : "e5m2";
    return sizeof(T) == 2 ? "bf16" : "fp32";
}

// Adds a specification at a shape, which is a number of elements or names itself: "layernorm_forward bf16 N=149 C=768".
// Without T, the name has no type.
template <class T = void, class Shape>
CheckItem& add_kernel(Items& items, const std::string& kernel, void (*specification)(Trial&, Shape),
                      const std::type_identity_t<std::remove_cvref_t<Shape>>& shape) {
    std::string name = kernel;
    if constexpr (!std::is_void_v<T>) name += std::string(" ") + type_name<T>();
    if constexpr (std::is_same_v<Shape, size_t>)
        name += fmt::format(" n={}", shape);
    else
        name += shape.text();
    return add_kernel(items, name, [=](Trial& t) { specification(t, shape); });
}

// The shape of a matrix.
struct Rows {
    int N, C;
    size_t n() const { return size_t{1} * N * C; }
    std::string text() const { return fmt::format(" N={} C={}", N, C); }
};

void add_hardware(Items& items, const KernelUse& use);  // casts, copies, tensor cores
void add_embedding(Items& items, const KernelUse& use);
void add_embedding_tests(Items& items);
void add_norms(Items& items, const KernelUse& use);
void add_norm_tests(Items& items);
void add_rope(Items& items, const KernelUse& use);  // with QK-norm
void add_rope_tests(Items& items);
void add_attention(Items& items, const KernelUse& use);
void add_attention_tests(Items& items);
void add_hopper_attention_tests(Items& items);  // of Hopper's kernels
void add_decode_tests(Items& items);            // attention against a cache
void add_activations(Items& items, const KernelUse& use);
void add_activation_tests(Items& items);
void add_product_with_gelu_tests(Items& items);  // on Hopper
void add_classifier(Items& items, const KernelUse& use);
void add_classifier_tests(Items& items);
void add_sums(Items& items, const KernelUse& use);  // biases, norms, sums over ranks
void add_sum_tests(Items& items);
void add_piece_tests(Items& items);  // sums over ranks
void add_clipping(Items& items, const KernelUse& use);
void add_clipping_tests(Items& items);
void add_optimizer(Items& items, const KernelUse& use);
void add_optimizer_tests(Items& items);
void add_muon(Items& items, const KernelUse& use);
void add_muon_tests(Items& items);
void add_step(Items& items, const KernelUse& use);
void add_quantize(Items& items, const KernelUse& use);  // one scale per tensor
void add_quantize_tests(Items& items);
void add_quantize_blocks(Items& items, const KernelUse& use);
void add_quantize_blocks_tests(Items& items);

// The run's attention with fewer heads, so that checks are quick: at most three, or two key heads that up to four query
// heads share.
AttentionHeads few_heads(const KernelUse& use);

// Shapes of the run's attention with B rows of T tokens: over all keys, and with a window if some layers have one.
std::vector<reference::AttentionShape> example_shapes(const KernelUse& use, int B, int T);

// The argument `documents` (B, T) of llmc/kernels/attention.h, with documents of one token and longer ones; empty if
// the run has no documents.
std::vector<int> example_documents(const KernelUse& use, int B, int T);

// Calls add(First()) or add(Second()).
template <class First, class Second, class Add>
void with_type(bool is_first, const Add& add) {
    if (is_first)
        add(First());
    else
        add(Second());
}
// Calls add() with a value of each type.
template <class... Types, class Add>
void each_type(const Add& add) {
    (add(Types()), ...);
}

// ---- FP8 codes ------------------------------------------------------------------------------------------------------
// The output of a kernel that quantizes, codes in both layouts and the state, and its comparisons; and the loop over
// quantize passes that every such kernel's specification runs.

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

// ---- arrays of an optimizer's state ---------------------------------------------------------------------------------
// They are in the format that a flag gives them, and compared with FP64 values that were rounded at random by the
// documented bits (llmc/kernels/state_array.h).

constexpr AdamWConfig kAdamW{0.9, 0.95, 1e-8, 0.1};
constexpr StateRounding kRounding{12345, 4096};

// The state of the step that all examples belong to.
StepState example_state(bool skip = false);

// Rounds values to the nearest ones of the format.
void narrow(StateFormat format, std::vector<float>& values);

// Arrays with these values, which the format must hold without loss.
StateArray state_input(Trial& t, StateFormat format, const std::vector<float>& values);
StateArray state_result(Trial& t, const char* name, StateFormat format, const std::vector<float>& before);

std::vector<float> values_in(const Trial& t, const StateArray& array);
void equal(Trial& t, const StateArray& array, const std::vector<float>& expected);

// Compares with values known up to bounds, each rounded by its own random bits.
enum class StateKind { master, first_moment, second_moment };
void within(Trial& t, const StateArray& array, const Bounded& exact, StateKind kind);

// The working copy must be the masters, rounded to nearest, and `measured` what `before` becomes with their amax, which
// is infinite if a master is not finite. Either pointer may be null.
template <class Real>
void compare_copies(Trial& t, const std::vector<float>& masters, const Real* working, const Fp8State* measured,
                    const Fp8State& before) {
    if (working) t.equal(working, reference::nearest<Real>(masters));
    Fp8State expected = before;
    for (const float weight : masters)
        expected.amax_now = std::max(expected.amax_now, std::isfinite(weight) ? std::fabs(weight) : INFINITY);
    if (measured) t.equal(measured, expected);
}

}  // namespace llmc::check
