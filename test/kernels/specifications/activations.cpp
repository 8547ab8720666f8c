// GELU, SwiGLU and squared ReLU, plain and quantizing, and Hopper's products that compute GELU.
#include "llmc/kernels/activation.h"
#include "llmc/kernels/hopper/matmul_gelu.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

struct Shape {
    int N, F;
    Activation kind;
    bool bad = false;      // NaN and infinity stand in the input and in the gradient
    float scale = 100.0f;  // scales the output's E4M3 codes, so that some saturate

    bool is(Activation a) const { return kind == a; }
    int columns() const { return is_gated(kind) ? 2 * F : F; }
    size_t outputs() const { return size_t{1} * N * F; }
    size_t inputs() const { return size_t{1} * N * columns(); }
    std::string name() const { return is(Activation::gelu) ? "gelu" : is(Activation::swiglu) ? "swiglu" : "relu2"; }
    std::string text() const { return fmt::format(" N={} F={}{}", N, F, bad ? " with NaN and infinity" : ""); }
};

// Every size matters to the exponential: some inputs are large, tiny or 0.
template <class Real>
std::vector<Real> inputs_of(Trial& t, const Shape& s) {
    auto x = t.random<Real>(s.inputs(), 2.0f);
    constexpr float kEdges[] = {100.0f, -100.0f, 0.0f, 20.0f, -20.0f, 1e-3f, -88.0f, 88.0f, 8.0f, -8.0f, -60.0f};
    for (size_t i = 0; i < x.size(); i += 37) x[i] = to<Real>(kEdges[i / 37 % std::size(kEdges)]);
    if (!s.bad) return x;
    x[5] = to<Real>(NAN);
    x[s.inputs() - 44] = to<Real>(INFINITY);
    return x;
}
template <class Real>
std::vector<Real> with_bad(std::vector<Real> dout, const Shape& s) {
    if (!s.bad) return dout;
    dout[s.outputs() / 2 + 7] = to<Real>(-INFINITY);
    dout[s.outputs() / 3] = to<Real>(NAN);
    return dout;
}

// Output and gradient before the rounding to Real, with bounds of FP32 arithmetic. Squared ReLU is one rounding to FP32
// and one to Real, so exact.
struct Exact {
    Bounded out, dinp;
};
template <class Real>
Exact exact_values(const Shape& s, const std::vector<Real>& inp, const std::vector<Real>& dout) {
    if (s.is(Activation::swiglu)) {
        const auto r = reference::swiglu(reference::to_doubles(inp), reference::to_doubles(dout), s.F);
        return {Bounded(r.out, r.out_bound), Bounded(r.dinp, r.dinp_bound)};
    }
    Exact exact;
    for (size_t i = 0; i < inp.size(); i++) {
        const float x = to_float(inp[i]), d = to_float(dout[i]), positive = std::max(x, 0.0f);
        if (s.is(Activation::relu2)) {
            exact.out.push_back(to_float(to<Real>(positive * positive)), 0);
            exact.dinp.push_back(to_float(to<Real>(d * (2.0f * positive))), 0);
            continue;
        }
        const reference::Gelu gelu(x);
        const double gradient = d * gelu.derivative;
        exact.out.push_back(gelu.value, gelu.value_bound);
        // With dout of 0, the bounds of the derivative may allow both signs.
        exact.dinp.push_back(gradient, std::fabs(d) * gelu.derivative_bound + reference::kUnit * std::fabs(gradient) +
                                           reference::kVanishing);
    }
    return exact;
}
template <class Real>
Bounded stored(const Shape& s, const Bounded& exact) {
    return s.is(Activation::relu2) ? exact : rounded<Real>(exact);
}

// Sums of the columns of GELU's gradient, on top of `before` (F) if it is not empty.
Bounded bias_gradient(const Shape& s, const Bounded& gradient, const std::vector<float>& before) {
    const size_t F = s.F;
    const int additions = reference::column_additions(s.N, s.F);
    Bounded sums(F);
    for (size_t i = 0; i < gradient.values.size(); i++) {
        sums.values[i % F] += gradient.values[i];
        sums.bounds[i % F] += gradient.bounds[i] + additions * reference::kUnit * std::fabs(gradient.values[i]);
    }
    for (size_t f = 0; f < before.size(); f++) {
        sums.values[f] += before[f];
        sums.bounds[f] += 1.01 * reference::kUnit * std::fabs(sums.values[f]);
    }
    return sums;
}

