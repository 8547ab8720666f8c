// Attention: plain, quantizing, against a cache, and its largest logits; the shapes that checks of a run take.
#include <algorithm>
#include <optional>
#include <set>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/hopper/attention.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {

// ---- shapes of a run ------------------------------------------------------------------------------------------------

AttentionHeads few_heads(const KernelUse& use) {
    const int group = use.heads / use.kv_heads, kv_heads = std::min(use.kv_heads, group > 1 ? 2 : 3);
    return {std::min(group, 4) * kv_heads, kv_heads, use.head_dim};
}

std::vector<reference::AttentionShape> example_shapes(const KernelUse& use, int B, int T) {
    const AttentionHeads heads = few_heads(use);
    std::vector<reference::AttentionShape> shapes;
    for (const int window : std::set{0, std::min(use.window, T / 4)})
        shapes.push_back({B, T, heads.NH, heads.HD, heads.NKV, window, example_documents(use, B, T)});
    return shapes;
}

std::vector<int> example_documents(const KernelUse& use, int B, int T) {
    std::vector<int> begins;
    for (int b = 0; use.documents && b < B; b++)
        for (int begin = 0, length = 1; begin < T; begin += length * length * (b + 1), length++)
            begins.resize(static_cast<size_t>(b * T + std::min(T, begin + length * length * (b + 1))), begin);
    return begins;
}

namespace {

struct Shape : reference::AttentionShape {
    float deviation = 1.0f;  // of qkv: larger ones make peaked probabilities
    bool bad = false;        // one value is infinite
    Passes passes = kWritingPasses;

