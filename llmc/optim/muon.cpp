// Muon's plan, its Newton-Schulz iteration and its rounds.
#include "llmc/optim/muon.h"

#include <algorithm>
#include <utility>

namespace llmc {

// ---- the plan -------------------------------------------------------------------------------------------------------

constexpr size_t kAlignment = 8;  // in elements: 16 bytes in bf16, which vector loads need

static void add_matrices(std::vector<MuonMatrix>& matrices, const ParameterTable& table, size_t unit, size_t tensor) {
    const ParameterTensor& info = table.unit(unit).tensors[tensor];
    const int columns = info.shape[1];
    const std::vector<int> rows = info.matrix_rows.empty() ? std::vector<int>{info.shape[0]} : info.matrix_rows;
    size_t begin = info.offset;
    for (const int n : rows) {
        matrices.push_back({unit, tensor, begin, n, columns});
        if (n < 1 || begin % kAlignment != 0)
            refuse(
                "--optimizer muon: {} has a matrix of {} rows that begins at element {}, which is not a multiple of {}",
                info.name, n, begin - info.offset, kAlignment);
        begin = matrices.back().end();
    }
    if (begin != info.offset + info.count())
        throw Error(ExitCode::failure, info.name + ": its matrices do not add up to its rows");
}

size_t muon_elements(const ParameterTable& table, size_t unit) {
    const bool is_block = unit > 0 && unit + 1 < table.units().size();
    return is_block ? table.unit(unit).decay_count : 0;
}

std::vector<MuonMatrix> plan_muon(const ParameterTable& table, int ranks) {
    std::vector<MuonMatrix> matrices;
    for (size_t u = 0; u < table.units().size(); u++)
        for (size_t t = 0; t < table.unit(u).tensors.size(); t++)
            if (muon_elements(table, u) > 0 && table.unit(u).tensors[t].decay) add_matrices(matrices, table, u, t);

    const size_t blocks = (static_cast<size_t>(ranks) + 1) / 2;
    for (MuonMatrix& matrix : matrices) matrix.round = (matrix.unit - 1) / blocks;
    std::vector<MuonMatrix*> by_work;
    for (MuonMatrix& matrix : matrices) by_work.push_back(&matrix);
    std::stable_sort(by_work.begin(), by_work.end(), [](const MuonMatrix* a, const MuonMatrix* b) {
        return a->round != b->round ? a->round < b->round : a->flops_of_a_step() > b->flops_of_a_step();
    });
    std::vector<double> load;
    for (size_t i = 0; i < by_work.size(); i++) {
        if (i == 0 || by_work[i]->round != by_work[i - 1]->round) load.assign(static_cast<size_t>(ranks), 0.0);
        const auto least = std::min_element(load.begin(), load.end());
        by_work[i]->owner = static_cast<int>(least - load.begin());
        *least += by_work[i]->flops_of_a_step();
    }
    return matrices;
}

// One line per matrix with its round and owner.
static std::string describe(const std::vector<MuonMatrix>& matrices) {
    std::string text;
    for (const MuonMatrix& m : matrices)
        text += fmt::format("unit {} element {}, {} x {}, round {} on rank {}\n", m.unit, m.begin, m.rows, m.columns,
                            m.round, m.owner);
    return text;
}

// ---- Newton-Schulz iteration ----------------------------------------------------------------------------------------

template <class Real>
NewtonSchulz<Real>::NewtonSchulz(NewtonSchulzSteps steps, std::vector<Matmul::LinearShape> shapes)
    : steps_(std::move(steps)), shapes_(std::move(shapes)) {}

template <class Real>
std::vector<Product> NewtonSchulz<Real>::products(int m, int n) {
    constexpr OperandType type = operand_type<Real>;
    return {{Product::forward, type, m, n, m, false, false},
            {Product::dgrad, type, m, m, m, false, false},
            {Product::dgrad, type, m, n, m, false, false}};
}

template <class Real>
void NewtonSchulz<Real>::plan(Arena& arena) {
    size_t whole = 0, square = 0;
    for (const Matmul::LinearShape& s : shapes_) {
        whole = std::max(whole, static_cast<size_t>(s.N) * static_cast<size_t>(s.C));
        square = std::max(square, static_cast<size_t>(s.N) * static_cast<size_t>(s.N));
    }
    for (Real** matrix : {&x_, &next_}) arena.plan(matrix, whole);
    for (Real** matrix : {&a_, &polynomial_}) arena.plan(matrix, square);
}

template <class Real>
Real* NewtonSchulz<Real>::run(Matmul& matmul, int m, int n, stream_t stream) const {
    const std::vector<Product> product = products(m, n);
    Real *x = x_, *next = next_;
    const auto combined = [](Real* result, const Real* first, const Real* second, const Real* addend, double factor,
                             double addend_factor) {
        return ProductTensors{.result = result,
                              .first = first,
                              .second = second,
                              .addend = addend,
                              .factor = static_cast<float>(factor),
                              .addend_factor = static_cast<float>(addend_factor)};
    };
    for (const NewtonSchulzStep& step : steps_.steps) {
        matmul.multiply(product[0], {a_, x, x}, stream);                                         // A = X X^T
        matmul.multiply(product[1], combined(polynomial_, a_, a_, a_, step.c, step.b), stream);  // B = bA + cAA
        matmul.multiply(product[2], combined(next, polynomial_, x, x, 1, step.a), stream);       // aX + BX
        std::swap(x, next);
    }
    return x;
}

template class NewtonSchulz<float>;
template class NewtonSchulz<bf16>;

// ---- rounds: momentum, exchange of matrices, Newton-Schulz, exchange back, update -----------------------------------

constexpr size_t kNone = ~size_t{0};

// The elements that a piece occupies in a message: each piece begins at a multiple of 16 bytes.
static size_t padded(size_t count) { return round_up(count, kAlignment); }

template <class Real>
static std::vector<Matmul::LinearShape> shapes_of(const std::vector<MuonMatrix>& matrices) {
    std::vector<Matmul::LinearShape> shapes;
    for (const MuonMatrix& m : matrices) {
        const Matmul::LinearShape shape = NewtonSchulz<Real>::shape(m.smaller(), m.larger());
        if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    }
    return shapes;
}

static std::vector<size_t> in_bytes(std::vector<size_t> elements, size_t element) {
    for (size_t& n : elements) n *= element;
    return elements;
}

// ---- plan of the exchanges, and memory ------------------------------------------------------------------------------

template <class Real>
Muon<Real>::Muon(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const OptimizerConfig& config)
    : weights_(weights),
      gradients_(gradients),
      matmul_(matmul),
      config_(config),
      layout_(weights.layout()),
      ranks_(layout_.group_size()),
      rank_(static_cast<size_t>(layout_.comm().rank()) % ranks_),
      matrices_(plan_muon(layout_.table(), static_cast<int>(ranks_))),
      shapes_(shapes_of<Real>(matrices_)),
      newton_schulz_(newton_schulz_steps(config.muon_ns), shapes_),
      second_at_(matrices_.size(), kNone) {
    if (matrices_.empty()) refuse("--optimizer muon: the model has no matrices in its blocks");
    plan_rounds();
    plan_memory();
}

// Calls visit(rank, piece) for every rank that holds a part of a matrix.
template <class Real>
template <class Visit>
void Muon<Real>::for_each_holder(size_t matrix, Visit&& visit) const {
    const MuonMatrix& m = matrices_[matrix];
    const size_t slice = layout_.slice(m.unit).count;
    if (!layout_.is_sliced())
        for (size_t rank = 0; rank < ranks_; rank++) visit(rank, Piece{matrix, m.begin, m.count()});
    for (size_t rank = m.begin / slice; layout_.is_sliced() && rank * slice < m.end(); rank++) {
        const size_t begin = std::max(m.begin, rank * slice), end = std::min(m.end(), (rank + 1) * slice);
        visit(rank, Piece{matrix, begin, end - begin});
    }
}

template <class Real>
void Muon<Real>::plan_rounds() {
    rounds_.resize(matrices_.back().round + 1);
    std::vector<std::vector<Piece>> held(ranks_), owned(ranks_);  // the pieces of a round, by owner and by holder
    for (size_t i = 0; i < matrices_.size(); i++) {
        const MuonMatrix& m = matrices_[i];
        const size_t owner = static_cast<size_t>(m.owner);
        Round& round = rounds_[m.round];
        if (owner == rank_) round.matrices.push_back(i);
        for_each_holder(i, [&](size_t rank, const Piece& piece) {
            if (rank == rank_) held[owner].push_back(piece);
            if (owner == rank_ && exchanges()) owned[rank].push_back(piece);
        });
        if (i + 1 < matrices_.size() && matrices_[i + 1].round == m.round) continue;
        const auto join = [](std::vector<std::vector<Piece>>& parts, std::vector<Piece>& all,
                             std::vector<size_t>& sizes) {
            size_t place = 0;
            for (std::vector<Piece>& part : parts) {
                const size_t begin = place;
                for (Piece& piece : part) {
                    piece.place = place;
                    place += padded(piece.count);
                    all.push_back(piece);
                }
                sizes.push_back(place - begin);
                part.clear();
            }
        };
        join(held, round.held, round.to_owner);
        join(owned, round.owned, round.to_holder);
    }
}

template <class Real>
void Muon<Real>::plan_memory() {
    size_t held = 0, owned = 0, largest = 0, longest = 0;
    for (const MuonMatrix& m : matrices_) {
        largest = std::max(largest, m.count());
        longest = std::max(longest, static_cast<size_t>(m.larger()));
    }
    std::vector<size_t> lines(ranks_);  // by owner
    for (size_t i = 0; i < matrices_.size(); i++) {
        size_t& count = lines[matrices_[i].owner];
        if (static_cast<size_t>(matrices_[i].owner) == rank_) second_at_[i] = count;
        count += static_cast<size_t>(matrices_[i].larger());
    }
    // Every rank plans for the needs of the rank with the most, so that all plan the same.
    std::vector<size_t> in_slices(ranks_), in_matrices(ranks_);  // of a round
    for (size_t i = 0; i < matrices_.size(); i++) {
        if (i == 0 || matrices_[i].round != matrices_[i - 1].round)
            for (std::vector<size_t>* sizes : {&in_slices, &in_matrices}) sizes->assign(ranks_, 0);
        for_each_holder(i, [&](size_t rank, const Piece& piece) {
            size_t& whole = in_matrices[matrices_[i].owner];
            held = std::max(held, in_slices[rank] += padded(piece.count));
            owned = std::max(owned, whole += padded(piece.count));
        });
    }
    arena_.plan(&held_, held);
    if (exchanges()) {
        arena_.plan(&owned_, owned);
        arena_.plan(&whole_, largest);
    }
    newton_schulz_.plan(arena_);
    arena_.plan(&partials_, muon_norm_blocks(largest));
    arena_.plan(&inverse_norm_, 1);
    if (config_.kind != OptimizerKind::normuon) return;
    for (float** numbers : {&factors_, &squares_}) arena_.plan(numbers, longest);
    state_arena_.plan(&second_, *std::max_element(lines.begin(), lines.end()));
}

template <class Real>
std::vector<Product> Muon<Real>::products() const {
    std::vector<Product> all;
    for (const Matmul::LinearShape& shape : shapes_)
        for (const Product& product : NewtonSchulz<Real>::products(shape.N, shape.C)) all.push_back(product);
    return all;
}

template <class Real>
void Muon<Real>::allocate(stream_t stream) {
    arena_.allocate();
    for (const Matmul::LinearShape& shape : shapes_) matmul_.reserve(shape);
    if (state_arena_.bytes() > 0) {
        state_arena_.allocate();
        set_bytes(second_, 0, state_arena_.bytes(), stream);
    }
    if (layout_.comm().world() == 1) return;
    comm_ = layout_.comm().neighbours(static_cast<int>(ranks_), "optimizer");
    layout_.comm().require_equal("division of Muon's work", describe(matrices_));
}

// ---- a step --------------------------------------------------------------------------------------------------------

template <class Real>
void Muon<Real>::update(const OptimizerMoments& moments, size_t moment, StateRing& ring, const StepState* state,
                        stream_t stream) {
    for (const Round& round : rounds_) {
        find_directions(round, moments, moment, ring, state, stream);
        orthogonalize(round, state, stream);
        return_directions(round, stream);
        apply(round, ring, state, stream);
    }
}

template <class Real>
void Muon<Real>::find_directions(const Round& round, const OptimizerMoments& moments, size_t moment, StateRing& ring,
                                 const StepState* state, stream_t stream) {
    {
        const ProfileRange range("momentum", stream);
        for (const Piece& piece : round.held) {
            const size_t unit = matrices_[piece.matrix].unit;
            const StateArray gradient = gradients_.slice(unit).from(piece.begin - layout_.slice(unit).begin);
            ring.update({moments.at(moment, unit, piece.begin)}, piece.count, stream,
                        [&](const StateRing::Slice& slice) {
                            muon_momentum(slice[0].template as<float>(), held_ + piece.place + slice.begin,
                                          gradient.from(slice.begin), slice.count, config_.muon_momentum(),
                                          config_.uses_nesterov(), state, stream);
                        });
        }
    }
    if (!exchanges()) return;
    const CommRange range("directions to owners", comm_, stream);
    comm_.all_to_all_v(owned_, in_bytes(round.to_holder, sizeof(Real)), held_, in_bytes(round.to_owner, sizeof(Real)),
                       stream);
}

template <class Real>
void Muon<Real>::orthogonalize(const Round& round, const StepState* state, stream_t stream) {
    const ProfileRange range("orthogonalize", stream);
    for (const size_t matrix : round.matrices) {
        if (!exchanges()) {
            const auto is_whole = [&](const Piece& piece) { return piece.matrix == matrix; };
            const auto whole = std::find_if(round.held.begin(), round.held.end(), is_whole);
            orthogonalize(matrix, held_ + whole->place, state, stream);
            continue;
        }
        const auto copy_pieces = [&](bool back) {
            for (const Piece& piece : round.owned) {
                if (piece.matrix != matrix) continue;
                Real* const in_matrix = whole_ + piece.begin - matrices_[matrix].begin;
                Real* const own = owned_ + piece.place;
                copy_on_device(back ? own : in_matrix, back ? in_matrix : own, piece.count * sizeof(Real), stream);
            }
        };
        copy_pieces(false);
        orthogonalize(matrix, whole_, state, stream);
        copy_pieces(true);
    }
}

// Works in place. X is never taller than wide, so NorMuon's lines are rows or columns of the matrix.
template <class Real>
void Muon<Real>::orthogonalize(size_t matrix, Real* values, const StepState* state, stream_t stream) {
    const MuonMatrix& m = matrices_[matrix];
    const bool transposed = m.rows > m.columns;
    const int rows = m.smaller(), columns = m.larger();
    muon_inverse_norm(inverse_norm_, partials_, values, m.count(), newton_schulz_.safety(), stream);
    copy_matrix(newton_schulz_.input(), values, m.rows, m.columns, transposed, inverse_norm_, FactorOf::matrix, stream);
    const Real* const x = newton_schulz_.run(matmul_, rows, columns, stream);
    FactorOf factor_of = FactorOf::none;
    if (config_.kind == OptimizerKind::normuon) {
        const bool lines_are_rows = m.rows == m.columns;
        normuon_factors(factors_, second_ + second_at_[matrix], squares_, x, rows, columns, lines_are_rows,
                        config_.normuon_beta2, state, stream);
        factor_of = lines_are_rows ? FactorOf::row : FactorOf::column;
    }
    copy_matrix(values, x, rows, columns, transposed, factors_, factor_of, stream);
}

template <class Real>
void Muon<Real>::return_directions(const Round& round, stream_t stream) {
    if (ranks_ == 1) return;
    const CommRange range("directions back", comm_, stream);
    if (exchanges()) {
        comm_.all_to_all_v(held_, in_bytes(round.to_owner, sizeof(Real)), owned_,
                           in_bytes(round.to_holder, sizeof(Real)), stream);
        return;
    }
    const Comm::Group group(comm_);
    size_t at = 0;
    for (size_t owner = 0; owner < ranks_; owner++) {
        comm_.broadcast(held_ + at, round.to_owner[owner] * sizeof(Real), static_cast<int>(owner), stream);
        at += round.to_owner[owner];
    }
}

template <class Real>
void Muon<Real>::apply(const Round& round, StateRing& ring, const StepState* state, stream_t stream) {
    const ProfileRange profile("update matrices", stream);
    for (const Piece& piece : round.held) {
        const MuonMatrix& m = matrices_[piece.matrix];
        const size_t begin = piece.begin - layout_.slice(m.unit).begin;
        Fp8State* const fp8 = weights_.fp8_state(m.unit, m.tensor);
        const MuonUpdate update{muon_scale(config_.muon_scale, m.rows, m.columns), config_.weight_decay,
                                config_.cautious_decay};
        ring.update({weights_.slice(m.unit, begin).master}, piece.count, stream, [&](const StateRing::Slice& slice) {
            muon_update(slice[0], weights_.slice(m.unit, begin + slice.begin).working, fp8,
                        held_ + piece.place + slice.begin, slice.count, update, state, stream,
                        config_.rounding(m.unit, piece.begin + slice.begin));
        });
    }
}

// ---- queries -------------------------------------------------------------------------------------------------------

template <class Real>
typename Muon<Real>::Sent Muon<Real>::sent_in_step() const {
    Sent sent;
    if (ranks_ == 1) return sent;
    double bytes = 0;
    for (size_t i = 0; i < matrices_.size(); i++)
        for_each_holder(i, [&](size_t rank, const Piece& piece) {
            if (rank != static_cast<size_t>(matrices_[i].owner))
                bytes += static_cast<double>(padded(piece.count) * sizeof(Real));
        });
    const double calls = exchanges() ? 2 : static_cast<double>(ranks_);  // there and back, or once from every owner
    sent.calls = calls * static_cast<double>(rounds_.size());
    sent.bytes = (exchanges() ? 2 : 1) * bytes / static_cast<double>(ranks_);
    return sent;
}

template <class Real>
std::vector<typename Muon<Real>::SecondMoments> Muon<Real>::second_moments() const {
    std::vector<SecondMoments> all;
    if (config_.kind != OptimizerKind::normuon) return all;
    for (size_t i = 0, of_tensor = 0; i < matrices_.size(); i++) {
        const MuonMatrix& m = matrices_[i];
        of_tensor = i > 0 && matrices_[i - 1].unit == m.unit && matrices_[i - 1].tensor == m.tensor ? of_tensor + 1 : 0;
        all.push_back({layout_.table().unit(m.unit).tensors[m.tensor].name + ".lines." + std::to_string(of_tensor),
                       static_cast<size_t>(m.larger()), second_at_[i] == kNone ? nullptr : second_ + second_at_[i]});
    }
    return all;
}

template class Muon<float>;
template class Muon<bf16>;

}  // namespace llmc
