// Predicted times of matmuls, attention and element-wise kernels, and the step that they add up to.
#include "llmc/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "llmc/kernels/hopper/attention.h"
#include "llmc/kernels/hopper/matmul_gelu.h"
#include "llmc/model/transformer.h"

namespace llmc {
namespace {

// ---- matmuls --------------------------------------------------------------------------------------------------------

// Measured with cuBLASLt 13.1 on an H100 80GB HBM3 (driver 580.159.04, 2026-11-27): 659 products of GPT layers one by
// one, and the products of runs.

// The main loop's rate with tiles of 192 x 192, over that of a large product with its result (CardRates): 825 of 790
// TFLOP/s in BF16, 1580 of 1450 in FP8. Products with a scale per block also multiply with the scales, and those whose
// operands both have a scale per 128 elements of a row, the weights' gradients, do so more often.
constexpr double kMainLoop[] = {1.045, 1.09, 1.09, 1.0, 0.805};
// A tile reads 1 / rows + 1 / columns elements of its operands per multiplication. The main loop takes longer by
// kOperands times the excess over a tile of 192 x 192: by 6 % with 128 x 160, by 9 % with 128 x 128.
constexpr double kOperands = 18;
constexpr int kTiles[][2] = {{320, 128}, {192, 192}, {256, 128}, {128, 256}, {128, 192},
                             {128, 160}, {144, 128}, {112, 128}, {128, 128}, {128, 64}};
// Split accumulation holds every sum twice, so its largest tile has half the results. With blocks it is smaller still.
constexpr int kLargestTile[] = {320 * 128, 320 * 128, 128 * 160, 128 * 128, 128 * 128};
constexpr int kSplits[] = {1, 2, 3, 4, 6, 8};   // parts of the sum that blocks share, with partial results
constexpr double kPartials = double{32 << 20};  // bytes of partial results that fit into cuBLASLt's workspace
constexpr double kPartialRate = 1.6e12 / 132;   // bytes per second and multiprocessor
constexpr double kResultRate = 1.5;             // over a copy's: other tiles' main loops hide part of the writes
// Products with GELU (kernels/hopper/matmul_gelu.h): the main loop's rate in BF16 and with fast and split sums, as
// above, and bytes of h and of the output per element, which pass at the rate of element-wise kernels while the next
// tile is multiplied. Predicted: half of their time is hidden. Without that, and with split sums at 0.7, it was 514 and
// 396 us forward for 65536 x 3072 x 768 and for 16384 x 6400 x 1600, 613 and 478 us backward, as measured before
// epilogues had a warpgroup of their own. BF16: assumed to fall behind cuBLASLt's main loop as much as fast sums do.
constexpr double kGeluMainLoop[] = {0.94, 0.98, 0.8}, kGeluBytes = 4, kGeluVisible = 0.5;

// ---- attention ------------------------------------------------------------------------------------------------------

// The number of the portable kernels' products (recomputed ones included), and their clocks of exponentials and other
// instructions, per scheduler and 1024 pairs of query and key: a constant, and a part per channel. From the SASS of
// nvcc 13.0.
struct PortableAttention {
    double products, clocks, clocks_per_channel;
};
constexpr PortableAttention kPortableForward = {2.1, 422, 150.0 / 64}, kPortableBackward = {7, 812, 500.0 / 64};
// At head dimension 256 the backward pass computes scores and dP twice as often (attention_backward.cu).
constexpr PortableAttention kPortableBackward256 = {11, 2 * 812, 500.0 / 64 * 11 / 7};
constexpr PortableAttention kPortableLogits = {1.05, 124, 52.0 / 64};  // attention_max_logits()
// Share of that rate, as kTensorKernelShare, above head dimension 64, where a warp owns fewer rows. Measured on the
// card named below for 2 x 4096 tokens and 32 heads of 128: 1283 us a layer forward and 4117 backward, in a run of two
// layers.
constexpr double kPortableShareWide = 0.58;
constexpr double kClock = 1.75e9, kSchedulers = 4;  // under load, of an H100; other cards' clocks are 1.4 to 2.6 GHz
constexpr double kPortableTile = 64;                // keys; half of the tile at the diagonal is computed in vain
// Delta, bytes per token and channel. The portable kernels read out, out_low and dout first. Hopper's kernel for dQ
// reads out and out_low while it multiplies; predicted on 2026-11-28 from the instructions of the warp that adds them
// up (15 to 25 us for 64 x 1024 tokens of 124M).
constexpr double kDeltaBytes = 6, kHopperDeltaBytes = 1;
// TFLOP/s of the Hopper kernels for long sequences, at head dimensions 64 and 128, counted as 2 products forward and 5
// backward. Fitted to an H100 80GB HBM3 (driver 580.159.04, 2026-11-27). At 64, 64 x 1024 tokens and 12 heads, in BF16:
// 424 us a layer forward, 679 for dK and dV, 389 for dQ. At 128, 2 x 4096 tokens and 32 heads, in an FP8 run: 558 us
// (617 with codes), 861 and 609. The forward kernel at 64 has two teams and other row sums since 2026-11-28: predicted,
// the 304 that was measured before, times 532 / 490 (warp instructions).
constexpr double kHopperForward[] = {304 * 532 / 490., 477}, kHopperBackward[] = {302, 452}, kHopperPeak = 989.4;
// In FP8 runs the clock is higher, and the same kernels, without codes, take this share of the time: 387, 621, 353 us.
constexpr double kFp8Attention = 0.91;
// Keys computed in vain for a query are half of this, where a block's start and end count too. A block or a team has
// 128 rows of either side.
constexpr double kHopperTile = 256;
// Quantizing makes attention's kernels longer, as if element-wise kernels moved these bytes per element of the output
// forward, and of dqkv backward: 74 and 84 us a layer for 64 x 1024 tokens of 124M (461, 626 and 432 us with codes).
constexpr double kQuantizeOutput = 4, kQuantizeGradient = 1.5;

// ---- element-wise kernels -------------------------------------------------------------------------------------------

// Bytes per token and layer, in units of C; those of the activation in units of the channels that it reads and writes.
// FP8 codes in two layouts are as large as a BF16 value.
constexpr double kNormForward = 4;   // reads the stream, writes its norm; the matmul before it has added to the stream
constexpr double kNormBackward = 8;  // reads dy, x and the residual gradient, writes the latter
constexpr double kNormBackwardFp8 = 2;   // and writes it quantized
constexpr double kCastInput = 3;         // reads an input of a linear layer, writes its codes once
constexpr double kCastOutput = 5;        // the same of attention's output, which comes in two parts
constexpr double kActivation = 2;        // reads or writes a channel
constexpr double kBiasGradient = 2;      // reads a channel. In FP8 the kernel that quantizes sums it up
constexpr double kRope = 8;              // queries and keys, forward and backward: reads 2, writes 2
constexpr double kLogits = 4;            // per id of the vocabulary: read and written in place
constexpr double kLogitsFp8 = 5;         // read, written as row codes, which are transposed
constexpr double kLogitsMeasured = 2;    // and read once more, if the scale follows from their own gradient
constexpr double kEmbedding = 22;        // embedding forward, wte and wpe backward (FP32), final norm
constexpr double kKernelsPerLayer = 20;  // launches besides the matmuls, in a micro-step

// Bytes per parameter in an optimizer step: the gradient is read twice (norm, update), the master is read and written,
// the BF16 copy is written unless the master is one, and a moment is read and written. AdamW has a second moment. Muon
// writes and reads its directions twice in BF16. An average of the weights reads the master, and is read and written.
double optimizer_bytes(const OptimizerConfig& optimizer, StateFormat gradients) {
    const double masters = optimizer.masters == StateFormat::bf16 ? 2 * 2 : 2 * 4 + 2;
    double moments = 2 * 4;
    if (optimizer.kind == OptimizerKind::adamw)
        moments = 2.0 * static_cast<double>(bytes_of(optimizer.adam_moments) + bytes_of(optimizer.second_moments()));
    if (is_muon(optimizer.kind)) moments = 2 * 2 * 4;
    const double average = optimizer.averages() ? static_cast<double>(bytes_of(optimizer.masters)) + 2 * 4 : 0;
    return 2.0 * static_cast<double>(bytes_of(gradients)) + masters + moments + average;
}
// Bytes of master and moments per parameter. Muon's matrices have one moment, and the rest counts as they do. For an
// average of the weights, the master passes through the device a second time.
double state_bytes(const OptimizerConfig& optimizer) {
    const bool two_moments = optimizer.kind == OptimizerKind::adamw;
    const double average = optimizer.averages() ? 4 + 4 : 0;
    return 4 + (two_moments ? 2.0 * static_cast<double>(bytes_of(optimizer.adam_moments)) : 4) + average;
}
// Quantizing a weight reads the master and writes both layouts. That is 6 bytes, but the kernel has 0.6 to 0.7 of the
// other element-wise kernels' rate: 0.64 ms for six layers of 1558M, 1.28 for two of Llama 3 8B; 0.53 at 124M.
constexpr double kQuantizeWeight = 10;
constexpr double kQuantizeWeightKernels = 6;  // per layer

std::vector<TensorRow> block_matrices(const ModelConfig& model) {
    std::vector<TensorRow> rows = all_tensors(model);
    std::erase_if(rows, [](const TensorRow& row) { return row.block < 0 || !row.is_matrix(); });
    return rows;
}

// FLOPs of one Newton-Schulz step over these matrices.
double newton_schulz_flops(const std::vector<TensorRow>& weights) {
    double flops = 0;
    for (const TensorRow& row : weights) {
        const std::vector<int> matrices = row.matrices();
        for (const int rows : matrices.empty() ? std::vector<int>{row.rows} : matrices) {
            const double m = std::min(rows, row.columns), n = std::max(rows, row.columns);
            flops += 4 * m * m * n + 2 * m * m * m;
        }
    }
    return flops;
}

// Bytes per token and layer that depend on the kind of block.
struct ElementWise {
    double activated;  // channels that the activation writes
    double activation_forward, activation_backward, bias_gradients = 0, rope = 0;

