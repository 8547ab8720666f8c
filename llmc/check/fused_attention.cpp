// Attention that quantizes, byte by byte against attention followed by quantize().
#include "llmc/check/families.h"
#include "llmc/check/quantized_results.h"
#include "llmc/check/reference_attention.h"
#include "llmc/check/reference_rows.h"
#include "llmc/kernels/attention.h"

namespace llmc::check {

namespace {

using reference::AttentionShape;

constexpr int kBatch = 2;
constexpr int kLength = 152;  // fills no tile, but pieces of 8 tokens; 304 tokens are a multiple of 16
constexpr float kOutputScale = 250.0f, kGradientScale = 2000.0f;

std::vector<Axis> elements(const AttentionShape& s, int width) {
    return {{"b", static_cast<size_t>(s.B)}, {"t", static_cast<size_t>(s.T)}, {"", static_cast<size_t>(width)}};
}

struct Inputs {
    std::vector<bf16> qkv, dout;
    explicit Inputs(const AttentionShape& s)
        : qkv(reference::random_normal<bf16>(s.qkv_elements(), 1.0f, 111)),
          dout(reference::random_normal<bf16>(s.elements(), 0.1f, 112, 0.02f)) {}
};

// What both forwards write beside the codes.
struct Outputs {
    bf16 *out, *low;
    float* lse;
    Outputs(Trial& trial, const AttentionShape& s)
        : out(trial.result<bf16>("out", elements(s, s.width()))),
          low(trial.result<bf16>("out_low", elements(s, s.width()))),
          lse(trial.result<float>("lse", {{"", s.rows()}})) {}
};

std::string check_forward(const AttentionShape& s, stream_t stream) {
    const Inputs inputs(s);
    return each_pass(kWritingPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16* qkv = trial.input(inputs.qkv);
        const int* documents = trial.input_or_none(s.documents);
        const Outputs fused(trial, s);
        const QuantizedResults<e4m3> to(trial, s.tokens(), s.width(), kOutputScale);
        trial.run_twice([&] {
            attention_forward_fp8(to.both(), fused.out, fused.low, fused.lse, qkv, s.B, s.T, s.heads(), pass, stream,
                                  documents);
        });
        Trial plain_trial(stream);
        const Outputs plain(plain_trial, s);
        const QuantizedResults<e4m3> expected(plain_trial, s.tokens(), s.width(), kOutputScale);
        plain_trial.run_twice([&] {
            attention_forward<bf16>(plain.out, plain.low, plain.lse, qkv, s.B, s.T, s.heads(), stream, documents);
            quantize<e4m3>(expected.both(), nullptr, nullptr, plain.out, plain.low, s.tokens(), s.width(), false, pass,
                           stream);
        });
        trial.equal(fused.out, plain_trial.read(plain.out));
        trial.equal(fused.low, plain_trial.read(plain.low));
        trial.equal(fused.lse, plain_trial.read(plain.lse));
        to.compare(expected);
        trial.note(plain_trial.problem());
    });
}

template <class F8>
std::string check_backward(const AttentionShape& s, stream_t stream) {
    const Inputs inputs(s);
    const int width = s.qkv_width();
    const size_t channels = static_cast<size_t>(width);
    return each_pass(kWritingPasses, stream, [&](Trial& trial, QuantizePass pass) {
        const bf16 *qkv = trial.input(inputs.qkv), *dout = trial.input(inputs.dout);
        const int* documents = trial.input_or_none(s.documents);
        Trial plain_trial(stream);
        const Outputs forward(plain_trial, s);
        bf16* dqkv = plain_trial.result<bf16>("dqkv", elements(s, width));
        float* plain_delta = plain_trial.result<float>("delta", {{"", s.rows()}});
        const QuantizedResults<F8> expected(plain_trial, s.tokens(), width, kGradientScale);
        plain_trial.run_twice([&] {
            attention_forward<bf16>(forward.out, forward.low, forward.lse, qkv, s.B, s.T, s.heads(), stream, documents);
            attention_backward<bf16>(dqkv, plain_delta, dout, qkv, forward.out, forward.low, forward.lse, s.B, s.T,
                                     s.heads(), stream, documents);
            quantize<F8>(expected.both(), nullptr, nullptr, dqkv, nullptr, s.tokens(), width, false, pass, stream);
        });
        const QuantizedResults<F8> to(trial, s.tokens(), width, kGradientScale);
        float *delta = trial.result<float>("delta", {{"", s.rows()}}),
              *dbias = trial.result<float>("dbias", {{"", channels}});
        float* scratch = trial.scratch<float>(attention_backward_fp8_scratch(s.B, s.T, s.heads()));
        trial.run_twice([&] {
            attention_backward_fp8<F8>(to.both(), dbias, scratch, delta, dout, qkv, forward.out, forward.low,
                                       forward.lse, s.B, s.T, s.heads(), false, pass, stream, documents);
        });
        trial.equal(delta, plain_trial.read(plain_delta));
        to.compare(expected);
        const auto sums = reference::column_sums(reference::to_floats(plain_trial.read(dqkv)), width);
        trial.within(dbias, Bounded(sums, reference::kColumnSumError, 1.0));
        trial.note(plain_trial.problem());
    });
}

}  // namespace

void add_fused_attention(Items& items, const KernelUse& use) {
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor || use.current_scaling) return;
    for (const AttentionShape& s : example_shapes(use, kBatch, kLength)) {
        const std::string suffix = " " + name_of(s);
        items.push_back({"attention_forward_fp8" + suffix, "kernels", "attention_fp8",
                         [s](stream_t stream) { return check_forward(s, stream); }});
        if (!use.position_embedding) continue;  // the gradient is turned back before it is cast
        if (use.e4m3_gradients)
            items.push_back({"attention_backward_fp8 e4m3" + suffix, "kernels", "attention_backward_fp8",
                             [s](stream_t stream) { return check_backward<e4m3>(s, stream); }});
        else
            items.push_back({"attention_backward_fp8 e5m2" + suffix, "kernels", "attention_backward_fp8",
                             [s](stream_t stream) { return check_backward<e5m2>(s, stream); }});
    }
}

}  // namespace llmc::check