// ---- plain ---------------------------------------------------------------------------------------------------------

template <class Real>
void forward(Trial& t, const Shape& s) {
    const auto inp = t.input(inputs_of<Real>(t, s));
    Real* out = t.result<Real>("out", matrix(s.N, s.F));
    const bool in_place = !is_gated(s.kind);
    Real* over = in_place ? t.result("out in place", matrix(s.N, s.F), inp.values) : nullptr;
    t.run_twice([&] {
        activation_forward<Real>(s.kind, out, inp, s.N, s.F, t.stream());
        if (in_place) activation_forward<Real>(s.kind, over, over, s.N, s.F, t.stream());
    });
    t.within(out, stored<Real>(s, exact_values(s, inp.values, std::vector<Real>(s.outputs())).out));
    if (in_place) t.equal(over, t.read(out));
}

template <class Real>
void backward(Trial& t, const Shape& s) {
    const auto inp = t.input(inputs_of<Real>(t, s)),
               dout = t.input(with_bad(t.random<Real>(s.outputs(), 1.0f, 0.3f), s));
    const bool has_bias = sums_bias_gradient(s.kind), over_dout = !is_gated(s.kind);
    const auto before = t.random<float>(s.F, 10.0f);
    Real *dinp = t.result<Real>("dinp", matrix(s.N, s.columns())),
         *over_inp = t.result("dinp over inp", matrix(s.N, s.columns()), inp.values),
         *over = over_dout ? t.result("dinp over dout", matrix(s.N, s.F), dout.values) : nullptr;
    float *dbias = nullptr, *again = nullptr, *accumulated = nullptr, *scratch = nullptr;
    if (has_bias) {
        dbias = t.result<float>("dbias", s.F);
        again = t.result<float>("dbias again", s.F);
        accumulated = t.result("accumulated dbias", s.F, before);
        scratch = t.scratch<float>(activation_scratch(s.N, s.F));
    }
    const auto run = [&](Real* to, const BiasGradient& bias, const Real* from, const Real* of) {
        activation_backward<Real>(s.kind, to, bias, from, of, s.N, s.F, t.stream());
    };
    t.run_twice([&] {
        run(dinp, {dbias, scratch}, dout, inp);
        run(over_inp, {again, scratch}, dout, over_inp);
        if (over_dout) run(over, {accumulated, scratch, true}, over, inp);
    });
    const Bounded gradient = exact_values(s, inp.values, dout.values).dinp;
    t.within(dinp, stored<Real>(s, gradient));
    t.equal(over_inp, t.read(dinp));
    if (over_dout) t.equal(over, t.read(dinp));
    if (!has_bias) return;
    t.within(dbias, bias_gradient(s, gradient, {}));
    t.equal(again, t.read(dbias));
    t.within(accumulated, bias_gradient(s, gradient, before));
}

// ---- quantizing: squared ReLU and SwiGLU are the plain kernel and quantize(); GELU casts values in FP32 ------------

void forward_fp8(Trial& t, const Shape& s) {
    const auto inp = t.input(inputs_of<bf16>(t, s));
    const bool gelu = s.is(Activation::gelu);
    bf16* values = t.result<bf16>("out", matrix(s.N, s.F));
    if (!gelu) t.run_twice([&] { activation_forward<bf16>(s.kind, values, inp, s.N, s.F, t.stream()); });
    const CodeRanges<e4m3> expected(exact_values(s, inp.values, std::vector<bf16>(s.outputs())).out, s.scale);
    each_pass<e4m3>(t, kAllPasses, s.N, s.F, s.scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        trial.run_twice([&] { activation_forward_fp8(s.kind, to.target(), inp, s.N, s.F, pass, t.stream()); });
        if (gelu)
            to.compare(expected, {pass});
        else
            to.compare_with_cast(values, nullptr, pass);
    });
}