    explicit ElementWise(const ModelConfig& model) {
        const ModelTable table = model.table();
        std::vector<TensorRow> matrices;
        for (const TensorRow& row : table.block)
            if (row.is_matrix()) matrices.push_back(row);
        const double read = matrices.at(matrices.size() - 2).rows;
        activated = matrices.back().columns;
        activation_forward = kActivation * (read + activated);
        activation_backward = kActivation * (2 * read + activated);
        // The activation's backward pass sums up the gradient of the bias before it.
        for (size_t i = 0; i < matrices.size(); i++)
            for (const TensorRow& row : table.block)
                if (row.name == matrices[i].layer() + ".bias" && i + 2 != matrices.size())
                    bias_gradients += kBiasGradient * row.rows;
        if (table.activation != Activation::gelu)
            rope = kRope * (model.heads + model.key_value_heads()) * model.head_dim();
    }
};

// The time of a part of a step, forward and backward.
struct Passes {
    double forward = 0, backward = 0;
};

}  // namespace

double TimeModel::matmul(const Matmul& p) const {
    const double large = (p.kind == Kind::bf16 ? card_.bf16_tflops : card_.fp8_tflops) * 1e12;
    const int kind = static_cast<int>(p.kind);
    const double rate = kMainLoop[kind] * large, memory = card_.bandwidth_gbs * 1e9;
    const double multiprocessors = gpu_.multiprocessors;
    const double operand = p.kind == Kind::bf16 ? 2 : 1, result = p.M * p.N * (p.result_bytes + p.read_bytes) / memory;
    const double moved = operand * (p.M + p.N) * p.K / memory + result, written = result / kResultRate;
    double best = INFINITY;
    for (const auto& [rows, columns] : kTiles) {
        if (rows * columns > kLargestTile[kind]) continue;
        const double tiles = std::ceil(p.M / rows) * std::ceil(p.N / columns);
        const double more = kOperands * (1.0 / rows + 1.0 / columns - 2.0 / 192);
        const double main_loop = 2 * tiles * rows * columns * p.K * (1 + more) / rate;
        for (const int splits : kSplits) {
            const double partials = splits == 1 ? 0 : splits * p.M * p.N * 4;
            if (partials > kPartials) continue;
            const double waves = std::ceil(tiles * splits / multiprocessors);
            const double busy = tiles * splits / (waves * multiprocessors);  // of the multiprocessors' time
            const double seconds = splits == 1 ? (main_loop + written) / busy
                                               : (main_loop + 2 * partials / (kPartialRate * multiprocessors)) / busy +
                                                     written + 1e-3 * kLaunch;
            best = std::min(best, seconds);
        }
    }
    return 1e3 * std::max(best, moved) + kLaunch;
}

double TimeModel::matmul_gelu(double M, double N, double K, Kind kind) const {
    const double large = kind == Kind::bf16 ? card_.bf16_tflops : card_.fp8_tflops;
    const double rate = kGeluMainLoop[static_cast<int>(kind)] * large * 1e9;
    return 2 * M * N * K / rate + kGeluVisible * element_wise(M * N * kGeluBytes) + kLaunch;
}

// Only wgmma reaches the full rate on Hopper (0.67: a published fit), and the instructions of Blackwell's data-center
// cards theirs (0.34: assumed).
double TimeModel::mma_sync_share() const {
    const int card = gpu_.capability;
    return card < 90 || card >= 120 ? 1 : card < 100 ? 0.67 : 0.34;
}

double TimeModel::attention_at(double tflops, int products, double tokens, double T, double channels) {
    return products * tokens * T * channels / (tflops * 1e9);
}

TimeModel::Attention TimeModel::attention(double layers, int B, int T, const AttentionHeads& heads) const {
    const double peak = card_.peak_tflops * 1e12, tokens = layers * B * T, channels = heads.width();
    const double computed = tokens * heads.NH / 2 * (T + kPortableTile);  // pairs of query and key
    const auto portable = [&](const PortableAttention& k) {
        const double tensor = k.products * 2 * heads.HD / (peak * mma_sync_share());
        const double rest =
            (k.clocks + k.clocks_per_channel * heads.HD) / 1024 / (kClock * kSchedulers * gpu_.multiprocessors);
        return 1e3 * computed * (tensor + rest) / (heads.HD > 64 ? kPortableShareWide : kTensorKernelShare);
    };
    const auto on_hopper = [&](double for_long_sequences, int products) {
        const double rate = for_long_sequences * T / (T + kHopperTile);
        return attention_at(rate * card_.peak_tflops / kHopperPeak, products, tokens, T, channels);
    };
    const auto delta = [&](double bytes) { return element_wise(tokens * channels * bytes); };
    Attention time = {portable(kPortableForward),
                      portable(heads.HD == 256 ? kPortableBackward256 : kPortableBackward) + delta(kDeltaBytes),
                      portable(kPortableLogits)};
    if (is_hopper() && hopper::can_run(heads)) {
        time.forward = on_hopper(kHopperForward[heads.HD == 128], 2);
        time.backward = on_hopper(kHopperBackward[heads.HD == 128], 5) + delta(kHopperDeltaBytes);
    }
    return time;
}

namespace {

// The parts of a step on one rank, in milliseconds.
class StepModel {
public:
    StepModel(const PlannedRun& run, Precision precision, int slices)
        : run_(run),
          config_(run.config),
          model_(run.config.model),
          slices_(slices),
          time_(run.gpu, run.measured),
          fp8_(fp8_layers(precision == Precision::fp8 ? run.config.fp8_layers : Fp8LayerTerms{}, model_.layers,
                          linear_names(model_), scaling_of(run.config.fp8.recipe))),
          matrices_(block_matrices(model_)),
          L_(model_.layers),
          C_(model_.channels),
          N_(static_cast<double>(config_.seq) * config_.batch),
          kernels_(precision == Precision::fp32 ? Kernels::portable : config_.kernels) {
        fp8_share_ =
            (fp8_.names.size() - fp8_.contains(kHeadLayer)) / (L_ * static_cast<double>(linear_names(model_).size()));
        forward_share_ = fp8_.forward ? fp8_share_ : 0;
        if (kernels_ == Kernels::portable || !time_.is_hopper() || model_.table().activation != Activation::gelu ||
            !hopper::can_multiply_with_gelu(config_.batch * config_.seq, model_.channels, model_.mlp_channels()))
            return;
        // As in GeluProducts.
        gelu_forward_[Kind::bf16] = gelu_backward_[Kind::bf16] = 1 - fp8_share_;
        if (config_.fp8.recipe != Fp8Recipe::delayed || config_.fp8.grad != Fp8Grad::e5m2) return;
        gelu_backward_[Kind::fp8_split] = fp8_share_;
        gelu_forward_[Kind::bf16] = 1 - forward_share_;
        if (config_.fast_accumulation != FastAccumulation::none) gelu_forward_[Kind::fp8_fast] = forward_share_;
    }

