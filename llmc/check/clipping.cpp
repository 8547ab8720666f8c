// Clipping: of gradients by value and by a tensor's norm, and of the weights of queries and keys by their logits.
#include "llmc/check/families.h"
#include "llmc/check/state_results.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/qk_clip.h"

namespace llmc::check {
namespace {

using reference::kUnit;

// ---- gradients -----------------------------------------------------------------------------------------------------

constexpr double kClip = 0.2;

struct Gradient {
    size_t count = 4101;
    float loss_scale = 1024.0f;
    std::string text() const { return ""; }
};

void clipped_values(Trial& t, const Gradient& s) {
    const auto [count, loss_scale] = s;
    std::vector<float> before = t.random<float>(count, 0.2f * loss_scale);
    before[count / 2] = -0.0f;
    const auto scale = t.input_of(loss_scale);
    float* grad = t.result("gradient", count, before);
    t.run_twice([&] { clip_values(grad, count, kClip, scale, t.stream()); });
    const float limit = static_cast<float>(kClip) * loss_scale;
    for (float& g : before) g = std::clamp(g, -limit, limit);
    t.equal(grad, before);
}

// A gradient whose norm is `size` times the bound; the parts of a sum of squares add up to it.
void clipped_tensor(Trial& t, const Gradient& s, double size) {
    const auto [count, loss_scale] = s;
    const size_t parts = 700;
    const auto before = t.random<float>(count, 1.0f);
    const double norm = size * kClip * loss_scale;
    const auto scale = t.input_of(loss_scale);
    const auto partials = t.input(std::vector<double>(parts, norm * norm / parts));
    double* square = t.result<double>("square", 1);
    float* factor = t.result<float>("factor", 1);
    float* grad = t.result("gradient", count, before);
    t.run_twice([&] {
        add_partials(square, partials, parts, t.stream());
        clip_factors(factor, square, 1, kClip, scale, t.stream());
        scale_gradient(grad, count, factor, t.stream());
    });
    t.within(grad, [&](size_t i) {  // the norm and the factor are rounded to FP32, the gradient too
        const double g = before[i];
        return std::pair{g / std::max(size, 1.0), size < 1 ? 0 : 4 * kUnit * std::fabs(g)};
    });
}

void clipped_tensors(Trial& t, const Gradient& s) {
    for (const double size : {0.4, 3.0}) t.nested([&](Trial& trial) { clipped_tensor(trial, s, size); });
}

// ---- QK-clip -------------------------------------------------------------------------------------------------------

struct QkClip {
    AttentionHeads heads = {3, 3, 32};
    size_t columns = 36, first = 0;  // columns of the weight (1 for the bias), and the slice's first element
    size_t left_out = 0;             // elements of the weight after the slice
    bool skip = false, measured = false;
    StateFormat masters = StateFormat::fp32;

    std::string text() const {
        return fmt::format("qk_clip NH={} NKV={} HD={} columns={} from {}{}{}{}", heads.NH, heads.NKV, heads.HD,
                           columns, first, skip ? ", skipped step" : "", measured ? ", measured" : "",
                           masters == StateFormat::bf16 ? ", masters bf16" : "");
    }
};

// The largest logit of head 0 is within the limit; the other heads exceed it.
template <class Real>
void clipped_heads(Trial& t, const QkClip& s) {
    const int NH = s.heads.NH, NKV = s.heads.NKV;
    const size_t head_elements = s.heads.HD * s.columns;
    const size_t count = s.heads.rows() * head_elements - s.first - s.left_out;
    const float limit = 30;
    std::vector<float> logits, before = t.random<float>(count, 0.5f);
    for (int h = 0; h < NH; h++) logits.push_back(limit * static_cast<float>(h == 0 ? 1 : 1.3 + h));
    narrow(s.masters, before);
    const auto maxima = t.input(logits);
    const auto state = t.input_of(example_state(s.skip));
    const StateArray master = state_result(t, "master", s.masters, before);
    Real* working = s.measured ? nullptr : t.result("working", count, reference::nearest<Real>(before));
    Fp8State* fp8 = s.measured ? t.result_of("state", Fp8State{}) : nullptr;
    t.run_twice([&] {
        qk_clip<Real>(master, working, fp8, maxima, s.heads, s.columns, s.first, count, limit, state, t.stream(),
                      kRounding);
    });
    if (s.skip) {
        equal(t, master, before);
        if (working) t.equal(working, reference::nearest<Real>(before));
        if (fp8) t.equal(fp8, Fp8State{});
        return;
    }
    Bounded expected;
    for (size_t i = 0; i < count; i++) {
        const int head = static_cast<int>((s.first + i) / head_elements);
        const bool shared = NKV < NH, is_query = head < NH;
        const bool clips = is_query || (!shared && head < NH + NKV);
        const double largest = clips ? logits[is_query ? head : head - NH] : 0;
        const double gamma = largest > limit ? limit / largest : 1;
        const double value = before[i] * (shared ? gamma : std::sqrt(gamma));
        expected.push_back(value, gamma == 1 ? 0 : 3 * kUnit * std::fabs(value));
    }
    within(t, master, expected, StateKind::master);
    compare_copies(t, values_in(t, master), working, fp8, Fp8State{});
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_qk_clip(Items& items, const QkClip& s) {
    add_kernel(items, fmt::format("{} {}", s.text(), type_name<Real>()), [s](Trial& t) { clipped_heads<Real>(t, s); });
}

}  // namespace

void add_clipping(Items& items, const KernelUse& use) {
    if (use.qk_clip)
        for (const size_t columns : {1, 36}) {
            QkClip s{.heads = use.attention_heads(), .columns = columns, .masters = use.masters};
            s.measured = use.fp8 && columns > 1;
            with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add_qk_clip<Real>(items, s); });
        }
    if (use.clip_kind == ClipKind::value) add_kernel(items, "clip_values", clipped_values, {});
    if (use.clip_kind == ClipKind::tensor) add_kernel(items, "clip_tensors", clipped_tensors, {});
}

void add_clipping_tests(Items& items) {
    for (const size_t count : {1, 7, 2048, 4101})
        for (const float loss_scale : {1.0f, 1024.0f}) {
            add_kernel(items, "clip_values", clipped_values, {count, loss_scale});
            add_kernel(items, "clip_tensors", clipped_tensors, {count, loss_scale});
        }
    // Weights and biases, slices of them, grouped queries, and a head that threads share with the next.
    for (QkClip s : {QkClip{},
                     {{3, 3, 80}, 1},
                     {{6, 2, 32}, 36},
                     {{2, 1, 96}, 1, 40, 24},
                     {{3, 3, 32}, 36, 1000, 2000},
                     {{3, 3, 32}, 36, 7000, 3}})
        for (const bool measured : {false, true})
            for (const StateFormat masters : {StateFormat::fp32, StateFormat::bf16}) {
                s.measured = measured;
                s.masters = masters;
                s.skip = false;
                if (masters == StateFormat::fp32) add_qk_clip<float>(items, s);
                add_qk_clip<bf16>(items, s);
                s.skip = true;
                add_qk_clip<bf16>(items, s);
            }
}

}  // namespace llmc::check