void backward_fp8(Trial& t, const Shape& s) {
    const auto inp = t.input(inputs_of<bf16>(t, s));
    const auto dout = t.input(with_bad(reference::wide_values<bf16>(s.outputs(), static_cast<uint32_t>(s.N + s.F)), s));
    const float scale = 700.0f;  // some saturate, some vanish
    const bool gelu = s.is(Activation::gelu);
    bf16* values = t.result<bf16>("dinp", matrix(s.N, s.columns()));
    if (!gelu) t.run_twice([&] { activation_backward<bf16>(s.kind, values, {}, dout, inp, s.N, s.F, t.stream()); });
    const Bounded gradient = exact_values(s, inp.values, dout.values).dinp;
    const CodeRanges<e5m2> expected(gradient, scale);
    const auto before = t.random<float>(s.F, 10.0f);
    each_pass<e5m2>(t, kAllPasses, s.N, s.columns(), scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const bool accumulate = to.layouts == Layouts::both, has_bias = gelu && to.layouts != Layouts::row;
        float* dbias = has_bias ? trial.result("dbias", s.F, before) : nullptr;
        float* scratch = has_bias ? trial.scratch<float>(quantize_scratch(s.N, s.F)) : nullptr;
        trial.run_twice([&] {
            activation_backward_fp8(s.kind, to.target(), {dbias, scratch, accumulate}, dout, inp, s.N, s.F, pass,
                                    t.stream());
        });
        if (gelu)
            to.compare(expected, {pass});
        else
            to.compare_with_cast(values, nullptr, pass);
        if (!has_bias) return;
        if (pass == QuantizePass::measure) return trial.equal(dbias, before);
        trial.within(dbias, bias_gradient(s, gradient, accumulate ? before : std::vector<float>()));
    });
}

// ---- products with GELU: sums of whole numbers, which are exact; then the separate kernels, byte by byte ------------

struct ProductShape {
    int N, K, F;
    bool bad = false;  // NaN and infinity stand in operands, in the bias and in h

    std::string text() const { return fmt::format(" N={} K={} F={}{}", N, K, F, bad ? " with NaN and infinity" : ""); }
};

// Operands of a (N, F) = first (N, K) second (F, K)^T, in FP8 with scales, and their exact product.
template <class T>
struct ProductOperands {
    static constexpr bool kIsCode = sizeof(T) == 1;
    std::vector<T> first;
    std::vector<std::conditional_t<kIsCode, e4m3, bf16>> second;
    float first_scale_inv = kIsCode ? 0.25f : 1.0f, second_scale_inv = kIsCode ? 0.125f : 1.0f;
    std::vector<double> product;

    ProductOperands(Trial& t, const ProductShape& s)
        : first(numbers<T>(t, size_t{1} * s.N * s.K, 2)),
          second(numbers<typename decltype(second)::value_type>(t, size_t{1} * s.F * s.K, 1)) {
        if (s.bad) first[5 * static_cast<size_t>(s.K) + 7] = to<T>(NAN);
        const size_t N = s.N, K = s.K, F = s.F;
        std::vector<double> turned(K * F);
        for (size_t f = 0; f < F; f++)
            for (size_t k = 0; k < K; k++) turned[k * F + f] = to_float(second[f * K + k]);
        product.resize(N * F);
        for (size_t n = 0; n < N; n++)
            for (size_t k = 0; k < K; k++) {
                const double x = static_cast<double>(to_float(first[n * K + k])) * first_scale_inv * second_scale_inv;
                for (size_t f = 0; f < F; f++) product[n * F + f] += x * turned[k * F + f];
            }
    }
    // Whole numbers up to `largest`.
    template <class Number>
    static std::vector<Number> numbers(Trial& t, size_t count, float largest) {
        std::vector<Number> numbers;
        for (const float x : t.random<float>(count, largest))
            numbers.push_back(to<Number>(std::clamp(std::round(x), -largest, largest)));
        return numbers;
    }

    // The product plus the bias (F), rounded to BF16.
    Bounded h(const std::vector<bf16>& bias) const {
        std::vector<double> sums(product);
        for (size_t i = 0; i < sums.size(); i++) sums[i] += to_float(bias[i % bias.size()]);
        return Bounded(sums, reference::rounding_error<bf16>(), 0.0);
    }
    std::vector<bf16> rounded_product() const {
        std::vector<bf16> rounded;
        for (const double value : product) rounded.push_back(to<bf16>(static_cast<float>(value)));
        return rounded;
    }
};

std::vector<bf16> bias_of(Trial& t, const ProductShape& s) {
    auto bias = ProductOperands<bf16>::numbers<bf16>(t, s.F, 2);
    if (s.bad) bias[9] = to<bf16>(INFINITY);
    return bias;
}