    // The matmuls of the blocks, without those that recomputation repeats.
    Passes matmuls() const {
        Passes all;
        const double added = (config_.micro_steps - 1) / static_cast<double>(config_.micro_steps);
        std::map<std::string, Passes> known;  // blocks are alike
        for (const TensorRow& row : matrices_) {
            const bool in_fp8 = fp8_.contains(row.layer());
            const bool adds = row.layer().ends_with("_proj");  // to the residual stream
            const auto [found, is_new] =
                known.try_emplace(fmt::format("{}x{} {} {}", row.rows, row.columns, in_fp8, adds));
            if (is_new)
                found->second =
                    linear(N_, row.rows, row.columns, in_fp8 && fp8_.forward, in_fp8, added, adds ? sizeof(bf16) : 0);
            all.forward += found->second.forward;
            all.backward += found->second.backward;
        }
        const Passes with_gelu = matmuls_with_gelu();
        const auto without_gelu = [&](const Shares& shares, Product product) {
            return of_layers(shares, [&](Kind kind) {
                return time_.matmul(
                    {N_, static_cast<double>(model_.mlp_channels()), C_, kind_of(product, kind != Kind::bf16)});
            });
        };
        all.forward += with_gelu.forward - without_gelu(gelu_forward_, Product::forward);
        all.backward += with_gelu.backward - without_gelu(gelu_backward_, Product::dgrad);
        return all;
    }

