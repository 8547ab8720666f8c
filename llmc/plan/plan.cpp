// The plan of one rank: memory, and the time of a step on a named card.
#include "llmc/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/log/progress.h"

namespace llmc {
namespace {

// Causal attention with FlashAttention-3 on H100, TFLOP/s (counting half the square) at T = 1024 and 2048. Between them
// the rate grows about linearly with log T; it is held outside.
struct AttentionRates {
    double forward[2], backward[2];
};
constexpr AttentionRates kHeadDim64 = {{265, 371}, {218, 308}};
constexpr AttentionRates kHeadDim128 = {{423, 560}, {219, 346}};
constexpr double kAttentionPeak = 989.4;  // of the card they were measured on

// Bytes that element-wise kernels move per token and layer, if everything that can be fused into the products is (bias,
// residual, GELU and its gradient, bias gradients). They are in units of C, those of the activation in units of the
// channels that it reads and writes (GELU: 4C each).
constexpr double kNormForward = 4;        // read 2, write 2
constexpr double kNormBackward = 8;       // read dy, x and the residual gradient, write the latter
constexpr double kActivationForward = 2;  // read 2, write 2 each
// In FP8, the producer of a layer's input or output gradient writes it in two layouts of one byte each. GELU and its
// gradient become separate kernels, and backward norms also write the quantized residual gradient. Attention quantizes
// its output as it writes it.
constexpr double kActivationBackward = 4;  // per channel that it read: read x, write 1 + 1 (dy: kActivationForward)
constexpr double kRope = 8;                // queries and keys, forward and backward: read 2, write 2
constexpr double kNormBackwardFp8 = 2;
constexpr double kEmbedding = 26;  // embedding forward, wte and wpe backward (FP32), final norm

// Bytes per parameter in an optimizer step: the gradient is read twice (norm, update), the master is read and written,
// the BF16 copy is written, and a moment is read and written. AdamW has a second moment; in BF16 both are half as
// large. Muon writes and reads its directions twice in BF16.
double optimizer_bytes(const OptimizerConfig& optimizer) {
    if (optimizer.kind == OptimizerKind::adamw && optimizer.adam_moments == MomentFormat::bf16)
        return 4 + 4 + 8 + 2 + 2 * 4;
    const bool one_moment = optimizer.kind == OptimizerKind::lion || optimizer.kind == OptimizerKind::sgd;
    return 4 + 4 + 8 + 2 + 8 + (one_moment ? 0 : 8);
}

// FLOPs of one Newton-Schulz step over all matrices.
double newton_schulz_flops(const ModelConfig& model) {
    double flops = 0;
    for (const TensorRow& row : all_tensors(model)) {
        if (row.block < 0 || !row.is_matrix()) continue;
        const std::vector<int> matrices = row.matrices();
        for (const int rows : matrices.empty() ? std::vector<int>{row.rows} : matrices) {
            const double m = std::min(rows, row.columns), n = std::max(rows, row.columns);
            flops += 4 * m * m * n + 2 * m * m * m;
        }
    }
    return flops;
}

std::string row(const char* name, const std::string& value, const std::string& note = "") {
    std::string text = fmt::format("  {:18} {:>14}   {}", name, value, note);
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

std::string windows(const ModelConfig& m) {
    if (m.short_layers() == 0) return "";
    return fmt::format(", windows of {} tokens in {} of {} layers", m.window, m.short_layers(), m.layers);
}

std::string model_section(const ModelConfig& m, int T) {
    const double attention = m.attention_flops_per_token(T);
    std::string text =
        fmt::format("Model {}: {} layers, {} heads of {}, {} channels, vocabulary {} (padded to {}), context {}\n",
                    m.name, m.layers, m.heads, m.head_dim(), m.channels, m.vocab, m.padded_vocab(), m.context);
    if (m.architecture != &kGpt2)
        text +=
            fmt::format("  {}: {} heads of keys and values, {} channels in the MLP, {} head{}\n", m.architecture->name,
                        m.key_value_heads(), m.mlp_channels(), m.tied ? "tied" : "untied", windows(m));
    text +=
        row("parameters", with_commas(m.parameters()), m.parameters() < 1000000 ? "" : format_count(m.parameters()));
    text += row("FLOPs per token", format_scaled(m.flops_per_token(T)) + "FLOP",
                fmt::format("forward and backward at T={}; {:.0f}% of it attention", T,
                            100 * attention / m.flops_per_token(T)));
    return text;
}

std::string batch_section(const PlannedRun& run) {
    return fmt::format("Step: {}\n  {} x {} x {} x {}\n", plural(run.tokens(), "token"),
                       plural(run.config.batch, "sequence"), plural(run.config.seq, "token"), plural(run.ranks, "rank"),
                       plural(run.config.micro_steps, "micro-step"));
}

std::string memory_section(const PlannedRun& run, const MemoryByKind& m, size_t reserve) {
    const TrainerConfig& config = run.config;
    const OptimizerConfig& optimizer = config.optimizer;
    const size_t total = m.total() + reserve;
    std::string text = run.ranks == 1 ? "Memory\n" : "Memory, each rank\n";
    text += row("weights", format_bytes(m.weights));
    text += row("gradients", format_bytes(m.gradients),
                config.sharding.wire == Wire::fp8 && run.ranks > 1
                    ? "with the residuals of --reduce fp8: 2 bytes per parameter on every rank"
                    : "");
    text += row(
        "optimizer", format_bytes(m.optimizer),
        std::string(word_of(optimizer.kind)) + (optimizer.adam_moments == MomentFormat::bf16 ? ", moments BF16" : ""));
    text += row("activations", format_bytes(m.activations),
                fmt::format("-b {}, -r {}", config.batch, word_of(config.recompute)));
    text += row("workspace", format_bytes(m.workspace));
    const std::string host =
        row("host memory", format_bytes(m.staging), "pinned, a checkpoint's copy; none with --checkpoint-local");
    const size_t copy = run.gpu.shares_memory ? m.staging : 0;
    text += row("libraries", format_bytes(reserve - copy),
                std::string("reserved, an estimate: CUDA, cuBLASLt") + (run.ranks == 1 ? "" : ", NCCL"));
    if (run.gpu.shares_memory) text += host;
    text += row("total", format_bytes(total),
                fmt::format("{} {}, which has {}", total <= run.available() ? "fits into" : "DOES NOT FIT into",
                            run.gpu.match, format_bytes(run.available())));
    return text + (run.gpu.shares_memory ? "  this card has no memory of its own: the total includes the host's copy\n"
                                         : host);
}

std::string speed_line(const PlannedRun& run, Precision precision, double ms) {
    const bool fp8 = precision == Precision::fp8;
    const double tokens_per_s = static_cast<double>(run.tokens()) / ms * 1000;
    const double mfu = model_flops_utilization(run.config.model.flops_per_token(run.config.seq), tokens_per_s,
                                               fp8 ? run.gpu.fp8_tflops : run.gpu.bf16_tflops, run.ranks);
    return fmt::format("  {:18} {} tok/s, MFU {:.1f}% of the {} peak{}\n", word_of(precision),
                       with_commas(std::llround(tokens_per_s)), 100 * mfu, fp8 ? "FP8" : "BF16",
                       precision == run.precision ? "; this run" : "");
}

std::string time_section(const PlannedRun& run, int slices) {
    if (run.precision == Precision::fp32) return "Predicted step time: only known for bf16 and fp8 (this is fp32)\n";
    std::vector<Precision> precisions = {Precision::bf16};
    if (run.gpu.fp8_tflops > 0) precisions.push_back(Precision::fp8);
    std::vector<StepTime> times;
    const CardRates card(run.gpu, run.measured);
    std::string text = fmt::format("Predicted step time on {}: each kernel alone at the best {} for its kind\n{:>18}",
                                   run.gpu.match, run.measured.rates.empty() ? "public rate" : "rate known", "");
    for (const Precision precision : precisions) {
        times.push_back(ideal_step_time(run, precision, slices));
        text += fmt::format(" {:>14}", word_of(precision));
    }
    const auto line = [&](const char* name, const auto& part) {
        text += fmt::format("\n  {:18}", name);
        for (const StepTime& t : times) text += fmt::format(" {:>11.1f} ms", std::invoke(part, t));
    };
    line("matmuls", &StepTime::products);
    line("attention", &StepTime::attention);
    line("element-wise", &StepTime::elementwise);
    line("optimizer", &StepTime::optimizer);
    line("total", &StepTime::total);
    text += "\n";
    for (size_t i = 0; i < times.size(); i++) text += speed_line(run, precisions[i], times[i].total());
    if (run.gpu.fp8_tflops == 0)
        text += fmt::format("  {} has no FP8{}\n", run.gpu.match,
                            run.precision == Precision::fp8 ? ": use --precision bf16 there" : "");
    return text +
           fmt::format(
               "  Matmuls at {:.0f} TFLOP/s in bf16 and {:.0f} in fp8, attention at FlashAttention-3's share of the\n"
               "  peak, the rest at {:.1f} TB/s. Without gaps, overlap or communication, and not measured: real\n"
               "  runs are slower.\n",
               card.bf16_tflops, card.fp8_tflops, card.bandwidth_gbs / 1e3) +
           "  " + wrap(describe_rates(run.measured, run.gpu.fp8_tflops > 0), 2, 110) + "\n";
}

// Bytes per token and layer that depend on the kind of block.
struct ElementWise {
    double activation_forward, activation_backward, rope = 0;
    bool fuses;  // the activation can be fused into products

    explicit ElementWise(const ModelConfig& model) {
        const ModelTable table = model.table();
        std::vector<TensorRow> matrices;
        for (const TensorRow& row : table.block)
            if (row.is_matrix()) matrices.push_back(row);
        const double read = matrices.at(matrices.size() - 2).rows, written = matrices.back().columns;
        activation_forward = kActivationForward * (read + written);
        activation_backward = kActivationBackward * read + kActivationForward * written;
        fuses = table.activation == Activation::gelu;
        if (table.activation != Activation::gelu)
            rope = kRope * (model.heads + model.key_value_heads()) * model.head_dim();
    }
    // The share of the activations that are kernels of their own.
    double share_alone(double fp8_share) const { return fuses ? fp8_share : 1; }
};

}  // namespace

StepTime ideal_step_time(const PlannedRun& run, Precision precision, int slices) {
    const TrainerConfig& config = run.config;
    const ModelConfig& model = config.model;
    const double L = model.layers, C = model.channels, T = config.seq;
    const double tokens = T * config.batch * config.micro_steps;  // of a step, on this rank
    const CardRates card(run.gpu, run.measured);
    const double peak = card.peak_tflops * 1e9, bytes = card.bandwidth_gbs * 1e6;  // per millisecond
    const double flops[2] = {card.bf16_tflops * 1e9, card.fp8_tflops * 1e9};
    const std::vector<std::string> linear = linear_names(model);
    const Fp8Layers fp8(precision == Precision::fp8 ? config.fp8_layers : "none", model.layers, linear);
    const bool fp8_head = fp8.is_fp8(kHeadLayer), again = config.recompute == Recompute::block;
    const double fp8_share = (fp8.count() - fp8_head) / (L * static_cast<double>(linear.size()));

    // Milliseconds per token in forward; backward takes twice as long.
    double products = 0;
    for (const TensorRow& row : all_tensors(model))
        if (row.is_matrix() && row.block >= 0)
            products += 2.0 * row.rows * row.columns / flops[fp8.is_fp8(row.layer())];
    const double head = 2 * C * model.padded_vocab() / flops[fp8_head];
    // Backward has 5 products, not 2.
    const AttentionRates& rates = model.head_dim() >= 128 ? kHeadDim128 : kHeadDim64;
    const double at = std::clamp(std::log2(T / 1024.0), 0.0, 1.0);
    const auto attention = [&](int n, const double(&tflops)[2]) {
        const double rate = (tflops[0] + at * (tflops[1] - tflops[0])) / kAttentionPeak * peak;
        return model.table().attention ? n * L * T * model.attention_channels() / rate : 0;
    };
    const double attention_forward = attention(2, rates.forward), attention_backward = attention(5, rates.backward);
    const ElementWise bytes_of(model);
    const double forward =
        L * (C * 2 * kNormForward + bytes_of.rope / 2 + bytes_of.share_alone(fp8_share) * bytes_of.activation_forward) /
        bytes;
    double backward = L *
                      (C * 2 * (kNormBackward + fp8_share * kNormBackwardFp8) + bytes_of.rope / 2 +
                       bytes_of.share_alone(fp8_share) * bytes_of.activation_backward) /
                      bytes;
    if (again) backward += forward;
    const bool norms = config.recompute == Recompute::norm;
    if (config.recompute == Recompute::gelu || norms) backward += L * bytes_of.activation_forward / bytes;
    if (norms) backward += L * C * 2 * kNormForward / bytes;
    const double rest = (4.0 * model.padded_vocab() + C * kEmbedding) / bytes;  // logits are read and written in place

    StepTime t;
    t.products = tokens * ((3 + again) * products + 3 * head);
    t.attention = tokens * ((1 + again) * attention_forward + attention_backward);
    t.elementwise = tokens * (forward + backward + rest);
    t.optimizer = static_cast<double>(model.padded_parameters()) / slices * optimizer_bytes(config.optimizer) / bytes;
    const int sharing =
        config.sharding.within > 0 ? config.sharding.within : run.ranks;  // Muon's matrices, in every stage
    if (is_muon(config.optimizer.kind)) {
        const size_t steps = newton_schulz_steps(config.optimizer.muon.newton_schulz).steps.size();
        t.optimizer += static_cast<double>(steps) * newton_schulz_flops(model) / flops[0] / sharing;
    }
    t.blocks_forward = tokens * (products + attention_forward + forward);
    t.blocks_backward = t.total() - t.optimizer - tokens * (3 * head + rest) - t.blocks_forward;
    return t;
}

std::string describe_plan(const PlannedRun& run, const MemoryByKind& memory, size_t reserve, int slices) {
    return model_section(run.config.model, run.config.seq) + batch_section(run) + memory_section(run, memory, reserve) +
           time_section(run, slices);
}

std::string describe_length(const RunLength& length, int ranks) {
    std::string text = "Run: " + plural(length.steps, "step") + ", " + counted(length.tokens, "token") + "\n";
    if (length.hours)
        text += row(
            "predicted", format_duration(3600 * *length.hours),
            fmt::format("{:.3g} GPU-hours on {}; real runs are slower", length.gpu_hours(ranks), plural(ranks, "GPU")));
    return text;
}

int nccl_communicators(int ranks, int shard_ranks) {
    if (ranks <= 1) return 0;
    const int group = shard_ranks > 0 ? shard_ranks : ranks;
    return 1 + (group > 1 ? 2 : 0) + (group < ranks ? 1 : 0);
}

void check_memory(const MemoryByKind& needed, size_t reserve, size_t available, const std::string& device_name) {
    const size_t total = needed.total() + reserve;
    if (available == 0 || total <= available) return;
    const size_t fixed = needed.weights + needed.gradients + needed.optimizer + reserve;
    const std::string libraries = reserve > 0 ? ", libraries (estimated) " + format_bytes(reserve) : "";
    const char* advice =
        fixed > available
            ? "the model's own state is too large for any -b: share it among more ranks with -z 3, halve AdamW's with "
              "--adam-moments bf16, or use a smaller model or a larger device"
            : "reduce -b, or recompute more with -r norm or -r block";
    throw Error(
        ExitCode::no_resources,
        "this run needs {} and {} has {}: weights {}, gradients {}, optimizer {}, activations {}, workspace {}{}; {}",
        format_bytes(total), device_name, format_bytes(available), format_bytes(needed.weights),
        format_bytes(needed.gradients), format_bytes(needed.optimizer), format_bytes(needed.activations),
        format_bytes(needed.workspace), libraries, advice);
}

}  // namespace llmc