void product_forward(Trial& t, const ProductShape& s) {
    const ProductOperands<e4m3> operands(t, s);
    const auto bias = bias_of(t, s);
    const Bounded expected = operands.h(bias);
    each_pass<e4m3>(t, kWritingPasses, s.N, s.F, 100.0f, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const auto x = trial.input(operands.first), weight = trial.input(operands.second);
        const auto own_bias = trial.input(bias);
        const auto x_scale = trial.input_of(operands.first_scale_inv),
                   scale = trial.input_of(operands.second_scale_inv);
        bf16* const stored = trial.template result<bf16>("h", matrix(s.N, s.F));
        trial.run_twice([&] {
            hopper::multiply_gelu_forward(to.target(), stored, {x, x_scale}, {weight, scale}, own_bias, s.N, s.K, s.F,
                                          pass, trial.tickets(), t.stream());
        });
        trial.within(stored, expected);
        to.compare_with([&](const Quantized<e4m3>& plain) {
            activation_forward_fp8(Activation::gelu, plain, stored, s.N, s.F, pass, t.stream());
        });
    });
}

void product_backward(Trial& t, const ProductShape& s) {
    const ProductOperands<e5m2> operands(t, s);
    const auto dout = operands.rounded_product();
    const Shape outputs{s.N, s.F, Activation::gelu, s.bad};
    const auto h = inputs_of<bf16>(t, outputs);
    const Bounded gradient = exact_values(outputs, h, dout).dinp;
    const auto before = t.random<float>(s.F, 10.0f);
    const float scale = 20000.0f;  // some saturate
    each_pass<e5m2>(t, kWritingPasses, s.N, s.F, scale, [&](Trial& trial, const auto& to, QuantizePass pass) {
        const auto own_dout = trial.input(operands.first);
        const auto weight = trial.input(operands.second);
        const auto own_h = trial.input(h), rounded = trial.input(dout);
        const auto dout_scale = trial.input_of(operands.first_scale_inv),
                   weight_scale = trial.input_of(operands.second_scale_inv);
        const bool accumulate = to.layouts == Layouts::both;
        float* const dbias = trial.result("dbias", s.F, before);
        float* const scratch = trial.scratch<float>(quantize_scratch(s.N, s.F));
        trial.run_twice([&] {
            hopper::multiply_gelu_backward<e5m2>(to.target(), {dbias, scratch, accumulate}, {own_dout, dout_scale},
                                                 {weight, weight_scale}, own_h, s.N, s.K, s.F, pass, trial.tickets(),
                                                 t.stream());
        });
        to.compare_with([&](const Quantized<e5m2>& plain) {
            activation_backward_fp8(Activation::gelu, plain, {}, rounded, own_h, s.N, s.F, pass, t.stream());
        });
        trial.within(dbias, bias_gradient(outputs, gradient, accumulate ? before : std::vector<float>()));
    });
}

void product_forward_bf16(Trial& t, const ProductShape& s) {
    const ProductOperands<bf16> operands(t, s);
    const auto x = t.input(operands.first), weight = t.input(operands.second), bias = t.input(bias_of(t, s));
    bf16 *const h = t.result<bf16>("h", matrix(s.N, s.F)), *const out = t.result<bf16>("out", matrix(s.N, s.F)),
                *const plain = t.result<bf16>("out of the separate kernel", matrix(s.N, s.F));
    t.run_twice([&] {
        hopper::multiply_gelu_forward<bf16>({out}, h, {x}, {weight}, bias, s.N, s.K, s.F, QuantizePass::write,
                                            t.tickets(), t.stream());
        activation_forward<bf16>(Activation::gelu, plain, h, s.N, s.F, t.stream());
    });
    t.within(h, operands.h(bias.values));
    t.equal(out, t.read(plain));
}