    // Those of them with GELU in one kernel.
    Passes matmuls_with_gelu() const {
        const auto time = [&](Kind kind) { return time_.matmul_gelu(N_, model_.mlp_channels(), C_, kind); };
        return {of_layers(gelu_forward_, time), of_layers(gelu_backward_, time)};
    }

    // The matmuls of the output head, which takes one chunk of rows after the other.
    double head() const {
        const int vocab = model_.padded_vocab();
        const double rows = logits_chunk(static_cast<int>(N_), vocab, sizeof(bf16), config_.logits_bytes);
        const bool in_fp8 = fp8_.contains(kHeadLayer);  // the gradients
        const Passes products = linear(rows, vocab, C_, false, in_fp8, 1);
        return N_ / rows * (products.forward + products.backward);
    }

    // Attention of all layers, with the quantization of its output and of dqkv.
    TimeModel::Attention attention() const {
        if (!model_.table().attention) return {0, 0, 0};
        const AttentionHeads heads = {
            .NH = model_.heads, .NKV = model_.key_value_heads(), .HD = model_.head_dim(), .kernels = kernels_};
        const double whole_layers =
            model_.attention_flops_per_token(config_.seq) / (6 * heads.width() * static_cast<double>(config_.seq));
        TimeModel::Attention attention = time_.attention(whole_layers, config_.batch, config_.seq, heads);
        const double share = 1 - fp8_share_ * (1 - kFp8Attention);  // time, over that in a BF16 run
        attention.forward =
            share * attention.forward + forward_share_ * time_.element_wise(L_ * N_ * heads.width() * kQuantizeOutput);
        attention.backward = share * attention.backward +
                             fp8_share_ * time_.element_wise(L_ * N_ * heads.qkv_width() * kQuantizeGradient);
        return attention;
    }

