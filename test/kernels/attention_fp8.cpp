// Quantizing attention against the plain kernels, which attention.cpp compares with FP64, followed by the plain
// quantization: the same bits in both layouts, amaxes, counts and lse. And once more against FP64 from end to end.
// build: per device
#include "llmc/kernels/attention.h"

#include <array>

#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif
#include "llmc/check/reference_attention.h"
#include "test/kernels/quantized.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using Shape = reference::AttentionShape;

// Documents of so many tokens each.
Shape with_documents(Shape s, int length) {
    for (int t = 0; t < s.tokens(); t++) s.documents.push_back(t % s.T / length * length);
    return s;
}

// Less than a tile, whole tiles and not; pieces of 8 tokens that do not make 16 in a sequence.
std::vector<Shape> attention_shapes() {
    std::vector<Shape> shapes;
    for (const int HD : {32, 64, 128})
        for (const auto& [B, T, NH] :
             {std::array{1, 16, 1}, std::array{2, 8, 2}, std::array{2, 40, 3}, std::array{1, 80, 2},
              std::array{2, 72, 1}, std::array{1, 128, 1}, std::array{2, 136, 2}})
            shapes.push_back({B, T, NH, HD});
    for (const int HD : {32, 64, 128}) shapes.push_back({1, 80, 4, HD, 2}), shapes.push_back({2, 136, 3, HD, 1, 0, 50});
    for (const int HD : {32, 64, 128}) {
        shapes.push_back(with_documents({2, 136, 3, HD, 1, 0, 50}, 37));
        shapes.push_back(with_documents({1, 208, 1, HD}, 136));  // with tiles inside a document
    }
    return shapes;
}

// Inputs, and what the plain kernels make of them.
struct Case {
    Shape s;
    DeviceArray<bf16> qkv, dout, out, low, dqkv;
    DeviceArray<float> lse, delta, dbias, scratch;
    DeviceArray<int> document_starts;
    const int* documents;

    explicit Case(const Shape& s_, uint32_t seed = 7)
        : s(s_),
          qkv(random_normal<bf16>(s.qkv_elements(), 1.0f, seed)),
          dout(random_normal<bf16>(s.elements(), 0.1f, seed + 1, 0.02f)),
          out(s.elements()),
          low(s.elements()),
          dqkv(s.qkv_elements()),
          lse(static_cast<size_t>(s.tokens()) * s.NH),
          delta(static_cast<size_t>(s.tokens()) * s.NH),
          dbias(static_cast<size_t>(s.qkv_width())),
          scratch(attention_backward_fp8_scratch(s.B, s.T, s.heads())),
          document_starts(s.documents.empty() ? std::vector<int>(1) : s.documents),
          documents(s.documents.empty() ? nullptr : document_starts.get()) {
        attention_forward<bf16>(out, low, lse, qkv, s.B, s.T, s.heads(), test_stream(), documents);
        attention_backward<bf16>(dqkv, delta, dout, qkv, out, low, lse, s.B, s.T, s.heads(), test_stream(), documents);
    }
    // O as the forward quantizes it, and dqkv.
    std::vector<float> output() const {
        auto x = to_floats(out.download());
        const auto rest = to_floats(low.download());
        for (size_t i = 0; i < x.size(); i++) x[i] += rest[i];
        return x;
    }
    template <class F8>
    void backward(const Quantized<F8>& to, QuantizePass pass, bool with_bias, bool accumulate = false) {
        attention_backward_fp8<F8>(to, with_bias ? dbias.get() : nullptr, with_bias ? scratch.get() : nullptr, delta,
                                   dout.get(), qkv.get(), out.get(), low.get(), lse.get(), s.B, s.T, s.heads(),
                                   accumulate, pass, test_stream(), documents);
    }
};

constexpr QuantizePass kWritingPasses[] = {QuantizePass::train_counted, QuantizePass::train,
                                           QuantizePass::write_counted, QuantizePass::write, QuantizePass::replay};