    Shape(const reference::AttentionShape& s, float d = 1.0f, bool b = false)
        : reference::AttentionShape(s), deviation(d), bad(b) {}
    std::string text() const { return " " + AttentionShape::text() + (bad ? " with infinity" : ""); }
    std::vector<Axis> elements_of(int width) const { return {{"b", B}, {"t", T}, {"", width}}; }
    std::vector<Axis> rows_of() const { return {{"b", B}, {"h", NH}, {"t", T}}; }
};

// Outputs of the forward pass.
template <class Real>
struct Outputs {
    Real *out, *low;
    float* lse;
    Outputs(Trial& t, const Shape& s)
        : out(t.result<Real>("out", {{"b", s.B}, {"t", s.T}, {"h", s.NH}, {"", s.HD}})),
          low(sizeof(Real) == 2 ? t.result<Real>("out_low", s.elements_of(s.width())) : nullptr),
          lse(t.result<float>("lse", s.rows_of())) {}
};

Bounded with_floor(const std::vector<double>& values, const std::vector<double>& bounds) {
    return Bounded(values, bounds).widened(0, reference::kAttentionFloor);
}

// ---- plain ---------------------------------------------------------------------------------------------------------

// Compares the relative errors of whole dQ, dK and dV. With a single key dS is 0, so dQ and dK are left out.
void compare_norms(Trial& t, const Shape& s, const std::vector<double>& dqkv, const reference::Attention& expected,
                   const reference::AttentionNorms& norms) {
    for (const auto& [name, which, limit] :
         {std::tuple{"dq", 0, norms.dq_dk}, {"dk", 1, norms.dq_dk}, {"dv", 2, norms.dv}})
        if (s.T > 1 || which == 2)
            t.note(norm_not_within({name, {}}, reference::part_of_dqkv(dqkv, s, which),
                                   reference::part_of_dqkv(expected.dqkv, s, which), limit));
}

template <class Real>
void attention(Trial& t, const Shape& s) {
    constexpr bool narrow = sizeof(Real) == 2;
    const double u = reference::attention_rounding(narrow);
    const auto qkv = t.normal<Real>(s.qkv_elements(), s.deviation), dout = t.normal<Real>(s.elements(), 1.0f);
    const auto expected = reference::attention(s, qkv.doubles(), dout.doubles(), u, reference::attention_slack(narrow));
    const auto documents = t.input_or_none(s.documents);
    const Outputs<Real> to(t, s);
    Real* alone = narrow ? t.result<Real>("out without out_low", s.elements_of(s.width())) : nullptr;
    float* delta = t.result<float>("delta", s.rows_of());
    Real* dqkv = t.result<Real>("dqkv", {{"b", s.B}, {"t", s.T}, {"head", s.heads().rows()}, {"", s.HD}});
    t.run_twice([&] {
        if (alone)
            attention_forward<Real>(alone, nullptr, to.lse, qkv, s.B, s.T, s.heads(), t.tickets(), t.stream(),
                                    documents);
        attention_forward<Real>(to.out, to.low, to.lse, qkv, s.B, s.T, s.heads(), t.tickets(), t.stream(), documents);
        attention_backward<Real>(dqkv, delta, dout, qkv, to.out, to.low, to.lse, s.B, s.T, s.heads(), t.tickets(),
                                 t.stream(), documents);
    });
    t.within(to.out, with_floor(expected.out, expected.out_bound));
    std::vector<double> sum = reference::to_doubles(t.read(to.out));
    if (narrow) {
        const reference::AttentionNorms norms = reference::attention_norms(u);
        t.note(norm_not_within({"out", {}}, sum, expected.out, norms.out));
        const std::vector<double> rest = reference::to_doubles(t.read(to.low));
        for (size_t i = 0; i < sum.size(); i++) sum[i] += rest[i];
        t.equal(alone, t.read(to.out));
    }
    const ArrayShape whole{"out + out_low", t.shape_of(to.out).axes};
    t.note(not_within(whole, sum, with_floor(expected.out, expected.out_sum_bound)));
    t.note(norm_not_within(whole, sum, expected.out, reference::attention_norms(u).out_sum));
    t.within(to.lse, Bounded(expected.lse, reference::kAttentionLseError, 1.0));
    t.within(delta, with_floor(expected.delta, expected.delta_bound));
    t.within(dqkv, with_floor(expected.dqkv, expected.dqkv_bound));
    compare_norms(t, s, reference::to_doubles(t.read(dqkv)), expected, reference::attention_norms(u));
}

// The last `rows` rows of one sequence, against the keys and values of all.
struct Decode {
    reference::AttentionShape all;
    int rows;
    float deviation = 1.0f;
    std::string text() const { return fmt::format(" {} rows={}", all.text(), rows); }
};

template <class Real>
void decode(Trial& t, const Decode& s) {
    constexpr bool narrow = sizeof(Real) == 2;
    const int first = s.all.T - s.rows;
    const auto qkv = t.normal<Real>(s.all.qkv_elements(), s.deviation);
    const std::vector<Axis> axes = matrix(s.rows, s.all.width());
    Real *out = t.result<Real>("out", axes), *low = narrow ? t.result<Real>("out_low", axes) : nullptr;
    t.run_twice([&] { attention_decode<Real>(out, low, qkv, first, s.rows, s.all.heads(), t.stream()); });
    const auto expected =
        reference::attention(s.all, qkv.doubles(), std::vector<double>(s.all.elements()),
                             reference::attention_rounding(narrow), reference::attention_slack(narrow));
    std::vector<double> sum = reference::to_doubles(t.read(out));
    const auto rest = narrow ? reference::to_doubles(t.read(low)) : std::vector<double>(sum.size());
    for (size_t i = 0; i < sum.size(); i++) {
        if (std::fabs(rest[i]) > std::fabs(sum[i]) / 256) t.note("out_low is not the rounding error of out");
        sum[i] += rest[i];
    }
    const auto last = [&](const std::vector<double>& x) {
        return std::vector(x.end() - s.rows * s.all.width(), x.end());
    };
    t.note(not_within({"out + out_low", axes}, sum, {last(expected.out), last(expected.out_sum_bound)}));
}

// ---- largest logits ------------------------------------------------------------------------------------------------

// The first head already has a larger one, and keeps it.
template <class Real>
void max_logits(Trial& t, const Shape& s) {
    const auto qkv = t.normal<Real>(s.qkv_elements(), s.deviation);
    const auto documents = t.input_or_none(s.documents);
    std::vector<float> before(static_cast<size_t>(s.NH), float_from_bits(~0u));
    if (s.NH > 1) before[0] = 1e4f;
    float* maxima = t.result("maxima", {{"h", s.NH}}, before);
    t.run_twice([&] { attention_max_logits<Real>(maxima, qkv, s.B, s.T, s.heads(), t.stream(), documents); });
    Bounded expected(before.size());
    for (size_t h = 0; h < before.size(); h++) expected.values[h] = h == 0 && s.NH > 1 ? 1e4 : -INFINITY;
    reference::raise_to_logits(expected.values, expected.bounds, s, qkv.doubles(), reference::attention_slack(true));
    t.within(maxima, expected);
}

// ---- quantizing: attention and quantize(), byte by byte ------------------------------------------------------------

constexpr float kOutputScale = 250.0f, kGradientScale = 2000.0f;

Input<bf16> qkv_of(Trial& t, const Shape& s) {
    std::vector<bf16> qkv = t.random<bf16>(s.qkv_elements(), s.deviation);
    if (s.bad) qkv[s.qkv(0, 20, 2, 0) + 5] = to<bf16>(INFINITY);
    return t.input(qkv);
}

void forward_fp8(Trial& t, const Shape& s) {
    const auto qkv = qkv_of(t, s);
    const auto documents = t.input_or_none(s.documents);
    const Outputs<bf16> plain(t, s);
    t.run_twice([&] {
        attention_forward<bf16>(plain.out, plain.low, plain.lse, qkv, s.B, s.T, s.heads(), t.tickets(), t.stream(),
                                documents);
    });
    each_pass<e4m3>(
        t, s.passes, s.tokens(), s.width(), kOutputScale, [&](Trial& trial, const auto& to, QuantizePass pass) {
            const Outputs<bf16> fused(trial, s);
            // Without a copy of the output for a backward pass, in one of the calls.
            const bool keeps = to.layouts != Layouts::row;
            trial.run_twice([&] {
                attention_forward_fp8(to.target(), keeps ? fused.out : nullptr, keeps ? fused.low : nullptr, fused.lse,
                                      qkv, s.B, s.T, s.heads(), pass, trial.tickets(), t.stream(), documents);
            });
            trial.equal_or_untouched(keeps, fused.out, t.read(plain.out));
            trial.equal_or_untouched(keeps, fused.low, t.read(plain.low));
            trial.equal(fused.lse, t.read(plain.lse));
            to.compare_with_cast(plain.out, plain.low, pass);
        });
}

// The kernel also computes the bias gradient of the qkv layer: new, accumulated, or left out, depending on the layouts.
void backward_fp8(Trial& t, const Shape& s) {
    const auto qkv = qkv_of(t, s), dout = t.normal<bf16>(s.elements(), 0.1f, 0.02f);
    const auto documents = t.input_or_none(s.documents);
    const int width = s.qkv_width();
    const Outputs<bf16> forward(t, s);
    bf16* dqkv = t.result<bf16>("dqkv", s.elements_of(width));
    float* plain_delta = t.result<float>("delta", s.rows_of());
    t.run_twice([&] {
        attention_forward<bf16>(forward.out, forward.low, forward.lse, qkv, s.B, s.T, s.heads(), t.tickets(),
                                t.stream(), documents);
        attention_backward<bf16>(dqkv, plain_delta, dout, qkv, forward.out, forward.low, forward.lse, s.B, s.T,
                                 s.heads(), t.tickets(), t.stream(), documents);
    });
    const auto sums = reference::column_sums(reference::to_floats(t.read(dqkv)), width);
    const auto before = t.random<float>(width, 3.0f);
    each_pass<e5m2>(
        t, s.passes, s.tokens(), width, kGradientScale, [&](Trial& trial, const auto& to, QuantizePass pass) {
            float* delta = trial.result<float>("delta", s.rows_of());
            float *dbias = nullptr, *alone = nullptr, *scratch = nullptr;
            const bool accumulate = to.layouts == Layouts::row;
            if (to.layouts != Layouts::transposed) {
                dbias = trial.result("dbias", width, accumulate ? before : std::vector<float>());
                alone = accumulate ? trial.result<float>("dbias alone", width) : nullptr;
                scratch = trial.scratch<float>(attention_backward_fp8_scratch(s.B, s.T, s.heads()));
            }
            const auto run = [&](const Quantized<e5m2>& target, float* bias, bool add, QuantizePass how) {
                attention_backward_fp8(target, bias, scratch, delta, dout, qkv, forward.out, forward.low, forward.lse,
                                       s.B, s.T, s.heads(), add, how, trial.tickets(), t.stream(), documents);
            };
            trial.run_twice([&] {
                if (alone) run({nullptr, nullptr, to.state}, alone, false, QuantizePass::replay);
                run(to.target(), dbias, accumulate, pass);
            });
            if (!s.bad) trial.equal(delta, t.read(plain_delta));  // a NaN may have other bits
            to.compare_with_cast(dqkv, nullptr, pass);
            if (!dbias) return;
            trial.within(dbias, Bounded(accumulate ? plus(sums, before) : sums, reference::kColumnSumError,
                                        accumulate ? 3.0 : 1.0));
            if (alone) trial.within(alone, Bounded(sums, reference::kColumnSumError, 1.0));
        });
}

// ---- items ---------------------------------------------------------------------------------------------------------

void add_forward_fp8(Items& items, const Shape& s) { add_kernel(items, "attention_forward_fp8", forward_fp8, s); }
void add_backward_fp8(Items& items, const Shape& s) {
    add_kernel<e5m2>(items, "attention_backward_fp8", backward_fp8, s);
}

// A copy of the shape for these kernels, unless no card has them for it.
std::optional<Shape> with(Kernels kernels, Shape s) {
    s.kernels = kernels;
    return kernels == Kernels::portable || hopper::can_run(s.heads()) ? std::optional(s) : std::nullopt;
}

template <class Real>
void add_plain_tests(Items& items, Kernels kernels) {
    const auto add = [&](const Shape& shape) {
        const std::optional<Shape> s = with(kernels, shape);
        if (s) add_kernel<Real>(items, "attention", attention<Real>, *s);
        if (kernels == Kernels::portable) add_kernel<Real>(items, "attention_max_logits", max_logits<Real>, *s);
    };
    for (const int HD : {32, 64, 128}) {
        for (const auto& [B, T, NH] :
             {std::tuple{1, 1, 1}, {2, 17, 3}, {1, 63, 1}, {2, 64, 1}, {1, 65, 2}, {1, 128, 1}})
            add({{B, T, NH, HD}});
        add({{2, 200, 1, HD}, 2.5f});
        for (const auto& [B, T, NH, NKV] : {std::tuple{1, 1, 2, 1}, {2, 17, 6, 2}, {1, 65, 3, 1}, {1, 140, 4, 2}})
            add({{B, T, NH, HD, NKV}});
        for (const int window : {1, 7, 64, 130}) add({{1, 210, 1, HD, 1, window}});
        add({{1, 210, 2, HD, 1, 65}});
        // Documents of a token, of less than a tile and of several; boundaries on the edges of tiles (of 8, 32, 64 and
        // 128), one before and one after them; and no boundary.
        const std::vector<std::vector<int>> cuts[] = {
            {{64, 64, 32, 1, 1, 40}}, {{1, 1, 30, 31, 66}}, {{128}}, {{127, 2, 3}}, {{205, 4}}, {{}}};
        for (const auto& rows : cuts) add({{1, 210, 1, HD, 1, 0, reference::documents_of(210, rows)}});
        for (const int window : {1, 7, 65}) add({{1, 210, 2, HD, 1, window, reference::documents_of(210, cuts[0])}});
        if (kernels == Kernels::portable) continue;
        // Several of the largest tiles of Hopper's kernels.
        add({{1, 392, 2, HD, 1}});
        add({{1, 456, 1, HD, 1, 150}});
        // In the last tile one warpgroup sees three tiles of keys that the next one skips.
        add({{1, 456, 1, HD, 1, 0, reference::documents_of(456, {{72, 376}})}});
    }
    // Dimensions whose rows do not divide the threads, and one whose gradients two warps share: part of a tile, several
    // tiles, groups, peaked probabilities, windows and documents.
    for (const int HD : {80, 96, 256}) {
        add({{2, 17, 3, HD}});
        add({{1, 140, 2, HD, 1}});
        add({{1, 130, 1, HD}, 2.5f});
        add({{1, 210, 1, HD, 1, 65}});
        add({{1, 140, 2, HD, 1, 7, reference::documents_of(140, {{64, 1, 1, 40}})}});
    }
    add({{3, 70, 4, 64, 2, 0, reference::documents_of(70, {{5}, {64, 1}, {}})}});  // each row has its own documents
}

}  // namespace