    // The norms, RoPE and activations of the blocks. Backward repeats what --recompute does not keep.
    Passes element_wise() const {
        const ElementWise bytes(model_);
        const bool block_again = config_.recompute == Recompute::block;
        // Inputs whose producers write values are cast by kernels of their own; attention's with its rounding errors.
        const double output = model_.table().attention ? model_.attention_heads(0).width() : 0;
        const double cast =
            (fp8_share_ - forward_share_) * ((2 * C_ + bytes.activated) * kCastInput + output * kCastOutput);
        double forward =
            2 * C_ * kNormForward + bytes.rope / 2 + (1 - sum_of(gelu_forward_)) * bytes.activation_forward;
        double again = block_again ? forward : 0;
        forward += cast;  // once, in whichever pass keeps the codes
        // Each pass writes one layout of a recomputed input's FP8 codes, but both if a recomputed matmul reads them.
        if (config_.recompute >= Recompute::gelu) {
            forward -= forward_share_ * bytes.activated;
            again += (block_again ? 0 : bytes.activation_forward) - forward_share_ * bytes.activated;
        }
        if (config_.recompute >= Recompute::norm) {
            forward -= forward_share_ * 2 * C_;
            if (!block_again) again += 2 * C_ * (kNormForward - forward_share_);
        }
        const double backward = 2 * C_ * (kNormBackward + fp8_share_ * kNormBackwardFp8) + bytes.rope / 2 +
                                (1 - sum_of(gelu_backward_)) * bytes.activation_backward +
                                (1 - fp8_share_) * bytes.bias_gradients + again;
        const double launches = time_.launches(L_ * kKernelsPerLayer / 2);
        Passes all = {time_.element_wise(L_ * N_ * forward) + launches,
                      time_.element_wise(L_ * N_ * backward) + (1 + block_again) * launches};
        if (config_.sharding.gradients != StateFormat::fp32)  // reads a gradient, and reads and writes its sum
            all.backward += time_.element_wise(parameters() * (4 + 2 * 2) / slices_);
        return all;
    }

