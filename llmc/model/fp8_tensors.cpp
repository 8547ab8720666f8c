#include "llmc/model/fp8_tensors.h"

#include "llmc/comm/comm_range.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/model/gpt2_parameters.h"

namespace llmc {
namespace {

size_t input_channels(BlockLinear linear, size_t C) { return linear == BlockLinear::fc_proj ? 4 * C : C; }
size_t output_channels(BlockLinear linear, size_t C) {
    return linear == BlockLinear::qkv ? 3 * C : linear == BlockLinear::fc ? 4 * C : C;
}

// Whether backward computes this layer's input again instead of keeping it.
bool is_recomputed(BlockLinear linear, Recompute level) {
    switch (linear) {
        case BlockLinear::qkv:
        case BlockLinear::fc:
            return level >= Recompute::norm;
        case BlockLinear::attn_proj:
            return level >= Recompute::block;
        case BlockLinear::fc_proj:
            return level >= Recompute::gelu;
    }
    return false;
}

// Blocks scale themselves, so what the other flags say of histories and formats does not apply. The tensors' own scales
// then say what the log shows: that of the largest block.
Fp8Config resolved(Fp8Config config) {
    if (scaling_of(config.recipe) == Fp8Scaling::tensor) return config;
    config.e4m3_gradients = config.pow2_scales = true;
    config.algorithm = AmaxAlgorithm::most_recent;
    config.history = 1;
    config.margin = 0;
    return config;
}

void check_blocks(Fp8Recipe recipe, int tokens, int channels) {
    if (scaling_of(recipe) == Fp8Scaling::tensor) return;
    const int multiple = recipe == Fp8Recipe::block ? kScaleVector : kMxVector;
    const char* name = kFp8Recipes[static_cast<int>(recipe)];
    if (channels % multiple != 0)
        throw Error(
            ExitCode::bad_flags,
            strprintf("--fp8-recipe %s: %d channels are not a multiple of %d, the length of a block, which qkv, "
                      "attn_proj, fc and fc_proj need; use --fp8-recipe %scurrent or delayed",
                      name, channels, multiple, recipe == Fp8Recipe::block ? "mxfp8, " : ""));
    if (tokens % multiple != 0)
        throw Error(ExitCode::bad_flags,
                    strprintf("--fp8-recipe %s: %d tokens a micro-batch (batch * seq) are not a multiple of %d, the "
                              "length of a block, which the weight gradients of qkv, attn_proj, fc and fc_proj need; "
                              "change --batch or --seq, or use --fp8-recipe current or delayed",
                              name, tokens, multiple));
}

}  // namespace

std::vector<std::vector<bool>> fp8_tensors_of(const ParameterTable& table, const ModelConfig& config,
                                              const Fp8Layers& layers) {
    std::vector<std::vector<bool>> result;
    for (const Unit& unit : table.units()) result.emplace_back(unit.tensors.size(), false);
    for (int block = 0; block < config.layers; block++)
        for (const BlockLinear linear : kBlockLinearLayers)
            result[block_unit(block)][BlockTensor::qkv_weight + static_cast<size_t>(linear)] =
                layers.is_fp8(block, linear);
    return result;
}

Fp8Tensors::Fp8Tensors(const ModelConfig& config, const Fp8Config& fp8, const Fp8Layers& layers, int tokens,
                       Recompute recompute, const Comm& comm, int stage)
    : comm_(comm),
      config_(resolved(fp8)),
      scaling_(scaling_of(fp8.recipe)),
      layers_(layers),
      blocks_(config.layers),
      count_((config.layers * kBlockLinears + (layers.head() ? 1 : 0)) * kFp8Roles) {
    check_blocks(fp8.recipe, tokens, config.channels);
    const size_t N = static_cast<size_t>(tokens), C = static_cast<size_t>(config.channels);
    const size_t count = static_cast<size_t>(count_), slots = count / kFp8Roles;
    activations_.plan(&states_, count);
    activations_.plan(&evaluation_, count);
    activations_.plan(&history_, count * static_cast<size_t>(config_.history));
    activations_.plan(&bad_flag_, 1);
    const bool sliced = comm.world() > 1 && stage > 0, gathered = comm.world() > 1 && stage == 3;
    if (sliced && (scaling_ == Fp8Scaling::block || (gathered && scaling_ == Fp8Scaling::mx)))
        throw Error(ExitCode::bad_flags,
                    strprintf("--fp8-recipe %s needs whole weights on every rank, which --zero %d does not keep; use "
                              "%s or --fp8-recipe delayed",
                              kFp8Recipes[static_cast<int>(fp8.recipe)], stage,
                              scaling_ == Fp8Scaling::block ? "--zero 0" : "--zero 2"));
    if (comm.world() > 1) {
        activations_.plan(&packed_, 2 * count);
        activations_.plan(&workspace_, comm.all_reduce_workspace<float>(2 * count));
    }
    if (falls_back()) {
        if (has_block_scales())
            throw Error(ExitCode::bad_flags,
                        "--fp8-fallback needs --fp8-recipe delayed or current: with scales for "
                        "blocks, an outlier costs its own block alone");
        activations_.plan(&watches_, count);
        activations_.plan(&verdicts_, count);
        activations_.plan(&packed_counts_, 3 * count);
        if (comm.world() > 1) activations_.plan(&counts_workspace_, comm.all_reduce_workspace<float>(3 * count));
    }
    if (config.channels <= kWidestFusedGradient)
        activations_.plan(&bias_parts_, layernorm_backward_fp8_bias_parts(tokens, config.channels));
    activations_.plan(&x_row_, N * 4 * C);
    activations_.plan(&dout_row_, N * 4 * C);
    activations_.plan(&dout_transposed_, N * 4 * C);
    x_transposed_.resize(slots);
    w_row_.resize(slots);
    w_transposed_.resize(slots);
    for (auto* scales : {&x_transposed_scales_, &w_scales_, &w_transposed_scales_}) scales->resize(slots);
    for (const BlockLinear linear : kBlockLinearLayers)
        if (is_recomputed(linear, recompute))
            activations_.plan(&shared_x_transposed_[static_cast<size_t>(linear)], N * input_channels(linear, C));
    bool has_shared[kBlockLinears] = {};
    for (int block = 0; block < config.layers; block++)
        for (const BlockLinear linear : kBlockLinearLayers) {
            if (!is_fp8(block, linear)) continue;
            const size_t s = slot(block, linear), inputs = input_channels(linear, C);
            if (!is_recomputed(linear, recompute)) activations_.plan(&x_transposed_[s], N * inputs);
            const size_t elements = inputs * output_channels(linear, C);
            e4m3** shared = &shared_w_transposed_[static_cast<size_t>(linear)];
            if (!sliced || has_block_scales()) weights_.plan(&w_row_[s], elements);
            if (!gathered) weights_.plan(&w_transposed_[s], elements);
            if (gathered && !has_shared[static_cast<size_t>(linear)]) weights_.plan(shared, elements);
            has_shared[static_cast<size_t>(linear)] = true;
        }
    if (has_block_scales()) plan_scales(config, N, recompute);
    if (layers.head()) plan_head(config, tokens);
}

// The head's weight is the embedding's too, which reads BF16: its FP8 copies come on top, on every rank.
void Fp8Tensors::plan_head(const ModelConfig& config, int tokens) {
    if (has_block_scales())
        throw Error(ExitCode::bad_flags, "--fp8-layers +lm_head needs --fp8-recipe delayed or current");
    const size_t C = static_cast<size_t>(config.channels), Vp = static_cast<size_t>(config.padded_vocab()),
                 rows = static_cast<size_t>(logits_chunk(tokens, config.padded_vocab(), sizeof(bf16))),
                 s = slot(blocks_, kHeadLinear);
    activations_.plan(&x_transposed_[s], C * rows);
    activations_.plan(&dlogits_row_, rows * Vp);
    activations_.plan(&dlogits_transposed_, Vp * rows);
    weights_.plan(&w_row_[s], Vp * C);
    weights_.plan(&w_transposed_[s], C * Vp);
}

void Fp8Tensors::plan_scales(const ModelConfig& config, size_t N, Recompute recompute) {
    const size_t C = static_cast<size_t>(config.channels);
    const bool mx = scaling_ == Fp8Scaling::mx;
    const ScaleLayout rows = mx ? ScaleLayout::mx : ScaleLayout::vectors, tiles = mx ? rows : ScaleLayout::tiles;
    activations_.plan(&source_, N * 4 * C);
    activations_.plan(&x_scales_, scale_bytes(rows, N, 4 * C));
    activations_.plan(&dout_scales_, scale_bytes(rows, N, 4 * C));
    activations_.plan(&dout_transposed_scales_, scale_bytes(rows, 4 * C, N));
    for (const BlockLinear linear : kBlockLinearLayers)
        if (is_recomputed(linear, recompute))
            activations_.plan(&shared_x_transposed_scales_[static_cast<size_t>(linear)],
                              scale_bytes(rows, input_channels(linear, C), N));
    for (int block = 0; block < config.layers; block++)
        for (const BlockLinear linear : kBlockLinearLayers) {
            if (!is_fp8(block, linear)) continue;
            const size_t s = slot(block, linear), in = input_channels(linear, C), out = output_channels(linear, C);
            if (!is_recomputed(linear, recompute))
                activations_.plan(&x_transposed_scales_[s], scale_bytes(rows, in, N));
            weights_.plan(&w_scales_[s], scale_bytes(tiles, out, in));
            weights_.plan(&w_transposed_scales_[s], scale_bytes(tiles, in, out));
        }
}

void Fp8Tensors::allocate(stream_t stream) {
    activations_.allocate();
    weights_.allocate();
    for (size_t s = 0; s < x_transposed_.size(); s++) {
        if (!x_transposed_[s]) x_transposed_[s] = shared_x_transposed_[s % kBlockLinears];
        if (!w_transposed_[s]) w_transposed_[s] = shared_w_transposed_[s % kBlockLinears];
        if (!x_transposed_scales_[s]) x_transposed_scales_[s] = shared_x_transposed_scales_[s % kBlockLinears];
    }
    fp8_reset(states_, history_, count_, config_, stream);
    fp8_reset(evaluation_, history_, count_, config_, stream);
    if (!falls_back()) return;
    set_bytes(watches_, 0, static_cast<size_t>(count_) * sizeof(Fp8Watch), stream);
    set_bytes(bad_flag_, 0, sizeof(int), stream);
    for (VerdictSlot& slot : verdict_slots_) {
        slot.values = static_cast<Fp8Verdict*>(pinned_malloc(static_cast<size_t>(count_) * sizeof(Fp8Verdict)));
        slot.copied = create_event();
    }
}

Fp8Tensors::~Fp8Tensors() {
    for (VerdictSlot& slot : verdict_slots_) {
        if (!slot.values) continue;
        tear_down([&] { synchronize(slot.copied); });
        tear_down([&] { pinned_free(slot.values); });
        tear_down([&] { destroy_event(slot.copied); });
    }
}

Quantized<e4m3> Fp8Tensors::x(int block, BlockLinear linear, PassKind kind) {
    Fp8State* table = kind == PassKind::evaluation && !uses_history() ? evaluation_ : states_;
    const bool forward_only = kind == PassKind::evaluation;
    const size_t s = slot(block, linear);
    return {x_row_, forward_only ? nullptr : x_transposed_[s], table + Fp8TensorId{block, linear, Fp8Role::x}.index(),
            x_scales_, forward_only ? nullptr : x_transposed_scales_[s]};
}

Quantized<e4m3> Fp8Tensors::w(int block, BlockLinear linear) const {
    const size_t s = slot(block, linear);
    return {w_row_[s], w_transposed_[s], states_ + Fp8TensorId{block, linear, Fp8Role::w}.index(), w_scales_[s],
            w_transposed_scales_[s]};
}

void Fp8Tensors::set_head_weight_scale(stream_t stream) {
    fp8_set_current(states_, Fp8TensorId{blocks_, kHeadLinear, Fp8Role::w}.index(), 1, config_, stream);
}

void Fp8Tensors::set_weight_scales(stream_t stream) {
    fp8_set_current(states_, 0, count_, config_, stream);  // amax_now is 0 for the others, which changes nothing
}

// The maximum over the ranks of every amax; what is bad on one is bad on all.
void Fp8Tensors::share(bool now, stream_t stream) {
    if (comm_.world() == 1) return;
    const CommRange range("maximum of FP8 amaxes", comm_, stream);
    fp8_pack_amaxes(packed_, states_, count_, now, stream);
    comm_.all_reduce(packed_, 2 * static_cast<size_t>(count_), ReduceOp::max, workspace_, stream);
    fp8_unpack_amaxes(states_, packed_, count_, now, stream);
}

void Fp8Tensors::check(stream_t stream) {
    share(false, stream);
    fp8_any_bad(bad_flag_, states_, count_, stream);
}

// The counts of this step, those of all ranks, and what follows from them.
void Fp8Tensors::watch(stream_t stream) {
    const size_t count = static_cast<size_t>(count_);
    fp8_pack_counts(packed_counts_, watches_, states_, count_, stream);
    if (comm_.world() > 1) {
        const CommRange range("sum FP8 counts", comm_, stream);
        comm_.all_reduce(packed_counts_, 3 * count, ReduceOp::sum, counts_workspace_, stream);
    }
    fp8_judge(verdicts_, watches_, packed_counts_, bad_flag_, count_, config_.fallback, stream);
    VerdictSlot& slot = verdict_slots_[watched_++ % 2];
    synchronize(slot.copied);
    copy_to_host(slot.values, verdicts_, count * sizeof(Fp8Verdict), stream);
    record(slot.copied, stream);
}

std::vector<Fp8Loss> Fp8Tensors::take_losses() {
    std::vector<Fp8Loss> losses;
    if (watched_ - taken_ < 2) return losses;
    const VerdictSlot& slot = verdict_slots_[taken_++ % 2];
    synchronize(slot.copied);
    for (int i = 0; i < count_; i++) {
        const Fp8TensorId id = fp8_tensor(i, blocks_);
        if (slot.values[i].reason == static_cast<int>(Fp8Reason::none) || !is_fp8(id.block, id.linear)) continue;
        const bool known =
            !losses.empty() && losses.back().tensor.block == id.block && losses.back().tensor.linear == id.linear;
        if (!known) losses.push_back({id, static_cast<Fp8Reason>(slot.values[i].reason), slot.values[i].fraction});
    }
    return losses;
}

void Fp8Tensors::clear_counts(stream_t stream) {
    if (falls_back()) fp8_keep_watched_counts(watches_, states_, count_, stream);
    fp8_clear_counts(states_, count_, stream);
}

void Fp8Tensors::finish_step(const float* change, stream_t stream) {
    if (falls_back()) watch(stream);
    const ProfileRange range("FP8 scales", stream);
    fp8_finish_step(states_, history_, count_, config_, change, stream);
    calibrated_ = true;
}

}  // namespace llmc
