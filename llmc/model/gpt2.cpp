#include "llmc/model/gpt2.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "llmc/comm/comm_range.h"
#include "llmc/device/transfer.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/embedding.h"
#include "llmc/kernels/layernorm.h"

namespace llmc {

std::vector<Matmul::LinearShape> linear_shapes(const ModelConfig& config, int N, int head_rows) {
    const int C = config.channels;
    return {{N, C, 3 * C}, {N, C, C}, {N, C, 4 * C}, {N, 4 * C, C}, {head_rows, C, config.padded_vocab()}};
}

template <class Real>
Gpt2<Real>::Gpt2(const ModelConfig& config, int B, int T, Recompute recompute, Parameters<Real>& parameters,
                 Matmul& matmul, Fp8Tensors* fp8)
    : config_(config),
      B_(B),
      T_(T),
      parameters_(parameters),
      matmul_(matmul),
      fp8_(fp8),
      activations_(config, B, T, recompute, fp8 ? fp8->without_bf16() : nullptr) {
    for (const Unit& unit : parameters.table().units()) {
        forward_names_.push_back(unit.name + " forward");
        backward_names_.push_back(unit.name + " backward");
    }
    activations_.workspace.plan(&loss_sums_, 2);
    activations_.workspace.plan(&loss_counts_, 2);
    activations_.workspace.plan(&loss_workspace_, parameters.comm().template all_reduce_workspace<double>(1));
}

template <class Real>
Gpt2<Real>::~Gpt2() {
    for (Staging& staging : staging_) {
        if (!staging.memory) continue;
        tear_down([&] { synchronize(staging.copied); });
        tear_down([&] { pinned_free(staging.memory); });
        tear_down([&] { destroy_event(staging.copied); });
    }
}

template <class Real>
std::vector<Matmul::LinearShape> Gpt2<Real>::linear_shapes() const {
    return llmc::linear_shapes(config_, B_ * T_, activations_.chunk_rows);
}

template <class Real>
void Gpt2<Real>::allocate() {
    activations_.allocate();
    if (operand_type<Real> != OperandType::fp32)  // whose products need no memory of their own
        for (const Matmul::LinearShape& shape : linear_shapes())
            matmul_.reserve(shape.N, shape.C, shape.OC);
    const size_t n = static_cast<size_t>(B_) * static_cast<size_t>(T_);
    for (Staging& staging : staging_) {
        staging.memory = static_cast<int*>(pinned_malloc((2 * n + token_sort_size(B_ * T_)) * sizeof(int)));
        staging.copied = create_event();
    }
}

template <class Real>
void Gpt2<Real>::initialize(uint64_t seed, stream_t stream) {
    const std::vector<Unit>& units = parameters_.table().units();
    for (size_t u = 0; u < units.size(); u++)
        for (size_t t = 0; t < units[u].tensors.size(); t++)
            parameters_.set_tensor(u, t, initial_values(config_, units[u].tensors[t], seed), stream);
}

// Tokens go through pinned memory; their counting sort, which the embedding's backward reads, is made here on the host.
template <class Real>
void Gpt2<Real>::upload(const int* tokens, const int* targets, int n, bool sort, stream_t stream) {
    Staging& staging = staging_[next_staging_];
    next_staging_ ^= 1;
    synchronize(staging.copied);  // the copy of two micro-batches ago
    const size_t count = static_cast<size_t>(n);
    std::copy(tokens, tokens + n, staging.memory);
    copy_to_device(activations_.tokens, staging.memory, count * sizeof(int), stream);
    if (targets) {
        std::copy(targets, targets + n, staging.memory + count);
        copy_to_device(activations_.targets, staging.memory + count, count * sizeof(int), stream);
    }
    if (sort) {
        sort_tokens(staging.memory + 2 * count, tokens, n);
        copy_to_device(activations_.sorted, staging.memory + 2 * count, token_sort_size(n) * sizeof(int), stream);
    }
    record(staging.copied, stream);
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <class Real>
void Gpt2<Real>::forward(int B, int T, PassKind kind, stream_t stream) {
    const ProfileRange pass("forward");
    const int N = B * T, C = config_.channels, L = config_.layers;
    Activations<Real>& a = activations_;

    const size_t embedding = embedding_unit(), final = final_unit(config_);
    parameters_.gather(embedding, stream);
    {
        const ProfileRange range(forward_names_[embedding].c_str(), stream);
        const int positions = std::min(T, config_.context);
        embedding_forward(a.blocks[0].residual, a.tokens, parameters_.weight(embedding, EmbeddingTensor::wte),
                          parameters_.weight(embedding, EmbeddingTensor::wpe), B, positions, C, config_.padded_vocab(),
                          stream);
        if (positions < T) {  // padding of next_token_logits(), B = 1
            const size_t embedded = static_cast<size_t>(positions) * static_cast<size_t>(C);
            const size_t padding = static_cast<size_t>(T - positions) * static_cast<size_t>(C);
            set_bytes(a.blocks[0].residual + embedded, 0, padding * sizeof(Real), stream);
        }
    }
    parameters_.release(embedding, stream);

    for (int l = 0; l < L; l++) {
        parameters_.gather(block_unit(l), stream);
        {
            const ProfileRange range(forward_names_[block_unit(l)].c_str(), stream);
            block_forward(l, l > 0 ? a.branch : nullptr, B, T, kind, stream);
            linear_forward(l, BlockLinear::fc_proj, a.branch, a.blocks[l].gelu, N, kind, stream);
        }
        parameters_.release(block_unit(l), stream);
    }

    parameters_.gather(final, stream);
    {
        const ProfileRange range(forward_names_[final].c_str(), stream);
        layernorm_forward<Real>(a.lnf, a.lnf_mean, a.lnf_rstd, a.residual_final, a.blocks[L - 1].residual_mid, a.branch,
                                nullptr, parameters_.weight(final, FinalTensor::weight),
                                parameters_.weight(final, FinalTensor::bias), N, C, stream);
    }
    parameters_.release(final, stream);
}

// From the block's input to GELU's output. `branch` is the previous block's last projection, still to be added to the
// residual stream; without it the block's input is already there (the first block, or a recomputation).
template <class Real>
void Gpt2<Real>::block_forward(int l, const Real* branch, int B, int T, PassKind kind, stream_t stream) {
    const int N = B * T;
    Block& b = activations_.blocks[l];
    Real* proj = activations_.branch;  // (N, C)

    norm1(l, branch, N, kind, stream);
    linear_forward(l, BlockLinear::qkv, b.qkv, b.ln1, N, kind, stream);
    attention(l, B, T, kind, stream);
    linear_forward(l, BlockLinear::attn_proj, proj, b.attention, N, kind, stream);
    norm2(l, proj, N, kind, stream);
    linear_forward(l, BlockLinear::fc, b.fc, b.ln2, N, kind, stream);
    gelu(l, N, kind, stream);
}

// The head and the loss in chunks of rows, so that the logits never exist whole. With gradients each chunk's logits
// become its dlogits in place, and leave the gradient of lnf in dbranch and that of wte in the gradients.
template <class Real>
void Gpt2<Real>::head_forward(int N, bool gradients, float loss_weight, const float* loss_scale, bool first,
                              stream_t stream) {
    const int C = config_.channels, V = config_.vocab, Vp = config_.padded_vocab();
    Activations<Real>& a = activations_;
    const size_t unit = embedding_unit();
    parameters_.gather(unit, stream);
    std::optional<ProfileRange> range(std::in_place, "head and loss", stream);
    const Real* wte = parameters_.weight(unit, EmbeddingTensor::wte);  // (Vp, C)
    float* dwte = parameters_.gradient(unit, EmbeddingTensor::wte);    // (Vp, C)
    for (int row = 0; row < N; row += a.chunk_rows) {
        const int rows = std::min(a.chunk_rows, N - row);
        const Real* lnf = a.lnf + static_cast<size_t>(row) * static_cast<size_t>(C);
        Real* dlnf = a.dbranch + static_cast<size_t>(row) * static_cast<size_t>(C);
        head_products_forward(lnf, wte, rows, gradients ? PassKind::training : PassKind::evaluation, stream);
        softmax_cross_entropy(a.logits, a.losses + row, a.targets + row, loss_weight, loss_scale, rows, V, Vp,
                              gradients, stream);
        if (!gradients) continue;
        head_products_backward(dlnf, dwte, lnf, wte, rows, !first || row > 0, stream);
    }
    range.reset();
    parameters_.release(unit, stream);
}

// ---- backward ------------------------------------------------------------------------------------------------------

template <class Real>
void Gpt2<Real>::recompute_block(int l, stream_t stream) {
    const int N = B_ * T_;
    const Recompute level = activations_.recompute;
    if (level == Recompute::block) {
        block_forward(l, nullptr, B_, T_, PassKind::recompute, stream);
        return;
    }
    if (level >= Recompute::norm) {
        norm1(l, nullptr, N, PassKind::recompute, stream);
        norm2(l, nullptr, N, PassKind::recompute, stream);
    }
    if (level >= Recompute::gelu) gelu(l, N, PassKind::recompute, stream);
}

template <class Real>
void Gpt2<Real>::backward(bool first, stream_t stream) {
    const ProfileRange pass("backward");
    const int C = config_.channels;
    Activations<Real>& a = activations_;
    const size_t embedding = embedding_unit(), final = final_unit(config_);

    parameters_.gather(final, stream);
    {
        const ProfileRange range(backward_names_[final].c_str(), stream);
        norm_backward({parameters_.gradient(final, FinalTensor::weight), parameters_.gradient(final, FinalTensor::bias),
                       a.residual_final, parameters_.weight(final, FinalTensor::weight), a.lnf_mean, a.lnf_rstd},
                      nullptr, a.dbranch, config_.layers - 1, BlockLinear::fc_proj, !first, stream);
    }
    parameters_.release(final, stream);
    parameters_.reduce(final, stream);

    for (int l = config_.layers - 1; l >= 0; l--) {
        parameters_.gather(block_unit(l), stream);
        {
            const ProfileRange range(backward_names_[block_unit(l)].c_str(), stream);
            if (parameters_.stage() == 3) transpose_weights(l, stream);
            recompute_block(l, stream);
            block_backward(l, !first, stream);
        }
        parameters_.release(block_unit(l), stream);
        parameters_.reduce(block_unit(l), stream);
    }

    {
        const ProfileRange range(backward_names_[embedding].c_str(), stream);
        float* dwpe = parameters_.gradient(embedding, EmbeddingTensor::wpe);  // (context, C)
        if (first) {
            const size_t wpe_elements = static_cast<size_t>(config_.context) * static_cast<size_t>(C);
            set_bytes(dwpe, 0, wpe_elements * sizeof(float), stream);
        }
        embedding_backward(parameters_.gradient(embedding, EmbeddingTensor::wte), dwpe, a.sorted, a.dresidual, B_, T_,
                           C, config_.padded_vocab(), stream);
    }
    parameters_.reduce(embedding, stream);  // with the head's part, which was there first
}

template <class Real>
void Gpt2<Real>::block_backward(int l, bool accumulate, stream_t stream) {
    Activations<Real>& a = activations_;
    Block& b = a.blocks[l];
    Real* dgelu = a.dhidden;       // (N, 4C)
    Real* dqkv = a.dhidden;        // (N, 3C)
    Real* dattention = a.dbranch;  // (N, C)
    Real* dln = a.dbranch;         // (N, C)

    // The MLP's branch.
    linear_backward(l, BlockLinear::fc_proj, dgelu, a.dresidual, b.gelu, accumulate, stream);
    gelu_and_linear_backward(l, dln, dgelu, accumulate, stream);
    norm_backward({gradient(l, BlockTensor::ln2_weight), gradient(l, BlockTensor::ln2_bias), b.residual_mid,
                   weight(l, BlockTensor::ln2_weight), b.ln2_mean, b.ln2_rstd},
                  a.dresidual, dln, l, BlockLinear::attn_proj, accumulate, stream);

    // Attention's branch.
    linear_backward(l, BlockLinear::attn_proj, dattention, a.dresidual, b.attention, accumulate, stream);
    attention_and_linear_backward(l, dln, dattention, dqkv, accumulate, stream);
    norm_backward({gradient(l, BlockTensor::ln1_weight), gradient(l, BlockTensor::ln1_bias), b.residual,
                   weight(l, BlockTensor::ln1_weight), b.ln1_mean, b.ln1_rstd},
                  a.dresidual, dln, l - 1, BlockLinear::fc_proj, accumulate, stream);
}

// ---- what the training loop calls ----------------------------------------------------------------------------------

template <class Real>
void Gpt2<Real>::train_micro_step(const int* tokens, const int* targets, float loss_weight, const float* loss_scale,
                                  bool first, stream_t stream, bool last) {
    const int N = B_ * T_;
    const bool accumulate = !first && parameters_.accumulates();
    parameters_.begin_micro_step(first, last);
    {
        const ProfileRange range("upload tokens", stream);
        upload(tokens, targets, N, true, stream);
    }
    forward(B_, T_, PassKind::training, stream);
    head_forward(N, true, loss_weight, loss_scale, !accumulate, stream);
    sum_losses(loss_sums_, loss_counts_, activations_.losses, activations_.targets, N, !first, stream);
    backward(!accumulate, stream);
    if (last) share_losses(0, stream);
}

template <class Real>
void Gpt2<Real>::share_losses(int which, stream_t stream) {
    const Comm& comm = parameters_.comm();
    if (comm.world() == 1) return;
    const CommRange range("sum the loss", comm, stream);
    comm.all_reduce(loss_sums_ + which, 1, ReduceOp::sum, loss_workspace_, stream);
    comm.all_reduce(loss_counts_ + which, 1, ReduceOp::sum, loss_workspace_, stream);
}

template <class Real>
void Gpt2<Real>::evaluate(const int* tokens, const int* targets, bool first, stream_t stream) {
    const int N = B_ * T_;
    upload(tokens, targets, N, false, stream);
    forward(B_, T_, PassKind::evaluation, stream);
    head_forward(N, false, 0.0f, nullptr, first, stream);
    sum_losses(loss_sums_ + 1, loss_counts_ + 1, activations_.losses, activations_.targets, N, !first, stream);
}

template <class Real>
std::vector<float> Gpt2<Real>::next_token_logits(const int* tokens, int length, stream_t stream) {
    if (length < 1 || length > config_.context || length > B_ * T_)
        throw Error(ExitCode::failure, strprintf("cannot run %d tokens through a context of %d (%d reserved)", length,
                                                 config_.context, B_ * T_));
    const int C = config_.channels, V = config_.vocab, Vp = config_.padded_vocab();
    // FP8 products want tokens in whole blocks, as B * T is. What comes behind the last token cannot change it, and may
    // reach past the context, where no position has an embedding.
    std::vector<int> padded(tokens, tokens + length);
    if (fp8_) {
        const int multiple = fp8_->token_multiple();
        padded.resize(static_cast<size_t>(div_up(length, multiple)) * static_cast<size_t>(multiple), 0);
    }
    const int N = static_cast<int>(padded.size());
    upload(padded.data(), nullptr, N, false, stream);
    forward(1, N, PassKind::evaluation, stream);
    parameters_.gather(embedding_unit(), stream);
    matmul_.forward<Real>(activations_.logits,
                          activations_.lnf + static_cast<size_t>(length - 1) * static_cast<size_t>(C),
                          parameters_.weight(embedding_unit(), EmbeddingTensor::wte), nullptr, 1, C, Vp, stream);
    parameters_.release(embedding_unit(), stream);
    std::vector<float> logits;
    for (const Real x : read_back(activations_.logits, static_cast<size_t>(V), stream)) logits.push_back(to_float(x));
    return logits;
}

template class Gpt2<float>;
template class Gpt2<bf16>;

}  // namespace llmc
