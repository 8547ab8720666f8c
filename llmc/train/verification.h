// --verify-every: finds silent corruption, that is a GPU, memory or link that returns wrong bits without an error
// (arXiv 2102.11245; Llama 3, arXiv 2407.21783, counts six such interruptions in 54 days on 16384 GPUs). In a verified
// step, checksums of everything that must have the same bits twice are taken twice and compared on the host:
//
//   state        masters and moments   after the previous step's optimizer, and before this step's
//   weights      working copies        in memory, and made again from the masters
//   activations  every unit's output   in the first micro-step and in its repetition, with the losses
//   gradients    each rank's own       the same, before they are reduced
//   sums         reduced gradients     the same
//   totals       gradients of a step   before the optimizer; only compared between ranks that all hold them
//
// State and weights that every rank holds are also compared between ranks. A difference is reported for the first kind
// in this order, because an error in one kind causes errors in those below it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/device/owned.h"
#include "llmc/shard/arena.h"
#include "llmc/train/step_results.h"

namespace llmc {

template <class Real>
class Trainer;

enum class Verified { state, weights, activations, gradients, sums, totals };
constexpr size_t kVerifiedKinds = 6;

// The checksums of verified steps: on the device as they are taken, then copied to the host, then compared.
class StepChecksums {
public:
    // `most` checksums per step. All memory is planned here and allocated in allocate().
    StepChecksums(const Comm& comm, size_t most);

    size_t bytes() const { return arena_.bytes(); }
    void allocate();

    // begin() precedes a step's first checksum. end() follows its last one and precedes StepResults::submit(). The
    // state of a step is first seen at the end of the previous step, so begin() belongs there.
    void begin(stream_t stream);
    bool has_begun() const { return begun_ > ended_; }
    void cancel() { begun_ = ended_; }
    void end(int64_t step, stream_t stream);
    // The oldest result not taken yet, if it is this step's. The device must have passed submit(). A collective.
    std::optional<VerifiedStep> take(int64_t step);

    // Takes the first checksum of the memory, or with `again` the second. Every rank gives the same names in the same
    // order both times. A kind may also have second checksums only. `everywhere`: all ranks must have the same bits.
    void see(Verified kind, bool again, const NamedMemory& memory, bool everywhere, stream_t stream);

    // Counts the stream's work during the lifetime of the object that it returns as time spent on verification.
    [[nodiscard]] auto timed(stream_t stream) {
        return AtScopeEnd([stream, end = begin_span(stream)] { record(end, stream); });
    }

private:
    static constexpr size_t kRounds = 3;  // steps in flight: two with results on their way, and one that has begun
    static constexpr size_t kSpans = 4;   // timed() scopes per step
    struct Pair {
        uint64_t first, second;
    };
    struct Row {
        std::string name;
        size_t index;
        bool twice = false, everywhere = false;
    };
    struct Span {
        OwnedEvent begin, end;
    };
    struct Round {
        int64_t step = 0;
        Pair* device = nullptr;  // (most_)
        Pinned<Pair> host;       // (most_)
        std::array<std::vector<Row>, kVerifiedKinds> rows;
        std::array<size_t, kVerifiedKinds> seen_again{};  // number of rows with a second checksum
        size_t count = 0;                                 // number of rows of all kinds
        Span spans[kSpans];
        size_t timed = 0;
    };
    Round& current() { return rounds_[static_cast<size_t>(begun_ - 1) % kRounds]; }
    Row& row_of(Verified kind, bool again, const std::string& name);
    event_t begin_span(stream_t stream);
    std::string difference_in(const Round& round) const;
    std::string find(Verified kind, const Row& row, const std::vector<Pair>& all, size_t count) const;

    const Comm comm_;
    const size_t most_;
    Arena arena_{MemoryKind::workspace};
    Round rounds_[kRounds];
    int64_t begun_ = 0, ended_ = 0, taken_ = 0;
};

// Takes the checksums of a trainer's verified steps. The trainer calls it at the points of a step that its methods
// name.
template <class Real>
class Verification {
public:
    explicit Verification(Trainer<Real>& trainer);

    size_t bytes() const { return checksums_.bytes() + arena_.bytes(); }
    void allocate() {
        checksums_.allocate();
        arena_.allocate();
    }

    bool is_due(int64_t step) const { return step % trainer_.config().verify_every == 0; }
    // Before `step`, right after the previous step if there is one: takes the state's first checksums if it is due.
    void prepare(int64_t step);
    // The state was set from outside; checksums taken by prepare() no longer apply.
    void forget_state() { checksums_.cancel(); }
    // Runs the first micro-step of a verified step twice. The first run leaves no trace.
    void run_twice(const std::function<void()>& micro_step);
    // When the gradients of `step` are complete: takes the last checksums if it is due.
    void before_optimizer(int64_t step);
    // See StepChecksums.
    std::optional<VerifiedStep> take(int64_t step) { return checksums_.take(step); }

private:
    void see(Verified kind, bool again, const NamedMemory& memory, bool everywhere) {
        checksums_.see(kind, again, memory, everywhere, trainer_.stream());
    }
    void see_state(bool again);
    void see_weights(bool again);
    void see_results(bool again);
    void see_gradient_slices(Verified kind, bool again);
    void run(bool again, const std::function<void()>& micro_step);

    Trainer<Real>& trainer_;
    StepChecksums checksums_;
    Arena arena_{MemoryKind::workspace};
    Fp8State* fp8_states_ = nullptr;  // as they were before the first run
};

}  // namespace llmc