void add_attention(Items& items, const KernelUse& use) {
    std::vector<Kernels> kernels = {Kernels::portable};
    if (use.hopper) kernels.push_back(Kernels::automatic);
    const auto each_shape = [&](int T, const auto& add) {
        for (const Kernels k : kernels)
            for (const Shape shape : example_shapes(use, 2, T))
                if (const std::optional<Shape> s = with(k, shape)) add(*s);
    };
    // Several tiles of 64 and of 128 rows, and a part of one.
    each_shape(277, [&](const Shape& s) {
        with_type<bf16, float>(use.bf16, [&]<class Real>(Real) {
            add_kernel<Real>(items, "attention", attention<Real>, s);
            if (use.max_logits && s.kernels == Kernels::portable)
                add_kernel<Real>(items, "attention_max_logits", max_logits<Real>, s);
        });
    });
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor || use.current_scaling) return;
    // Fills no tile, but pieces of 8 tokens; 304 tokens are a multiple of 16.
    each_shape(152, [&](const Shape& s) {
        add_forward_fp8(items, s);
        // RoPE turns the gradient back before it is cast.
        if (use.position_embedding && !use.e4m3_gradients) add_backward_fp8(items, s);
    });
}

static void add_tests(Items& items, Kernels kernels) {
    if (kernels == Kernels::portable) add_plain_tests<float>(items, kernels);
    add_plain_tests<bf16>(items, kernels);
    // Sequences shorter than a tile, of whole tiles, and of a partial last tile; some are an odd number of 8 tokens.
    std::vector<Shape> shapes;
    for (const int HD : {32, 64, 128}) {
        for (const auto& [B, T, NH] :
             {std::tuple{1, 16, 1}, {2, 8, 2}, {2, 40, 3}, {1, 80, 1}, {2, 72, 1}, {1, 128, 1}, {2, 136, 1}})
            shapes.push_back({{B, T, NH, HD}});
        shapes.push_back({{1, 80, 4, HD, 2}});
        shapes.push_back({{2, 136, 2, HD, 1, 50}});
        shapes.push_back({{1, 208, 1, HD, 1, 0, reference::documents_of(208, {{136}})}});  // tiles inside a document
        shapes.push_back({{2, 136, 2, HD, 1, 50, reference::documents_of(136, {{37, 37, 37}, {37, 37, 37}})}});
    }
    for (const int HD : {80, 96, 256}) {
        shapes.push_back({{2, 40, 1, HD}});
        shapes.push_back({{1, 144, 2, HD, 1, 50, reference::documents_of(144, {{37, 37, 37}})}});
    }
    for (const int HD : {64, 128}) shapes.push_back({{1, 464, 1, HD, 1, 193}});  // several tiles of Hopper's kernels
    for (size_t i = 0; i < shapes.size(); i++) {
        // One pass, another for the next shape; all of them with documents and a window, on tiles of every kind.
        std::optional<Shape> s = with(kernels, shapes[i]);
        if (!s) continue;
        if (s->documents.empty() || s->window == 0) s->passes = {kWritingPasses[i % kWritingPasses.size()]};
        add_forward_fp8(items, *s);
        add_backward_fp8(items, *s);
    }
    Shape skipping({1, 400, 1, 128});  // Hopper's last warpgroup has no rows and skips four tiles
    skipping.passes = {QuantizePass::train};
    add_forward_fp8(items, *with(kernels, skipping));
    if (kernels != Kernels::portable) return;
    Shape bad({1, 48, 2, 32}, 1.0f, true);
    bad.passes = {QuantizePass::train};
    add_forward_fp8(items, bad);
    add_backward_fp8(items, bad);
}

void add_attention_tests(Items& items) { add_tests(items, Kernels::portable); }
void add_hopper_attention_tests(Items& items) { add_tests(items, Kernels::automatic); }

void add_decode_tests(Items& items) {
    each_type<float, bf16>([&]<class Real>(Real) {
        const auto add = [&](int first, int rows, int NH, int HD, int NKV, int window = 0, float deviation = 1.0f) {
            add_kernel<Real>(items, "attention_decode", decode<Real>,
                             {{1, first + rows, NH, HD, NKV, window}, rows, deviation});
        };
        for (const int HD : {32, 64, 128}) {
            for (const auto& [first, rows] :
                 {std::pair{0, 1}, {0, 16}, {16, 16}, {48, 16}, {63, 1}, {64, 3}, {100, 29}})
                add(first, rows, 2, HD, 2);
            add(63, 20, 6, HD, 2);
        }
        for (const int HD : {80, 96, 256}) add(60, 20, 4, HD, 2);
        add(200, 16, 3, 64, 3, 0, 3.0f);  // nearly one-hot
        for (const int window : {1, 5, 64, 70}) add(150, 35, 2, 64, 1, window);
    });
}

}  // namespace llmc::check
