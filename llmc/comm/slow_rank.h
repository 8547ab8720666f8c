// Finds the rank that slows a run down. All ranks wait for the slowest one in every step, so the step's time does not
// tell which it is. The time that each rank spends on work of its own does.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// The time of one rank's step, in milliseconds.
struct RankTime {
    float ms = 0;        // the whole step, much the same on all ranks
    float peers_ms = 0;  // waiting for other ranks, with the transfers (llmc/comm/peer_waits.h)
    float data_ms = 0;   // waiting for the prefetch thread; part of the rank's own time
};

// The rank with the longest time of its own (ms - peers_ms) in a step.
struct SlowestRank {
    int rank = 0;
    double own_ms = 0, data_ms = 0;  // that rank's own work, and the part of it that is waiting for data
    double others_ms = 0;            // median of the other ranks' own times
    double peers_ms = 0;             // median over all ranks of the time waiting for others
    double ratio() const { return others_ms > 0 ? own_ms / others_ms : 1; }
    // At least half of what it takes longer is time waiting for data.
    bool waits_for_data() const { return 2 * data_ms >= own_ms - others_ms && data_ms > 0; }
};
SlowestRank slowest_rank(const std::vector<RankTime>& ranks);  // needs at least two ranks

// A rank stands out whose own time is kSlowRatio times the others'. Below that, ranks of healthy clusters differ too:
// by their cards' clocks, and by what else their hosts do. It is slow once it has stood out in kSlowSteps steps in a
// row, because a single slow step has many causes, such as a busy file system. It stays slow until for as many steps no
// rank, or another one, has stood out.
class SlowRankWatch {
public:
    static constexpr double kSlowRatio = 1.2;
    static constexpr int kSlowSteps = 5;

    enum class Change { none, begins, ends };
    Change observe(const SlowestRank& step);

private:
    static constexpr int kNone = -1;
    int outstanding_ = kNone, steps_ = 0;  // the rank that stood out in the last steps
    int slow_ = kNone;
};

// "step 118: rank 3 on node7 (NVIDIA H100, ...) is slow: 131 ms of work of its own, 1.35 times ..."
std::string format_slow_rank(int64_t step, const SlowestRank& slowest, const std::string& rank);

}  // namespace llmc
