#include "llmc/run/plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/device/error.h"
#include "llmc/run/progress.h"
#include "llmc/run/text.h"

namespace llmc {
namespace {

// Of the data sheet's peak, what the best public kernels reach on an H200: 750 of 989.4 TFLOP/s in large BF16 products
// (cuBLASLt, power-limited), 1350 of 1978.9 in FP8 ones, 4.2 of 4.8 TB/s in streaming kernels. Other cards are assumed
// to reach the same fractions.
constexpr double kProductFraction = 750.0 / 989.4;
constexpr double kFp8ProductFraction = 1350.0 / 1978.9;
constexpr double kBandwidthFraction = 4200.0 / 4800.0;

// Causal attention with FlashAttention-3 on H100, TFLOP/s (counting half the square) at T = 1024 and 2048.
struct AttentionRates {
    double forward[2], backward[2];
};
constexpr AttentionRates kHeadDim64 = {{265, 371}, {218, 308}};
constexpr AttentionRates kHeadDim128 = {{423, 560}, {219, 346}};
constexpr double kAttentionPeak = 989.4;  // of the card they were measured on

// Bytes that element-wise kernels move per token and layer, in units of C, when all that can be fused into the products
// is (bias, residual, GELU and its gradient, bias gradients).
constexpr double kNormForward = 4;   // read 2, write 2
constexpr double kNormBackward = 8;  // read dy, x and the residual gradient, write that
constexpr double kGeluForward = 16;  // over 4C channels: read 2, write 2 each
constexpr double kElementwise = 2 * kNormForward + 2 * kNormBackward;
// In FP8 a layer's input and its output's gradient leave their producer in two layouts, one byte each: GELU and its
// gradient become kernels of their own, and backward norms also write the quantized residual gradient. Attention's
// outputs are quantized as they leave.
constexpr double kGeluBackward = 24;  // over 4C channels: read dy and x, 2 each, write 1 + 1
constexpr double kNormBackwardFp8 = 8 + 2;
constexpr double kElementwiseFp8 = 2 * kNormForward + 2 * kNormBackwardFp8 + kGeluForward + kGeluBackward;
constexpr double kEmbedding = 26;  // embedding forward, wte and wpe backward (FP32), final norm
// Optimizer bytes a parameter: gradient twice (norm, update), master read and written, two moments read and written,
// BF16 copy.
constexpr double kOptimizer = 4 + 4 + 8 + 16 + 2;

// The rates of one card, per second.
struct Rates {
    double flops, fp8_flops, bytes, attention_forward, attention_backward;
};

Rates rates_of(const GpuSpec& gpu, int head_dim, int T) {
    const AttentionRates& rates = head_dim >= 128 ? kHeadDim128 : kHeadDim64;
    // Between the two lengths with published numbers the rate grows about linearly with log T; it is held outside.
    const double at = std::clamp(std::log2(T / 1024.0), 0.0, 1.0);
    const double peak = gpu.bf16_tflops * 1e12;
    auto attention = [&](const double(&tflops)[2]) {
        return (tflops[0] + at * (tflops[1] - tflops[0])) / kAttentionPeak * peak;
    };
    return {peak * kProductFraction, gpu.fp8_tflops * 1e12 * kFp8ProductFraction,
            gpu.bandwidth_gbs * 1e9 * kBandwidthFraction, attention(rates.forward), attention(rates.backward)};
}

// Seconds of the products of one linear layer over M tokens, K in and N out, with operands of `size` bytes.
struct LinearTime {
    double forward, backward;
};

LinearTime linear_time(const Rates& r, double size, double M, double K, double N, double outputs) {
    const double compute = 2 * M * K * N / (size == 1 ? r.fp8_flops : r.flops);
    const double forward_bytes = size * (M * K + K * N) + 2 * M * N * outputs;  // BF16 out
    const double dgrad_bytes = size * (M * N + K * N) + 2 * M * K;
    const double wgrad_bytes = size * M * (K + N) + 8 * K * N;  // FP32 gradient, read and written
    return {std::max(compute, forward_bytes / r.bytes),
            std::max(compute, dgrad_bytes / r.bytes) + std::max(compute, wgrad_bytes / r.bytes)};
}

// The products of every block over M tokens; those that add to the residual stream also read it.
LinearTime blocks_time(const Rates& r, double M, const Fp8Layers& fp8, const ModelConfig& model) {
    LinearTime sum{0, 0};
    for (const TensorRow& row : all_tensors(model)) {
        if (!row.is_matrix() || row.block < 0) continue;
        const bool is_fp8 = fp8.is_fp8(row.name.substr(0, row.name.rfind('.')));
        const LinearTime t =
            linear_time(r, is_fp8 ? 1 : 2, M, row.columns, row.rows, row.init == Init::residual ? 2 : 1);
        sum.forward += t.forward;
        sum.backward += t.backward;
    }
    return sum;
}

// Seconds per token and layer that --recompute spends in backward on doing parts of forward again.
double recompute_time(const std::string& mode, const Rates& r, double C, double gemm_forward, double attention_forward,
                      double fp8_share) {
    const double gelu = kGeluForward * C / r.bytes;
    if (mode == "gelu") return gelu;
    if (mode == "norm") return gelu + 2 * kNormForward * C / r.bytes;
    if (mode == "block")  // a BF16 product writes its GELU itself
        return gemm_forward + attention_forward + 2 * kNormForward * C / r.bytes + fp8_share * gelu;
    return 0;
}

std::string row(const char* name, const std::string& value, const std::string& note = "") {
    std::string text = strprintf("  %-18s %14s   %s", name, value.c_str(), note.c_str());
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

std::string model_section(const ModelConfig& m, int T) {
    const double attention = m.attention_flops_per_token(T);
    std::string text =
        strprintf("Model %s: %d layers, %d heads of %d, %d channels, vocabulary %d (padded to %d), context %d\n",
                  m.name.c_str(), m.layers, m.heads, m.head_dim(), m.channels, m.vocab, m.padded_vocab(), m.context);
    text += row("parameters", with_commas(m.parameters()),
                strprintf("%.1f million", 1e-6 * static_cast<double>(m.parameters())));
    text += row(
        "work a token", format_scaled(m.flops_per_token(T)) + "FLOP",
        strprintf("forward and backward at T=%d; %.0f%% of it attention", T, 100 * attention / m.flops_per_token(T)));
    return text;
}

std::string batch_section(const PlanInputs& in) {
    const int64_t count = micro_steps(in);
    std::string text = strprintf("Step: %s tokens\n", with_commas(tokens_a_step(in)).c_str());
    text += strprintf("  %d sequences x %d tokens x %d %s x %lld %s\n", in.batch, in.seq, in.ranks,
                      in.ranks == 1 ? "rank" : "ranks", static_cast<long long>(count),
                      count == 1 ? "micro-step" : "micro-steps");
    return text;
}

std::string memory_section(const PlanInputs& in) {
    const MemoryByKind& m = in.memory;
    std::string text = in.ranks == 1 ? "Memory\n" : "Memory, each rank\n";
    text += row("weights", format_bytes(m.weights));
    text += row("gradients", format_bytes(m.gradients));
    text += row("optimizer", format_bytes(m.optimizer));
    text += row("activations", format_bytes(m.activations), "-b " + std::to_string(in.batch) + ", -r " + in.recompute);
    text += row("workspace", format_bytes(m.workspace));
    if (in.reserve > 0)
        text += row(
            "libraries", format_bytes(in.reserve),
            in.ranks == 1 ? "reserved, an estimate: CUDA, cuBLASLt" : "reserved, an estimate: CUDA, cuBLASLt, NCCL");
    const size_t total = m.total() + in.reserve;
    std::string verdict;
    if (const size_t available = available_memory(in); available > 0) {
        verdict = strprintf("%s %s, which has %s", total <= available ? "fits into" : "DOES NOT FIT into",
                            card_name(in).c_str(), format_bytes(available).c_str());
    }
    return text + row("total", format_bytes(total), verdict);
}

// One row of the table of times: a part's milliseconds in each precision.
std::string time_row(const char* name, const std::vector<StepTime>& times, double (*part)(const StepTime&),
                     const std::string& note = "") {
    std::string text = strprintf("  %-18s", name);
    for (const StepTime& t : times) text += strprintf(" %11.1f ms", part(t));
    text += "   " + note;
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

std::string speed_line(const ModelConfig& model, const PlanInputs& in, const std::string& precision, double ms,
                       double bf16_ms) {
    const bool fp8 = precision == "fp8";
    const double tokens_per_s = static_cast<double>(tokens_a_step(in)) / ms * 1000;
    const double peak = fp8 ? in.gpu->fp8_tflops : in.gpu->bf16_tflops;
    const double mfu = model_flops_utilization(model.flops_per_token(in.seq), tokens_per_s, peak, in.ranks);
    std::string text = strprintf("  %-18s %s tok/s, MFU %.1f%% of the %s peak", precision.c_str(),
                                 with_commas(std::llround(tokens_per_s)).c_str(), 100 * mfu, fp8 ? "FP8" : "BF16");
    if (fp8) text += strprintf("; %.2f times bf16", bf16_ms / ms);
    return text + (precision == in.precision ? "; this run\n" : "\n");
}

std::string time_section(const ModelConfig& model, const PlanInputs& in) {
    if (!in.gpu) return "Ideal step time: not known for this device; name a card with --gpu\n";
    if (in.precision == "fp32") return "Ideal step time: only known for bf16 and fp8 (this is fp32)\n";
    std::vector<std::string> precisions = {"bf16"};
    if (in.gpu->fp8_tflops > 0) precisions.push_back("fp8");
    std::vector<StepTime> times;
    for (const std::string& precision : precisions) times.push_back(ideal_step_time(model, in, *in.gpu, precision));
    std::string rates = strprintf("%.0f", in.gpu->bf16_tflops * kProductFraction);
    if (times.size() > 1) rates += strprintf(" and %.0f", in.gpu->fp8_tflops * kFp8ProductFraction);
    std::string text = strprintf("Ideal step time on %s\n%35s", card_name(in).c_str(), "bf16");
    text += times.size() > 1 ? strprintf("%15s\n", "fp8") : "\n";
    text += time_row(
        "block products", times, [](const StepTime& t) { return t.block_gemms; }, rates + " TFLOP/s");
    text += time_row("lm_head products", times, [](const StepTime& t) { return t.lm_head; });
    text += time_row(
        "attention", times, [](const StepTime& t) { return t.attention; }, "at FlashAttention-3's share of the peak");
    text += time_row(
        "element-wise", times, [](const StepTime& t) { return t.elementwise; },
        strprintf("%.1f TB/s; in bf16 GELU is inside the products", in.gpu->bandwidth_gbs * kBandwidthFraction / 1e3));
    if (times[0].recompute > 0)
        text += time_row(
            "recomputation", times, [](const StepTime& t) { return t.recompute; }, "-r " + in.recompute);
    text += time_row("cross-entropy", times, [](const StepTime& t) { return t.cross_entropy; });
    text += time_row("embedding", times, [](const StepTime& t) { return t.embedding; });
    text += time_row("optimizer", times, [](const StepTime& t) { return t.optimizer; });
    text += time_row("total", times, [](const StepTime& t) { return t.total(); });
    for (size_t i = 0; i < times.size(); i++)
        text += speed_line(model, in, precisions[i], times[i].total(), times[0].total());
    if (times.size() == 1)
        text += strprintf("  %s has no FP8%s\n", card_name(in).c_str(),
                          in.precision == "fp8" ? ": use --precision bf16 there" : "");
    text +=
        "  Each kernel alone at the best public rate for its kind, without gaps, overlap or communication:\n"
        "  real runs are slower.\n";
    return text;
}

}  // namespace

int64_t tokens_a_step(const PlanInputs& in) {
    return in.total_batch > 0 ? in.total_batch : int64_t{in.batch} * in.seq * in.ranks;
}

int64_t micro_steps(const PlanInputs& in) { return tokens_a_step(in) / (int64_t{in.batch} * in.seq * in.ranks); }

size_t available_memory(const PlanInputs& in) {
    if (in.available > 0 || !in.gpu) return in.available;
    return static_cast<size_t>(in.gpu->memory_gib * (size_t{1} << 30));
}

std::string card_name(const PlanInputs& in) {
    if (!in.device_name.empty()) return in.device_name;
    return in.gpu ? in.gpu->match : "the device";
}

StepTime ideal_step_time(const ModelConfig& model, const PlanInputs& in, const GpuSpec& gpu,
                         const std::string& precision) {
    const double L = model.layers, C = model.channels, Vp = model.padded_vocab(), T = in.seq;
    const double M = double(in.batch) * in.seq;                               // tokens of a micro-step
    const double tokens = static_cast<double>(tokens_a_step(in)) / in.ranks;  // of a step, on this rank
    const double times = tokens / M;                                          // micro-steps
    const Rates r = rates_of(gpu, model.head_dim(), in.seq);
    const std::vector<std::string> linear = linear_names(model);
    const Fp8Layers fp8(precision == "fp8" ? in.fp8_layers : "none", model.layers, linear);
    const bool fp8_head = fp8.is_fp8(kHeadLayer);
    const double fp8_share = (fp8.count() - (fp8_head ? 1 : 0)) / (L * static_cast<double>(linear.size()));

    const LinearTime blocks = blocks_time(r, M, fp8, model);
    const LinearTime head = linear_time(r, fp8_head ? 1 : 2, M, C, Vp, 1);
    // Per token and layer; backward has 5 products, not 2.
    const double attention = model.table(model).attention ? T * C : 0;
    const double attention_forward = 2 * attention / r.attention_forward;
    const double attention_backward = 5 * attention / r.attention_backward;

    StepTime t;
    t.block_gemms = 1e3 * (blocks.forward + blocks.backward) * times;
    t.lm_head = 1e3 * (head.forward + head.backward) * times;
    t.attention = 1e3 * tokens * L * (attention_forward + attention_backward);
    t.elementwise = 1e3 * tokens * L * C * (kElementwise + fp8_share * (kElementwiseFp8 - kElementwise)) / r.bytes;
    const double elementwise_forward = 1e3 * tokens * L * C * (2 * kNormForward + fp8_share * kGeluForward) / r.bytes;
    t.recompute =
        1e3 * tokens * L * recompute_time(in.recompute, r, C, blocks.forward / L / M, attention_forward, fp8_share);
    t.cross_entropy = 1e3 * tokens * 4 * Vp / r.bytes;  // logits read and written in place, 2 bytes each
    t.embedding = 1e3 * tokens * C * kEmbedding / r.bytes;
    const int slices = in.zero == 0 ? 1 : in.shard_ranks > 0 ? in.shard_ranks : in.ranks;
    t.optimizer = 1e3 * static_cast<double>(model.padded_parameters()) / slices * kOptimizer / r.bytes;
    t.blocks_forward = 1e3 * (blocks.forward * times + tokens * L * attention_forward) + elementwise_forward;
    t.blocks_backward = t.block_gemms + t.attention + t.elementwise + t.recompute - t.blocks_forward;
    return t;
}

std::string describe_plan(const ModelConfig& model, const PlanInputs& inputs) {
    return model_section(model, inputs.seq) + batch_section(inputs) + memory_section(inputs) +
           time_section(model, inputs);
}

int nccl_communicators(int ranks, int shard_ranks) {
    if (ranks <= 1) return 0;
    const int group = shard_ranks > 0 ? shard_ranks : ranks;
    return 1 + (group > 1 ? 2 : 0) + (group < ranks ? 1 : 0);
}

size_t memory_outside(size_t free_before, size_t free_now, size_t arenas) {
    const size_t gone = free_before > free_now ? free_before - free_now : 0;
    return gone > arenas ? gone - arenas : 0;
}

void check_memory(const MemoryByKind& needed, size_t reserve, size_t available, const std::string& device_name) {
    const size_t total = needed.total() + reserve;
    if (available == 0 || total <= available) return;
    const size_t fixed = needed.weights + needed.gradients + needed.optimizer + reserve;
    const std::string libraries = reserve > 0 ? ", libraries (estimated) " + format_bytes(reserve) : "";
    const char* advice =
        fixed > available
            ? "the model's own state is too large whatever the batch: use a smaller model or a larger device"
            : "reduce -b, or recompute more with -r norm or -r block";
    throw Error(ExitCode::no_resources,
                strprintf("this run needs %s and %s has %s: weights %s, gradients %s, optimizer %s, activations %s, "
                          "workspace %s%s; %s",
                          format_bytes(total).c_str(), device_name.c_str(), format_bytes(available).c_str(),
                          format_bytes(needed.weights).c_str(), format_bytes(needed.gradients).c_str(),
                          format_bytes(needed.optimizer).c_str(), format_bytes(needed.activations).c_str(),
                          format_bytes(needed.workspace).c_str(), libraries.c_str(), advice));
}

}  // namespace llmc
