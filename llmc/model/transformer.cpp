// The flow of a transformer: embedding, blocks, head and loss, and back. See transformer.h.
#include "llmc/model/transformer.h"

#include <bit>
#include <cmath>
#include <utility>

#include "llmc/device/transfer.h"
#include "llmc/kernels/embedding.h"
#include "llmc/kernels/initial_values.h"

namespace llmc {

int logits_chunk(int N, int padded_vocab, size_t element_bytes, size_t limit) {
    const size_t rows = std::bit_floor(limit / (static_cast<size_t>(padded_vocab) * element_bytes));
    return static_cast<int>(std::min<size_t>(static_cast<size_t>(N), std::max<size_t>(rows, 128)));
}

void mark_documents(int* documents, const int* tokens, int B, int T, int end_token) {
    for (int b = 0; b < B; b++, documents += T, tokens += T)
        for (int t = 0, begin = 0; t < T; t++) {
            if (tokens[t] == end_token) begin = t;
            documents[t] = begin;
        }
}

template <class Real>
static std::vector<std::unique_ptr<Block<Real>>> make_blocks(ModelContext<Real>& context) {
    std::vector<std::unique_ptr<Block<Real>>> blocks;
    const ModelConfig& model = context.setup.model;
    const auto make = std::get<MakeBlock<Real>>(model.architecture->make_block);
    for (int l = 0; l < model.layers; l++) blocks.push_back(make(context, l));
    return blocks;
}

// The order of members is the order in which layers are added and memory is planned.
template <class Real>
Transformer<Real>::Transformer(const ModelSetup& setup, Weights<Real>& weights, Gradients& gradients, Matmul& matmul,
                               Transformer* host)
    : setup_(setup),
      weights_(weights),
      gradients_(gradients),
      matmul_(matmul),
      activations_(MemoryKind::activations, host ? &host->activations_ : nullptr),
      constants_(MemoryKind::activations, host ? &host->constants_ : nullptr),
      workspace_(MemoryKind::workspace, host ? &host->workspace_ : nullptr),
      linear_(weights, gradients, matmul, activations_, setup.is_fp8() ? &setup.fp8 : nullptr),
      context_{setup, weights, gradients, linear_, activations_, constants_},
      blocks_(make_blocks(context_)),
      offloaded_(setup.offload_residuals ? blocks_.size() : 0, context_.N() * context_.C() * sizeof(Real)),
      head_(linear_, kHeadLayer, logits_chunk(setup.N(), config().padded_vocab(), sizeof(Real), setup.logits_bytes),
            {.kind = kHeadLayer, .input_in_memory = true}, setup.model.tied ? "wte" : ""),
      final_norm_(context_, "lnf", true),
      head_unit_(setup.model.tied ? embedding_unit() : final_unit(setup.model)),
      wte_(weights.table().find("wte")),
      wpe_(weights.table().look_up("wpe")) {
    linear_.finish_planning();
    const size_t N = context_.N(), C = context_.C();
    const int n = setup.N();
    if (config().table().embedding_norm) {
        embedding_norm_.emplace(context_, "embedding_norm", true);
        activations_.plan(&embedded_, N * C);
    }
    for (Real** tensor : {&residual_final_, &lnf_}) activations_.plan(tensor, N * C);
    if (!setup.forward_only) {
        activations_.plan(&dresidual_, N * C);
        activations_.plan_shared("dbranch", &dlnf_, N * C);  // free again before the blocks' backward
    }
    activations_.plan(&losses_, N);
    workspace_.plan(&logits_, static_cast<size_t>(head_.shape().N) * config().padded_vocab());
    const int shortest = setup.shortest_piece > 0 ? setup.shortest_piece : setup.seq;
    const auto scratch = config().architecture->scratch;
    workspace_.plan(&scratch_,
                    std::max(scratch(config(), setup.batch, setup.seq), scratch(config(), n / shortest, shortest)));
    constants_.plan(&tickets_, 1);
    for (int** tensor : {&tokens_, &targets_}) workspace_.plan(tensor, N);
    workspace_.plan(&sorted_, token_sort_size(n));
    if (setup.doc_mask) workspace_.plan(&documents_, N);
    workspace_.plan(&loss_sums_, 2);
    workspace_.plan(&loss_counts_, 2);
    workspace_.plan(&loss_workspace_, weights.layout().comm().template all_reduce_workspace<double>(1));
    for (const Unit& unit : weights.table().units()) {
        forward_names_.push_back(unit.name + " forward");
        backward_names_.push_back(unit.name + " backward");
    }
}

template <class Real>
void Transformer<Real>::allocate(stream_t stream) {
    for (Arena* arena : {&activations_, &constants_, &workspace_}) arena->allocate();
    set_bytes(tickets_, 0, sizeof *tickets_, stream);
    linear_.allocate(stream);
    std::vector<void*> inputs;
    for (const auto& block : blocks_) {
        block->allocated(stream);
        inputs.push_back(block->residual());
    }
    offloaded_.allocate(inputs);
    const size_t sorted = token_sort_size(setup_.N());
    for (Staging& staging : staging_) {
        staging.memory = pinned<int>(3 * context_.N() + sorted);
        staging.copied = create_event();
    }
}

template <class Real>
void Transformer<Real>::initialize(uint64_t seed, stream_t stream) {
    for (const TensorRow& row : all_tensors(config())) {
        const ParameterTable::Place place = weights_.table().find(row.name);
        weights_.initialize(place.unit, place.tensor, initial_values(config(), row, seed), stream);
    }
}

// Copies tokens, targets (pass.B, pass.T) and, in training, the sorted tokens to the device. A batch of the TrainLoader
// is in pinned memory and sorted already. Others are sorted here and go through staging. So do the places of documents.
template <class Real>
void Transformer<Real>::upload(const MicroBatch& batch, const Pass& pass) {
    const int n = pass.N;
    const size_t count = n, sort_size = token_sort_size(n);
    Staging& staging = staging_[next_staging_];
    next_staging_ ^= 1;
    synchronize(staging.copied);  // waits for the copies of two micro-batches ago
    int* free = staging.memory;
    const auto reserve = [&](size_t ints) { return std::exchange(free, free + ints); };
    const auto send = [&](int* to, const int* values, size_t ints) {
        copy_to_device(to, values, ints * sizeof(int), pass.stream);
    };
    const auto send_staged = [&](int* to, const int* values) {
        int* const staged = reserve(count);
        std::copy(values, values + n, staged);
        send(to, staged, count);
    };

    if (batch.sorted && n == setup_.N()) {
        send(tokens_, batch.tokens, count);
        send(targets_, batch.targets, count);
        send(sorted_, batch.sorted, sort_size);
    } else {
        send_staged(tokens_, batch.tokens);
        if (batch.targets) send_staged(targets_, batch.targets);
        if (pass.kind == PassKind::training) {
            int* const sorted = reserve(sort_size);
            sort_tokens(sorted, batch.tokens, n);
            send(sorted_, sorted, sort_size);
        }
    }
    if (batch.targets && setup_.doc_mask) {
        int* const documents = reserve(count);
        mark_documents(documents, batch.tokens, pass.B, pass.T, setup_.end_token);
        send(documents_, documents, count);
    }
    record(staging.copied, pass.stream);
}

// ---- forward --------------------------------------------------------------------------------------------------------

// Embeds pass.B sequences of `positions` tokens, whose first token is at position `first`.
template <class Real>
void Transformer<Real>::embed(int first, int positions, const Pass& pass) {
    const size_t C = context_.C(), begin = static_cast<size_t>(first) * C;
    Real* const residual = blocks_.front()->residual() + begin;
    Real* const embedded = embedding_norm_ ? embedded_ + begin : residual;
    const Real* const wpe = wpe_ ? weights_.weight(*wpe_) + begin : nullptr;
    embedding_forward(embedded, tokens_, weights_.weight(wte_), wpe, pass.B, positions, config().channels,
                      config().padded_vocab(), pass.stream);
    const size_t rows = static_cast<size_t>(pass.B) * positions, all = pass.N;
    if (rows < all) set_bytes(embedded + rows * C, 0, (all - rows) * C * sizeof(Real), pass.stream);
    if (embedding_norm_) embedding_norm_->forward(residual, embedded, pass);
}

template <class Real>
void Transformer<Real>::forward(const Pass& pass) {
    const ProfileRange whole("forward");
    const bool training = pass.kind == PassKind::training;
    if (training) offloaded_.acquire(0, pass.stream);
    {
        const auto unit = use(embedding_unit(), forward_names_, pass);
        embed(0, pass.T, pass);
    }
    for (int l = 0; l < config().layers; l++) {
        const auto unit = use(block_unit(l), forward_names_, pass);
        if (training && l + 1 < config().layers) offloaded_.acquire(l + 1, pass.stream);
        blocks_[l]->forward(output_of_block(l), pass);  // (N, C)
        if (training) offloaded_.keep(l, pass.stream);
    }
    const auto unit = use(final_unit(config()), forward_names_, pass);
    final_norm_.forward(lnf_, residual_final_, pass);  // (N, C)
}

// The head and the loss, a chunk of rows at a time, so that the logits of all rows never exist together. In training,
// each chunk's logits become their own gradient in place, or if the head is in FP8, the loss writes the gradient as
// codes. dlnf receives the gradient of lnf; that of the head's weight goes into the gradients.
template <class Real>
void Transformer<Real>::loss_and_head_gradients(float loss_weight, const float* loss_scale, const Pass& pass) {
    const int V = config().vocab, Vp = config().padded_vocab();
    const LogitShaping shaping = {static_cast<float>(config().logit_cap), static_cast<float>(setup_.z_loss)};
    const bool training = pass.kind == PassKind::training;
    if (training) gradients_.acquire(head_unit_, pass.stream);
    const UnitInUse<Real> unit(weights_, head_unit_, pass.stream, "head and loss");
    for (int row = 0; row < pass.N; row += head_.shape().N) {
        const int rows = std::min(head_.shape().N, pass.N - row);
        const size_t begin = static_cast<size_t>(row) * context_.C();
        LayerPass chunk = pass;
        chunk.N = rows;
        chunk.accumulate |= row > 0;
        const Operand<Real> lnf = head_.input(lnf_ + begin, nullptr, chunk);  // (rows, C)
        head_.forward(logits_, lnf, chunk);                                   // (rows, Vp)
        if constexpr (kCanBeFp8<Real>)
            if (Gradient<Real> dlogits = training ? head_.gradient_target(chunk) : Gradient<Real>(); dlogits.casts()) {
                const auto run = [&](const auto& codes) {
                    softmax_cross_entropy_fp8(codes, logits_, losses_ + row, targets_ + row, loss_weight, loss_scale,
                                              rows, V, Vp, dlogits.cast_pass, pass.stream, shaping);
                };
                do {
                    std::visit(run, dlogits.codes);
                } while (!head_.accept(dlogits, chunk));
                head_.backward(dlnf_ + begin, dlogits, lnf, chunk);  // (rows, C)
                continue;
            }
        softmax_cross_entropy(logits_, losses_ + row, targets_ + row, loss_weight, loss_scale, rows, V, Vp, training,
                              pass.stream, shaping);
        if (training) head_.backward(dlnf_ + begin, {logits_}, lnf, chunk);  // (rows, C)
    }
}

// ---- backward -------------------------------------------------------------------------------------------------------

// Does `work`, the unit's backward pass, while its weights are gathered, and then reduces its gradient.
template <class Real>
template <class Work>
void Transformer<Real>::backward_unit(size_t unit, const Pass& pass, Work&& work) {
    gradients_.acquire(unit, pass.stream);
    {
        const auto in_use = use(unit, backward_names_, pass);
        work();
    }
    gradients_.reduce(unit, pass.stream);
}

template <class Real>
void Transformer<Real>::backward(const Pass& pass) {
    const ProfileRange whole("backward");
    Gradient<Real> dstream;
    backward_unit(final_unit(config()), pass, [&] {
        Linear<Real>& before = blocks_.back()->last_layer();
        dstream = final_norm_.backward(dresidual_, nullptr, dlnf_, residual_final_, &before, pass);  // (N, C)
    });
    for (int l = config().layers - 1; l >= 0; l--)
        backward_unit(block_unit(l), pass, [&] {
            Linear<Real>* const before = l > 0 ? &blocks_[l - 1]->last_layer() : nullptr;
            offloaded_.bring(l, pass.stream);
            Pass recompute = pass;
            recompute.kind = PassKind::recompute;
            blocks_[l]->recompute(recompute);
            dstream = blocks_[l]->backward(dstream, before, pass);  // (N, C)
            offloaded_.release(l, pass.stream);
        });
    const size_t embedding = embedding_unit();  // its backward pass reads no weights
    gradients_.acquire(embedding, pass.stream);
    {
        const ProfileRange range(backward_names_[embedding].c_str(), pass.stream);
        embed_backward(pass);
    }
    gradients_.reduce(embedding, pass.stream);  // includes the gradient of a tied head, which came first
}

template <class Real>
void Transformer<Real>::embed_backward(const Pass& pass) {
    float *const dwte = gradients_.gradient(wte_), *const dwpe = wpe_ ? gradients_.gradient(*wpe_) : nullptr;
    const auto clear = [&](float* gradient, const ParameterTable::Place& place) {
        set_bytes(gradient, 0, weights_.table().tensor(place).count() * sizeof(float), pass.stream);
    };
    if (!pass.accumulate && wpe_) clear(dwpe, *wpe_);
    if (!pass.accumulate && !config().tied) clear(dwte, wte_);
    if (embedding_norm_) embedding_norm_->backward(dresidual_, nullptr, dresidual_, embedded_, nullptr, pass);
    embedding_backward(dwte, dwpe, sorted_, dresidual_, pass.B, pass.T, config().channels, config().padded_vocab(),
                       pass.stream);
}

// ---- what the trainer calls -----------------------------------------------------------------------------------------

template <class Real>
void Transformer<Real>::train_micro_step(const MicroBatch& batch, const MicroStep& step, stream_t stream) {
    forget_rows();
    const int T = step.length > 0 ? step.length : setup_.seq;
    Pass training = pass(PassKind::training, setup_.N() / T, T, stream);
    training.accumulate = !step.first && gradients_.layout().accumulates();
    if (step.measures_logits) training.max_logits = max_logits_;
    if (step.measures_logits && step.first) set_bytes(max_logits_, 0xff, max_logit_count() * sizeof(float), stream);
    gradients_.begin_micro_step(step.first, step.last);
    {
        const ProfileRange range("upload tokens", stream);
        upload(batch, training);
    }
    forward(training);
    loss_and_head_gradients(step.loss_weight, step.loss_scale, training);
    sum_losses(loss_sums_, loss_counts_, losses_, targets_, training.N, !step.first, stream);
    backward(training);
    if (step.last) share_losses(0, stream);
    const Comm& comm = weights_.layout().comm();
    if (step.measures_logits && step.last && comm.world() > 1) {
        const CommRange range("share the largest logits", comm, stream);
        comm.all_reduce(max_logits_, max_logit_count(), ReduceOp::max, max_logits_workspace_, stream);
    }
}

template <class Real>
void Transformer<Real>::share_losses(int which, stream_t stream) {
    const Comm& comm = weights_.layout().comm();
    if (comm.world() == 1) return;
    const CommRange range("sum the loss", comm, stream);
    comm.all_reduce(loss_sums_ + which, 1, ReduceOp::sum, loss_workspace_, stream);
    comm.all_reduce(loss_counts_ + which, 1, ReduceOp::sum, loss_workspace_, stream);
}

template <class Real>
void Transformer<Real>::evaluate(const int* tokens, const int* targets, stream_t stream) {
    forget_rows();
    const Pass evaluation = pass(PassKind::evaluation, setup_.batch, setup_.seq, stream);
    upload({tokens, targets}, evaluation);
    forward(evaluation);
    loss_and_head_gradients(0.0f, nullptr, evaluation);
    sum_losses(loss_sums_ + 1, loss_counts_ + 1, losses_, targets_, evaluation.N, false, stream);
}

template <class Real>
std::vector<Real> Transformer<Real>::evaluated_logits(int row, int rows, stream_t stream) {
    const UnitInUse<Real> unit(weights_, head_unit_, stream);
    LayerPass chunk = pass(PassKind::evaluation, setup_.batch, setup_.seq, stream);
    chunk.N = rows;
    head_.forward(logits_, head_.input(lnf_ + static_cast<size_t>(row) * context_.C(), nullptr, chunk), chunk);
    return read_back(logits_, static_cast<size_t>(rows) * config().padded_vocab(), stream);
}

// ---- decoding -------------------------------------------------------------------------------------------------------

// Runs rows first to end - 1 of a sequence, whose tokens from `first` on are uploaded: piece by piece through one block
// after the other, to residual_final_.
template <class Real>
void Transformer<Real>::decode(int first, int end, stream_t stream) {
    // The last piece may reach past the context, where positions have no embedding.
    const int positions = std::min(end, config().context) - first;
    {
        const UnitInUse<Real> unit(weights_, embedding_unit(), stream);
        embed(first, positions, pass(PassKind::evaluation, 1, end - first, stream));
    }
    for (int l = 0; l < config().layers; l++) {
        const UnitInUse<Real> unit(weights_, block_unit(l), stream);
        for (int row = first; row < end; row = piece_end(row))
            blocks_[l]->decode(output_of_block(l), row, pass(PassKind::evaluation, 1, piece_end(row) - row, stream));
    }
}

template <class Real>
std::vector<NamedMemory> Transformer<Real>::activations() const {
    const size_t bytes = context_.N() * context_.C() * sizeof(Real);
    std::vector<NamedMemory> activations;
    for (const Unit& unit : weights_.table().units()) {
        const size_t next = activations.size();  // the block that reads this unit's output
        const void* output = output_of_block(static_cast<int>(next) - 1);
        if (next < blocks_.size() && offloaded_.is_used()) output = offloaded_.kept(next);
        activations.push_back({"output of " + unit.name, output, bytes});
    }
    activations.back().address = lnf_;
    activations.push_back({"losses", losses_, context_.N() * sizeof(float)});
    return activations;
}

template <class Real>
std::vector<float> Transformer<Real>::next_token_logits(const int* tokens, int length, stream_t stream) {
    if (length < 1 || length > most_tokens())
        throw Error(ExitCode::failure, "cannot run {} tokens through a context of {} ({} reserved)", length,
                    config().context, setup_.N());
    const auto known = std::mismatch(decoded_.begin(), decoded_.end(), tokens, tokens + length).first;
    const int usable = std::min(static_cast<int>(known - decoded_.begin()), length - 1);
    int first = 0, last = 0;  // the first piece to compute, and the piece of the last token
    while (piece_end(first) <= usable) first = piece_end(first);
    while (piece_end(last) < length) last = piece_end(last);
    const int end = piece_end(last);
    std::vector<int> padded(tokens + first, tokens + length);
    padded.resize(static_cast<size_t>(end - first), 0);
    decoded_.clear();
    upload({padded.data(), nullptr}, pass(PassKind::evaluation, 1, end - first, stream));
    decode(first, end, stream);
    if (blocks_.front()->keeps_rows()) decoded_.assign(tokens, tokens + length);

    const size_t begin = static_cast<size_t>(last) * context_.C();
    {
        const UnitInUse<Real> unit(weights_, final_unit(config()), stream);
        final_norm_.forward(lnf_, residual_final_ + begin, pass(PassKind::evaluation, 1, end - last, stream));
    }
    {
        const UnitInUse<Real> unit(weights_, head_unit_, stream);
        matmul_.template forward<Real>(logits_, lnf_ + static_cast<size_t>(length - 1 - last) * context_.C(),
                                       weights_.weight(head_.weight_place()), nullptr, 1, config().channels,
                                       config().padded_vocab(), stream);
    }
    const float cap = static_cast<float>(config().logit_cap);
    std::vector<float> logits;
    for (const Real x : read_back(logits_, static_cast<size_t>(config().vocab), stream))
        logits.push_back(cap > 0 ? cap * std::tanh(to_float(x) / cap) : to_float(x));
    return logits;
}

template class Transformer<float>;
template class Transformer<bf16>;

}  // namespace llmc
