// Silent corruption: a card, a memory or a link that gives wrong bits and says nothing (arXiv 2102.11245; 2407.21783
// counts six such interruptions in 54 days of 16384 GPUs). Every so many steps checksums of what must have the same
// bits are taken twice and compared on the host, with the step's results:
//
//   state        masters and moments   after the optimizer of the step before, and before that of this step
//   weights      working copies        in memory, and made again from the masters
//   activations  the stream behind every unit, and the losses ...
//   gradients    ... each rank's own, before they travel ...
//   sums         ... and as far as the first micro-step sums them: when it is made, and when it is made again
//   totals       the step's gradients  on all ranks, where all have them
//
// State and weights that all ranks hold are compared over the ranks as well. In this order, which is that of causes,
// the first difference is the one that is named.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/named_memory.h"
#include "llmc/train/step_results.h"

namespace llmc {

enum class Verified { state, weights, activations, gradients, sums, totals };
constexpr size_t kVerifiedKinds = 6;

class Verification {
public:
    // At most so many checksums a step, and so many FP8 tensors.
    Verification(const Comm& comm, size_t checksums, size_t fp8_tensors);
    ~Verification();
    Verification(const Verification&) = delete;
    Verification& operator=(const Verification&) = delete;

    size_t bytes() const { return arena_.bytes(); }
    void allocate();

    // begin() comes before a step's first checksum, end() after its last and before StepResults::submit(). A step's
    // state is first seen at the end of the step before.
    void begin(stream_t stream);
    bool has_begun() const { return begun_ > ended_; }
    void drop() { begun_ = ended_; }
    void end(int64_t step, stream_t stream);
    // After the device has come to submit(), on all ranks: what was found in the oldest step that has not been asked
    // for, if it is this one.
    std::optional<VerifiedStep> take(int64_t step);

    // Takes a checksum. Each rank gives the same names in the same order, the second time (`again`) as well, which may
    // be the only one. `everywhere`: all ranks have the same bits then.
    void see(Verified kind, bool again, const NamedMemory& memory, bool everywhere, stream_t stream);

    // Work of the stream while it lives counts as the verification's time.
    class Timed {
    public:
        Timed(Verification& verification, stream_t stream) : end_(verification.begin_span(stream)), stream_(stream) {}
        ~Timed() {
            tear_down([this] { record(end_, stream_); });
        }
        Timed(const Timed&) = delete;
        Timed& operator=(const Timed&) = delete;

    private:
        const event_t end_;
        const stream_t stream_;
    };

    Fp8State* fp8_aside() { return fp8_aside_; }

private:
    static constexpr size_t kRounds = 3;  // steps at once: two whose results are waiting, and one that has begun
    static constexpr size_t kSpans = 4;   // times that a round is Timed
    struct Pair {
        uint64_t first, second;
    };
    struct Row {
        std::string name;
        size_t index;
        bool twice = false, everywhere = false;
    };
    struct Span {
        event_t begin = nullptr, end = nullptr;
    };
    struct Round {
        int64_t step = 0;
        Pair *device = nullptr, *host = nullptr;  // (capacity_); pinned
        std::array<std::vector<Row>, kVerifiedKinds> rows;
        std::array<size_t, kVerifiedKinds> seen_again{};  // rows of each kind
        size_t count = 0;                                 // rows of all kinds
        Span spans[kSpans];
        size_t timed = 0;
    };
    Round& current() { return rounds_[static_cast<size_t>(begun_ - 1) % kRounds]; }
    Row& row_of(Verified kind, bool again, const std::string& name);
    event_t begin_span(stream_t stream);
    std::string difference_in(const Round& round) const;
    std::string find(Verified kind, const Row& row, const std::vector<Pair>& all, size_t count) const;
    std::string rank_and_card(int rank) const;

    const Comm comm_;
    const size_t capacity_;
    Arena arena_{MemoryKind::workspace};
    Round rounds_[kRounds];
    int64_t begun_ = 0, ended_ = 0, taken_ = 0;
    Fp8State* fp8_aside_ = nullptr;
};

}  // namespace llmc