void product_backward_bf16(Trial& t, const ProductShape& s) {
    const ProductOperands<bf16> operands(t, s);
    const Shape outputs{s.N, s.F, Activation::gelu, s.bad};
    const size_t K = s.K, F = s.F;
    std::vector<bf16> turned(K * F);
    for (size_t f = 0; f < F; f++)
        for (size_t k = 0; k < K; k++) turned[k * F + f] = operands.second[f * K + k];
    const auto own_dout = t.input(operands.first), weight = t.input(turned), h = t.input(inputs_of<bf16>(t, outputs)),
               rounded = t.input(operands.rounded_product());
    const Bounded gradient = exact_values(outputs, h.values, rounded.values).dinp;
    for (const bool accumulate : {false, true})
        t.nested([&](Trial& trial) {
            const auto before = trial.random<float>(F, 10.0f);
            bf16 *const dh = trial.result<bf16>("dh", matrix(s.N, F)), *const plain = trial.result<bf16>(
                                                                           "dh of the separate kernel", matrix(s.N, F));
            float* const dbias = trial.result("dbias", F, before);
            float *const scratch =
                             trial.scratch<float>(std::max(activation_scratch(s.N, s.F), quantize_scratch(s.N, s.F))),
                         *const plain_dbias = trial.result<float>("dbias of the separate kernel", F);
            trial.run_twice([&] {
                hopper::multiply_gelu_backward<bf16>({dh}, {dbias, scratch, accumulate}, {own_dout}, {weight}, h, s.N,
                                                     s.K, s.F, QuantizePass::write, trial.tickets(), t.stream());
                activation_backward<bf16>(Activation::gelu, plain, {plain_dbias, scratch}, rounded, h, s.N, s.F,
                                          t.stream());
            });
            trial.equal(dh, trial.read(plain));
            trial.within(dbias, bias_gradient(outputs, gradient, accumulate ? before : std::vector<float>()));
        });
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_plain(Items& items, const Shape& s) {
    add_kernel<Real>(items, s.name() + "_forward", forward<Real>, s);
    add_kernel<Real>(items, s.name() + "_backward", backward<Real>, s);
}
void add_forward_fp8(Items& items, const Shape& s) { add_kernel(items, s.name() + "_forward_fp8", forward_fp8, s); }
void add_backward_fp8(Items& items, const Shape& s) {
    add_kernel<e5m2>(items, s.name() + "_backward_fp8", backward_fp8, s);
}

void add_products_bf16(Items& items, const ProductShape& s) {
    add_kernel<bf16>(items, "multiply_gelu_forward", product_forward_bf16, s);
    add_kernel<bf16>(items, "multiply_gelu_backward", product_backward_bf16, s);
}
void add_product_forward(Items& items, const ProductShape& s) {
    add_kernel(items, "multiply_gelu_forward", product_forward, s);
}
void add_product_backward(Items& items, const ProductShape& s) {
    add_kernel<e5m2>(items, "multiply_gelu_backward", product_backward, s);
}

}  // namespace

void add_activations(Items& items, const KernelUse& use) {
    const Shape s{149, use.hidden, use.activation}, whole_tiles{144, use.hidden, use.activation};
    const ProductShape product{128, use.channels, use.hidden};
    with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add_plain<Real>(items, s); });
    const bool products = use.hopper && use.activation == Activation::gelu &&
                          hopper::can_multiply_with_gelu(product.N, product.K, product.F);
    if (products && use.bf16) add_products_bf16(items, product);
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    add_forward_fp8(items, whole_tiles);
    if (use.e4m3_gradients) return;
    add_backward_fp8(items, whole_tiles);
    if (!products || use.current_scaling) return;
    add_product_forward(items, product);
    add_product_backward(items, product);
}

void add_activation_tests(Items& items) {
    for (const Activation kind : {Activation::gelu, Activation::swiglu, Activation::relu2}) {
        // Element-wise kernels: less than a block, a whole one, several and a tail.
        const std::pair<int, int> sizes[] = {
            {1, 8}, {7, 64}, {1, 2056}, {2, 2048}, {33, 128}, {33, 192}, {33, 1600}, {1, 3 * 4096 + 2064}, {1031, 264}};
        each_type<float, bf16>([&]<class Real>(Real) {
            for (const auto& [N, F] : sizes) add_plain<Real>(items, {N, F, kind});
            add_plain<Real>(items, {40, 64, kind, true});
        });
        // Smaller and larger than a tile, and no multiple of it. Half a tile is 64 columns of SwiGLU's gates.
        for (const auto& [N, F] :
             {std::pair{16, 16}, {48, 64}, {80, 144}, {144, 128}, {16, 1600}, {272, 144}, {48, 768}, {32, 208}}) {
            add_forward_fp8(items, {N, F, kind});
            add_forward_fp8(items, {N, F, kind, false, 0.01f});  // underflows
            add_backward_fp8(items, {N, F, kind});
        }
        add_forward_fp8(items, {48, 144, kind, true, 8.0f});
        add_backward_fp8(items, {48, 144, kind, true});
    }
}

void add_product_with_gelu_tests(Items& items) {
    // One stage of each depth, and rings that turn. On the virtual GPU the first block takes most of the tiles.
    for (const ProductShape& s :
         {ProductShape{256, 16, 768}, {384, 656, 256}, {128, 400, 768}, {128, 208, 256, true}}) {
        add_products_bf16(items, s);
        add_product_forward(items, s);
        add_product_backward(items, s);
    }
}

}  // namespace llmc::check