    // The element-wise kernels of the embedding and the logits.
    double ends() const {
        double logits = kLogits;
        if (fp8_.contains(kHeadLayer))
            logits = kLogitsFp8 + (config_.fp8.recipe == Fp8Recipe::current ? kLogitsMeasured : 0);
        return time_.element_wise(N_ * (logits * model_.padded_vocab() + C_ * kEmbedding));
    }

    double optimizer() const {
        const double updated = parameters() / slices_;
        double ms = time_.optimizer(updated * optimizer_bytes(config_.optimizer, config_.sharding.gradients)) +
                    time_.element_wise(fp8_weights() * kQuantizeWeight / slices_) +
                    time_.launches(fp8_share_ * L_ * kQuantizeWeightKernels / slices_);
        if (!is_muon(config_.optimizer.kind)) return ms;
        // Ranks share Muon's matrices in every stage.
        const int sharing = config_.sharding.within > 0 ? config_.sharding.within : run_.ranks;
        const size_t steps = newton_schulz_steps(config_.optimizer.muon_ns).steps.size();
        return ms +
               static_cast<double>(steps) * newton_schulz_flops(matrices_) / (time_.card().bf16_tflops * 1e9) / sharing;
    }

    // Masters and moments pass through the device, after the norm of the gradients is known. Kernels that quantize
    // weights read the new masters in host memory.
    double state_copies() const {
        if (!config_.sharding.offload_state) return 0;
        const double copied = 2 * parameters() * state_bytes(config_.optimizer);
        return (copied / time_.card().host_both_gbs + 4 * fp8_weights() / time_.card().host_kernel_gbs) / slices_ / 1e6;
    }

    // The blocks' inputs leave in a step, and return.
    double residual_copies() const {
        return config_.offload_residuals
                   ? config_.micro_steps * L_ * N_ * C_ * sizeof(bf16) / time_.card().host_gbs / 1e6
                   : 0;
    }

private:
    using Kind = TimeModel::Kind;
    using Shares = std::map<Kind, double>;  // the share of the blocks that have a product of this kind

