// Quantizing attention: shared memory and refusals. The specifications (attention.cpp) compare it with the plain
// kernels and quantize(), byte by byte.
// build: per device
#include "llmc/kernels/attention.h"

#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif
#include "test/kernels/attention_run.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using test::attention::Shape;

// Inputs, and the plain kernels' results.
struct Case : test::attention::Run<bf16> {
    DeviceArray<float> dbias, scratch;

    explicit Case(const Shape& s)
        : Run(s, 7, 0.1f, 0.02f),
          dbias(static_cast<size_t>(s.qkv_width())),
          scratch(attention_backward_fp8_scratch(s.B, s.T, s.heads())) {}
    void backward_fp8(const Quantized<e5m2>& to) {
        attention_backward_fp8(to, dbias, scratch, delta, dout.get(), qkv.get(), out.get(), out_low.get(), lse.get(),
                               shape.B, shape.T, shape.heads(), false, QuantizePass::train_counted, tickets,
                               test_stream(), documents_or_none());
    }
};

}  // namespace

#if !LLMC_CUDA
// A multiprocessor of cards with 99 KB a block has 100 KB, of which each block takes 1 KB itself: only blocks of 49 KB
// run there two at a time. So a card is played that gives a block no more.
TEST_CASE("attention's backward of head dimension 64 fits a card with 99 KB a block twice, and gives the same bits") {
    size_t& limit = host::settings().shared_limit;
    const size_t usual = limit;
    for (const Shape& s : {Shape{2, 8, 1, 64}, Shape{1, 144, 2, 64}, Shape{1, 208, 1, 64},
                           Shape{1, 208, 1, 64, 1, 0, reference::documents_of(208, {{70, 70}})}}) {
        CAPTURE(s.T);
        limit = 227 * 1024;
        Case c(s);
        const auto delta = c.delta.download();
        const auto dqkv = c.dqkv.download();
        const auto quantized = [&](QuantizedArrays<e5m2>& to) {
            c.backward_fp8(to.both());
            return c.dbias.download();
        };
        QuantizedArrays<e5m2> expected(dqkv.size(), used_state(2000.0f)), to(dqkv.size(), used_state(2000.0f));
        const auto dbias = quantized(expected);
        limit = 49 * 1024;
        CHECK_NOTHROW(c.backward());
        CHECK(same_bits(c.dqkv.download(), dqkv));
        CHECK(same_bits(c.delta.download(), delta));
        CHECK_NOTHROW(CHECK(same_bits(quantized(to), dbias)));
        CHECK(same_bits(to.row.download(), expected.row.download()));
        CHECK(same_bits(to.transposed.download(), expected.transposed.download()));
        CHECK(same_bits(to.state.download(), expected.state.download()));
        limit = usual;
    }
}
#endif

TEST_CASE("quantizing attention refuses unsupported arguments") {
    DeviceArray<bf16> x(4096);
    DeviceArray<float> f(4096);
    QuantizedArrays<e4m3> to(4096, used_state(1.0f));
    QuantizedArrays<e5m2> gradient(4096, used_state(1.0f));
    const auto forward = [&](int B, int T, int HD, QuantizePass pass) {
        return error_of([&] {
            attention_forward_fp8(to.both(), x, x, f, x.get(), B, T, {1, 1, HD}, pass, nullptr, test_stream());
        });
    };
    CHECK(contains(forward(4, 4, 32, QuantizePass::train), "T=4 is not a multiple of 8"));
    CHECK(contains(forward(1, 24, 32, QuantizePass::train), "N=24"));
    CHECK(contains(forward(1, 16, 48, QuantizePass::train), "head dimension 48"));
    CHECK(contains(forward(1, 16, 32, QuantizePass::measure), "measures nothing"));
    const auto backward = [&](float* scratch, const bf16* low) {
        return error_of([&] {
            attention_backward_fp8(gradient.both(), f, scratch, f, x.get(), x.get(), x.get(), low, f.get(), 1, 16,
                                   {1, 1, 32}, false, QuantizePass::train, nullptr, test_stream());
        });
    };
    CHECK(contains(backward(nullptr, x), "needs scratch"));
    CHECK(contains(backward(f, nullptr), "out_low is missing"));
}