// All where there are documents, on tiles of every kind; otherwise one, another for the next shape.
std::vector<QuantizePass> passes_of(const Shape& s, size_t number) {
    if (s.documents.empty()) return {kWritingPasses[number % std::size(kWritingPasses)]};
    return {std::begin(kWritingPasses), std::end(kWritingPasses)};
}

// Passes of a kernel that quantizes x (N, C), in both layouts and in one alone.
template <class F8>
void check_passes(const std::vector<QuantizePass>& passes, const std::vector<float>& x, int N, int C, float scale,
                  const Quantizer<F8>& run) {
    const QuantizedReference<F8> reference(x, scale);
    const std::vector<F8> untouched = DeviceArray<F8>(x.size()).download();
    for (const QuantizePass pass : passes) {
        CAPTURE(static_cast<int>(pass));
        const Fp8State before = used_state(scale);
        QuantizedArrays<F8> to(x.size(), before), one(x.size(), before), other(x.size(), before);
        run(to.both(), pass);
        CHECK(wrong_codes(to.row.download(), reference.row, Known::exactly) == 0);
        CHECK(not_transposed(to.row.download(), to.transposed.download(), N, C) == 0);
        CHECK(state_matches(to.state.download()[0], reference.after(before, pass), Known::exactly, 0));
        run({one.row.get(), nullptr, one.state.get()}, pass);
        run({nullptr, other.transposed.get(), other.state.get()}, pass);
        CHECK(same_bits(one.row.download(), to.row.download()));
        CHECK(same_bits(one.transposed.download(), untouched));
        CHECK(same_bits(other.transposed.download(), to.transposed.download()));
        CHECK(same_bits(other.row.download(), untouched));
        CHECK(same_bits(one.state.download(), to.state.download()));
    }
}

template <class F8>
double dequantized_error(const std::vector<F8>& codes, float scale, const std::vector<double>& expected) {
    std::vector<float> values;
    for (const F8 code : codes) values.push_back(to_float(code) / scale);
    return relative_norm_error(values, expected);
}

}  // namespace

TEST_CASE("attention_forward_fp8 is attention_forward and quantize") {
    size_t number = 0;
    for (const Shape& s : attention_shapes()) {
        CAPTURE(s.T);
        CAPTURE(s.HD);
        Case c(s);
        DeviceArray<bf16> out(s.elements()), low(s.elements());
        DeviceArray<float> lse(c.lse.size());
        const auto run = [&](const auto& to, QuantizePass pass) {
            attention_forward_fp8(to, out, low, lse, c.qkv, s.B, s.T, s.heads(), pass, test_stream(), c.documents);
            CHECK(same_bits(out.download(), c.out.download()));
            CHECK(same_bits(low.download(), c.low.download()));
            CHECK(same_bits(lse.download(), c.lse.download()));
        };
        check_passes<e4m3>(passes_of(s, number++), c.output(), s.tokens(), s.width(), 250.0f, run);
        // Without a copy for a backward.
        QuantizedArrays<e4m3> with(s.elements(), used_state(64.0f)), without(s.elements(), used_state(64.0f));
        for (QuantizedArrays<e4m3>* to : {&with, &without})
            attention_forward_fp8(to->both(), to == &with ? out.get() : nullptr, to == &with ? low.get() : nullptr, lse,
                                  c.qkv, s.B, s.T, s.heads(), QuantizePass::train, test_stream(), c.documents);
        CHECK(same_bits(with.row.download(), without.row.download()));
        CHECK(same_bits(with.transposed.download(), without.transposed.download()));
    }
}

TEST_CASE_TEMPLATE("attention_backward_fp8 is attention_backward and quantize" *
                       doctest::test_suite(kNotUnderSanitizers),
                   F8, e4m3, e5m2) {
    size_t number = 0;
    for (const Shape& s : attention_shapes()) {
        CAPTURE(s.T);
        CAPTURE(s.HD);
        Case c(s);
        const auto delta = c.delta.download();
        const auto dqkv = to_floats(c.dqkv.download());
        const auto run = [&](const auto& to, QuantizePass pass) {
            c.backward<F8>(to, pass, false);
            CHECK(same_bits(c.delta.download(), delta));
        };
        check_passes<F8>(passes_of(s, number++), dqkv, s.tokens(), s.qkv_width(), 2000.0f, run);
    }
}