    static double sum_of(const Shares& shares) {
        double sum = 0;
        for (const auto& [kind, share] : shares) sum += share;
        return sum;
    }
    template <class TimeOf>
    double of_layers(const Shares& shares, const TimeOf& time_of) const {
        double ms = 0;
        for (const auto& [kind, share] : shares) ms += share * L_ * time_of(kind);
        return ms;
    }
    // The three products of a linear layer for N tokens. The weight's gradient is FP32, and most micro-steps add to it:
    // `added` is their share. Forward reads `addend` bytes per output.
    Passes linear(double N, double OC, double C, bool forward_in_fp8, bool in_fp8, double added,
                  double addend = 0) const {
        return {time_.matmul({N, OC, C, kind_of(Product::forward, forward_in_fp8), sizeof(bf16), addend}),
                time_.matmul({N, C, OC, kind_of(Product::dgrad, in_fp8)}) +
                    time_.matmul({OC, C, N, kind_of(Product::wgrad, in_fp8), 4, 4 * added})};
    }
    enum class Product { forward, dgrad, wgrad };
    Kind kind_of(Product product, bool in_fp8) const {
        const bool forward = product == Product::forward;
        if (!in_fp8) return Kind::bf16;
        if (config_.fp8_scaling() == Fp8Scaling::block)
            return product == Product::wgrad ? Kind::fp8_blocks_wgrad : Kind::fp8_blocks;
        const FastAccumulation fast = config_.fast_accumulation;
        return fast == FastAccumulation::all || (forward && fast != FastAccumulation::none) ? Kind::fp8_fast
                                                                                            : Kind::fp8_split;
    }
    double parameters() const { return static_cast<double>(model_.padded_parameters()); }
    double fp8_weights() const {
        double count = 0;
        for (const TensorRow& row : matrices_)
            if (fp8_.contains(row.layer())) count += static_cast<double>(row.count());
        return count;
    }

    const PlannedRun& run_;
    const TrainerConfig& config_;
    const ModelConfig& model_;
    const int slices_;
    const TimeModel time_;
    const Fp8Layers fp8_;
    const std::vector<TensorRow> matrices_;  // of the blocks
    const double L_, C_, N_;                 // N: tokens of a micro-step on this rank
    const Kernels kernels_;
    double fp8_share_, forward_share_;     // shares of the blocks' linear layers in FP8, and with a forward in FP8
    Shares gelu_forward_, gelu_backward_;  // only blocks in which one kernel computes the product and GELU
};

}  // namespace

StepTime step_time(const PlannedRun& run, Precision precision, int slices) {
    const StepModel step(run, precision, slices);
    const Passes matmuls = step.matmuls(), with_gelu = step.matmuls_with_gelu(), element_wise = step.element_wise();
    const TimeModel::Attention attention = step.attention();
    const double head = step.head(), ends = step.ends(), micro_steps = run.config.micro_steps;
    const int forwards = run.config.recompute == Recompute::block ? 2 : 1;

    StepTime t;
    t.products = micro_steps * (forwards * matmuls.forward + matmuls.backward + head);
    t.attention = micro_steps * (forwards * attention.forward + attention.backward);
    if (run.config.qk_clip > 0) t.attention += micro_steps * attention.logits;
    t.elementwise = micro_steps * (element_wise.forward + element_wise.backward + ends);
    t.optimizer = step.optimizer();
    t.blocks_forward = micro_steps * (matmuls.forward + attention.forward + element_wise.forward);
    t.blocks_backward = t.total() - t.optimizer - micro_steps * (head + ends) - t.blocks_forward;
    t.blocks_static =
        micro_steps * (forwards * (matmuls.forward - with_gelu.forward) + matmuls.backward - with_gelu.backward);
    // The blocks' inputs are copied to the host during forward, and back during backward.
    const double residuals = step.residual_copies();
    t.offload = step.state_copies() + std::max(0.0, residuals - t.blocks_forward) +
                std::max(0.0, residuals - t.blocks_backward);
    return t;
}

}  // namespace llmc
