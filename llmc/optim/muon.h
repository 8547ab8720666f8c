// Muon (Jordan et al., https://kellerjordan.github.io/posts/muon; arXiv 2502.16982) and NorMuon (arXiv 2510.05491) on
// the ranks' slices of the parameters:
//
//   momentum       in the slice, element by element: U, in the type of the activations
//   exchange       U goes to the rank that owns each matrix; not needed if every rank holds everything
//   orthogonalize  owners turn whole matrices into O, one at a time
//   exchange       O goes back to the ranks that hold parts of it
//   update         in the slice
//
// A matrix's bits depend on neither ranks nor slices: momentum and update work element by element, Newton-Schulz sees
// the whole matrix, and the exchange sends values that are already BF16 (FP32 in FP32 runs). With --shard-within, every
// group repeats the work.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/linear/matmul.h"
#include "llmc/optim/config.h"
#include "llmc/optim/state.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/gradients.h"
#include "llmc/shard/layout.h"
#include "llmc/shard/weights.h"

namespace llmc {

// ---- the plan: which matrices, in which round, on which rank --------------------------------------------------------
// It depends only on the model's table and the number of ranks that share the work, so every rank makes the same plan.

// A matrix, contiguous and row-major in its unit: a tensor, or some of its rows.
struct MuonMatrix {
    size_t unit, tensor;
    size_t begin;  // in the unit
    int rows, columns;
    size_t round = 0;
    int owner = 0;
    size_t count() const { return static_cast<size_t>(rows) * static_cast<size_t>(columns); }
    size_t end() const { return begin + count(); }
    int smaller() const { return rows < columns ? rows : columns; }
    int larger() const { return rows < columns ? columns : rows; }
    // The FLOPs of one Newton-Schulz step: 4 m^2 n + 2 m^3.
    double flops_of_a_step() const {
        const double m = smaller(), n = larger();
        return 4 * m * m * n + 2 * m * m * m;
    }
};

// Number of elements at the start of a unit that belong to Muon's matrices: in a block those with weight decay, in the
// first and the last unit none.
size_t muon_elements(const ParameterTable& table, size_t unit);

// Returns the matrices in the order of units and tensors. A round covers ceil(ranks / 2) blocks, so that ranks have
// about equal work and buffers stay small. In each round, the matrix with the most work goes to the rank with the least
// work so far; ties go to the lower index.
std::vector<MuonMatrix> plan_muon(const ParameterTable& table, int ranks);

// ---- Newton-Schulz iteration ----------------------------------------------------------------------------------------
// It computes a matrix with the same singular vectors and singular values near 1, using only matrix products.

// Handles matrices (m, n) with m <= n up to a largest size, one at a time, on the stream of `matmul`. Real = bf16:
// products of BF16 operands, summed in FP32 and rounded once together with the addend. Real = float: everything in
// FP32.
template <class Real>
class NewtonSchulz {
public:
    NewtonSchulz(NewtonSchulzSteps steps, std::vector<Matmul::LinearShape> shapes);

    // Shapes (m, n) in the form that Matmul's planning takes, and the products needed for a matrix of that shape.
    static Matmul::LinearShape shape(int m, int n) { return {m, n, m, operand_type<Real>}; }
    static std::vector<Product> products(int m, int n);
    void plan(Arena& arena);

    // The buffer for the input matrix, which must be divided by safety() times its norm. run() returns the address of
    // the result, valid until the next run().
    Real* input() const { return x_; }
    double safety() const { return steps_.safety; }
    Real* run(Matmul& matmul, int m, int n, stream_t stream) const;

private:
    const NewtonSchulzSteps steps_;
    const std::vector<Matmul::LinearShape> shapes_;
    Real *x_ = nullptr, *next_ = nullptr;        // (m, n)
    Real *a_ = nullptr, *polynomial_ = nullptr;  // (m, m)
};

// ---- the optimizer --------------------------------------------------------------------------------------------------

template <class Real>
class Muon {
public:
    Muon(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const OptimizerConfig& config);

    size_t workspace_bytes() const { return arena_.bytes(); }
    size_t state_bytes() const { return state_arena_.bytes(); }  // NorMuon's second moments, on the rank with the most
    const std::vector<Matmul::LinearShape>& shapes() const { return shapes_; }
    std::vector<Product> products() const;
    void allocate(stream_t stream);

    // Updates all matrices. Their momentum is moment number `moment` of `moments`; both pass through `ring`. Changes
    // nothing if state->skip is set.
    void update(const OptimizerMoments& moments, size_t moment, StateRing& ring, const StepState* state,
                stream_t stream);

    // The calls and bytes that a rank sends per step, averaged over the ranks.
    struct Sent {
        double calls = 0, bytes = 0;
    };
    Sent sent_in_step() const;
    const Comm& comm() const { return comm_; }

    // NorMuon's second moments: one number per row or column of a matrix, held by the matrix's owner.
    struct SecondMoments {
        std::string matrix;  // "h.0.qkv.weight.lines.2" is the third matrix of that tensor
        size_t lines;
        float* values;  // nullptr if another rank owns the matrix
    };
    std::vector<SecondMoments> second_moments() const;

private:
    // The part of a matrix that lies in one rank's slice.
    struct Piece {
        size_t matrix;
        size_t begin, count;  // in the unit
        size_t place = 0;     // in held_ or owned_
    };
    // Matrices that are exchanged and orthogonalized together.
    struct Round {
        std::vector<size_t> matrices;             // that this rank owns
        std::vector<Piece> held, owned;           // sorted by owner and by holder, in the order of the messages
        std::vector<size_t> to_owner, to_holder;  // elements for each rank
    };

    bool exchanges() const { return layout_.is_sliced() && ranks_ > 1; }
    template <class Visit>
    void for_each_holder(size_t matrix, Visit&& visit) const;
    void plan_rounds();
    void plan_memory();

    void find_directions(const Round& round, const OptimizerMoments& moments, size_t moment, StateRing& ring,
                         const StepState* state, stream_t stream);
    void orthogonalize(const Round& round, const StepState* state, stream_t stream);
    void orthogonalize(size_t matrix, Real* values, const StepState* state, stream_t stream);
    void return_directions(const Round& round, stream_t stream);
    void apply(const Round& round, StateRing& ring, const StepState* state, stream_t stream);

    Weights<Real>& weights_;
    Gradients& gradients_;
    Matmul& matmul_;
    const OptimizerConfig config_;
    const ShardLayout layout_;
    const size_t ranks_;  // the number of ranks that share the work
    const size_t rank_;
    const std::vector<MuonMatrix> matrices_;
    const std::vector<Matmul::LinearShape> shapes_;
    NewtonSchulz<Real> newton_schulz_;
    std::vector<Round> rounds_;
    Comm comm_ = Comm::self();

    Arena arena_{MemoryKind::workspace}, state_arena_{MemoryKind::optimizer};
    Real *held_ = nullptr, *owned_ = nullptr;  // a round's pieces: first U, then O
    Real* whole_ = nullptr;                    // one matrix
    double* partials_ = nullptr;
    float* inverse_norm_ = nullptr;
    // NorMuon's: second_ for all owned matrices, the others for the lines of one.
    float *second_ = nullptr, *factors_ = nullptr, *squares_ = nullptr;
    std::vector<size_t> second_at_;  // by matrix
};

}  // namespace llmc