TEST_CASE_TEMPLATE("attention_backward_fp8 sums up the bias gradient" * doctest::test_suite(kNotUnderSanitizers), F8,
                   e4m3, e5m2) {
    size_t number = std::is_same_v<F8, e4m3>;
    for (const Shape& s : attention_shapes()) {
        if (s.documents.empty() && ++number % 2) continue;  // every other one
        CAPTURE(s.T);
        CAPTURE(s.HD);
        Case c(s);
        const size_t channels = static_cast<size_t>(s.qkv_width());
        auto expected = column_sums(to_floats(c.dqkv.download()), s.qkv_width());
        QuantizedArrays<F8> to(s.qkv_elements(), used_state(64.0f));
        c.backward<F8>(to.both(), QuantizePass::train, true);
        const auto dbias = c.dbias.download();
        CHECK(max_relative_error(dbias, expected, 1.0) < 1e-6);
        c.backward<F8>({nullptr, nullptr, to.state.get()}, QuantizePass::write, true);  // the sums alone
        CHECK(same_bits(c.dbias.download(), dbias));
        const auto before = random_normal<float>(channels, 3.0f, 5);
        c.dbias.upload(before);
        for (size_t i = 0; i < channels; i++) expected[i] += static_cast<double>(before[i]);
        c.backward<F8>(to.both(), QuantizePass::train, true, true);
        CHECK(max_relative_error(c.dbias.download(), expected, 3.0) < 1e-6);
    }
}

#if !LLMC_CUDA
// A multiprocessor of cards with 99 KB a block has 100 KB, of which each block takes 1 KB itself: only blocks of 49 KB
// run there two at a time. So a card is played that gives a block no more.
TEST_CASE("attention's backward of head dimension 64 fits a card with 99 KB a block twice, and gives the same bits") {
    size_t& limit = host::settings().shared_limit;
    const size_t usual = limit;
    for (const Shape& s :
         {Shape{2, 8, 1, 64}, Shape{1, 144, 2, 64}, Shape{1, 208, 1, 64}, with_documents({1, 208, 1, 64}, 70)}) {
        CAPTURE(s.T);
        limit = 227 * 1024;
        Case c(s);
        const auto delta = c.delta.download();
        const auto dqkv = c.dqkv.download();
        const auto quantized = [&](QuantizedArrays<e5m2>& to) {
            c.backward<e5m2>(to.both(), QuantizePass::train_counted, true);
            return c.dbias.download();
        };
        QuantizedArrays<e5m2> expected(dqkv.size(), used_state(2000.0f)), to(dqkv.size(), used_state(2000.0f));
        const auto dbias = quantized(expected);
        DeviceArray<bf16> again(dqkv.size());
        limit = 49 * 1024;
        CHECK_NOTHROW(attention_backward<bf16>(again, c.delta, c.dout, c.qkv, c.out, c.low, c.lse, s.B, s.T, s.heads(),
                                               test_stream(), c.documents));
        CHECK(same_bits(again.download(), dqkv));
        CHECK(same_bits(c.delta.download(), delta));
        CHECK_NOTHROW(CHECK(same_bits(quantized(to), dbias)));
        CHECK(same_bits(to.row.download(), expected.row.download()));
        CHECK(same_bits(to.transposed.download(), expected.transposed.download()));
        CHECK(same_bits(to.state.download(), expected.state.download()));
        limit = usual;
    }
}
#endif

TEST_CASE("quantizing attention against FP64") {
    for (const int HD : {32, 64, 128}) {
        const Shape s{2, 72, 2, HD};
        Case c(s);
        const auto exact = reference::attention(s, to_doubles(c.qkv.download()), to_doubles(c.dout.download()), 0, 0);
        QuantizedArrays<e4m3> o(s.elements(), used_state(100.0f)), dqkv(s.qkv_elements(), used_state(500.0f));
        attention_forward_fp8(o.both(), c.out, c.low, c.lse, c.qkv, s.B, s.T, s.heads(), QuantizePass::train,
                              test_stream());
        c.backward<e4m3>(dqkv.both(), QuantizePass::train, false);
        // Half a unit of E4M3's three bits, 0.425 * 2^-4 in the mean square, and what is lost below its normal numbers.
        CHECK(dequantized_error(o.row.download(), 100.0f, exact.out) < 0.03);
        CHECK(dequantized_error(dqkv.row.download(), 500.0f, exact.dqkv) < 0.03);
    }
}

TEST_CASE("quantizing attention counts what is not finite") {
    const Shape s{1, 48, 2, 32};
    Case c(s);
    auto values = c.qkv.download();
    values[static_cast<size_t>(20 * 3 + 2) * s.width() + 5] = to_bf16(std::numeric_limits<float>::infinity());
    c.qkv.upload(values);
    attention_forward<bf16>(c.out, c.low, c.lse, c.qkv, s.B, s.T, s.heads(), test_stream());
    attention_backward<bf16>(c.dqkv, c.delta, c.dout, c.qkv, c.out, c.low, c.lse, s.B, s.T, s.heads(), test_stream());
    const QuantizedReference<e4m3> o(c.output(), 8.0f);
    const QuantizedReference<e5m2> gradients(to_floats(c.dqkv.download()), 8.0f);
    REQUIRE(o.counted.nonfinite > 0);
    REQUIRE(gradients.counted.nonfinite > 0);
    QuantizedArrays<e4m3> to(s.elements(), used_state(8.0f));
    QuantizedArrays<e5m2> dqkv(s.qkv_elements(), used_state(8.0f));
    attention_forward_fp8(to.both(), c.out, c.low, c.lse, c.qkv, s.B, s.T, s.heads(), QuantizePass::train,
                          test_stream());
    c.backward<e5m2>(dqkv.both(), QuantizePass::train, false);
    CHECK(state_matches(to.state.download()[0], o.after(used_state(8.0f), QuantizePass::train), Known::exactly, 0));
    CHECK(state_matches(dqkv.state.download()[0], gradients.after(used_state(8.0f), QuantizePass::train),
                        Known::exactly, 0));
}

TEST_CASE("quantizing attention refuses what it cannot do") {
    DeviceArray<bf16> x(4096);
    DeviceArray<float> f(4096);
    QuantizedArrays<e4m3> to(4096, used_state(1.0f));
    const auto forward = [&](int B, int T, int HD, QuantizePass pass) {
        return refusal([&] {
            attention_forward_fp8(to.both(), x, x, f, x.get(), B, T, {1, 1, HD}, pass, test_stream());
        });
    };
    CHECK(forward(4, 4, 32, QuantizePass::train).find("T=4 is not a multiple of 8") != std::string::npos);
    CHECK(forward(1, 24, 32, QuantizePass::train).find("N=24") != std::string::npos);
    CHECK(forward(1, 16, 48, QuantizePass::train).find("head dimension 48") != std::string::npos);
    CHECK(forward(1, 16, 32, QuantizePass::measure).find("measures nothing") != std::string::npos);
    const auto backward = [&](float* scratch, const bf16* low) {
        return refusal([&] {
            attention_backward_fp8<e4m3>(to.both(), f, scratch, f, x.get(), x.get(), x.get(), low, f.get(), 1, 16,
                                         {1, 1, 32}, false, QuantizePass::train, test_stream());
        });
    };
    CHECK(backward(nullptr, x).find("needs scratch") != std::string::npos);
    CHECK(backward(f, nullptr).find("out_low is missing") != std::string::npos);
}
