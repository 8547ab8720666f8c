// The known pattern, the operations that it goes through, and the comparison of every byte.
#include "test/kernels/specifications/collectives.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "llmc/comm/agreement.h"
#include "llmc/device/owned.h"
#include "test/kernels/specifications/trial.h"

namespace llmc {
namespace {

constexpr size_t kFew = 1031;  // elements a rank: a prime, so that no kernel's pieces fit

// Element i of a rank's array: a whole number from 0 to 15, which BF16 and E4M3 can hold. Sums over 1000 ranks are
// exact in FP32.
float value_of(int rank, size_t i) { return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 5) % 16); }

std::vector<float> values_of(int rank, size_t begin, size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = value_of(rank, begin + i);
    return values;
}

// The operations of one communicator, on one stream. They are enqueued first; problem() compares the results later.
class Patterns {
public:
    Patterns(const NamedComm& named, size_t count)
        : name_(named.name),
          comm_(named.comm),
          count_(count),
          world_(static_cast<size_t>(comm_.world())),
          mine_(values_of(comm_.rank(), 0, count * world_), stream_),
          gathered_(count * world_, stream_),
          exchanged_(count * world_, stream_),
          uneven_(elements(bytes_between(false)), stream_),
          sent_(values_of(comm_.rank(), 0, count), stream_),
          sum_(count, stream_),
          added_(std::vector<float>(count, 1.0f), stream_),
          added_in_fp8_(std::vector<float>(count, 1.0f), stream_),
          reduced_(values_of(comm_.rank(), 0, count), stream_),
          largest_(std::vector<int32_t>(count, comm_.rank() + 7), stream_),
          workspace_(workspace_bytes(), stream_) {}
    Patterns(const Patterns&) = delete;
    Patterns& operator=(const Patterns&) = delete;

    void enqueue() {
        const size_t bytes = count_ * sizeof(float);
        comm_.all_gather(gathered_, mine_, bytes, stream_);
        comm_.all_to_all(exchanged_, mine_, bytes, stream_);
        comm_.all_to_all_v(uneven_, bytes_between(false), mine_, bytes_between(true), stream_);
        comm_.broadcast(sent_, bytes, comm_.world() - 1, stream_);
        reduce_scatter(sum_, Wire::fp32, false);
        reduce_scatter(added_, Wire::bf16, true);
        reduce_scatter(added_in_fp8_, Wire::fp8, true);
        comm_.all_reduce(reduced_.data(), count_, ReduceOp::sum, workspace_.data(), stream_);
        comm_.all_reduce(largest_.data(), count_, ReduceOp::max, workspace_.data(), stream_);
    }
    // Describes the first operation with a wrong result; "" if all are right.
    std::string problem() const {
        const int rank = comm_.rank(), world = comm_.world();
        std::vector<float> gathered, exchanged, sum(count_);
        for (int r = 0; r < world; r++) {
            const std::vector<float> part = values_of(r, 0, count_),
                                     row = values_of(r, static_cast<size_t>(rank) * count_, count_);
            gathered.insert(gathered.end(), part.begin(), part.end());
            exchanged.insert(exchanged.end(), row.begin(), row.end());
            for (size_t i = 0; i < count_; i++) sum[i] += row[i];
        }
        std::vector<float> added = sum, reduced(count_);
        for (float& value : added) value += 1.0f;
        for (int r = 0; r < world; r++)
            for (size_t i = 0; i < count_; i++) reduced[i] += value_of(r, i);
        std::string text;
        const auto look = [&](const char* operation, const auto& array, const auto& expected) {
            std::string problem = not_equal({"element", {{"", expected.size()}}}, array.read(), expected);
            if (problem.empty()) problem = array.trespass();
            if (text.empty() && !problem.empty()) text = fmt::format("{}: {}", operation, problem);
        };
        look("all_gather", gathered_, gathered);
        look("all_to_all", exchanged_, exchanged);
        look("all_to_all_v", uneven_, uneven());
        look("broadcast", sent_, values_of(world - 1, 0, count_));
        look("reduce_scatter", sum_, sum);
        look("reduce_scatter in bf16, accumulating", added_, added);
        look("reduce_scatter in fp8, accumulating", added_in_fp8_, added);
        look("all_reduce", reduced_, reduced);
        look("all_reduce of maxima", largest_, std::vector<int32_t>(count_, world + 6));
        return text.empty() ? "" : fmt::format("{} over {}: {}", name_, comm_.name(), text);
    }

private:
    // The count that rank `from` sends to `to` in all_to_all_v: nothing, half or all of a row.
    size_t between(int from, int to) const { return count_ * static_cast<size_t>((from + 2 * to) % 3) / 2; }
    std::vector<size_t> bytes_between(bool sent) const {
        std::vector<size_t> sizes;
        for (int r = 0; r < comm_.world(); r++)
            sizes.push_back((sent ? between(comm_.rank(), r) : between(r, comm_.rank())) * sizeof(float));
        return sizes;
    }
    static size_t elements(const std::vector<size_t>& bytes) {
        return std::accumulate(bytes.begin(), bytes.end(), size_t{0}) / sizeof(float);
    }
    std::vector<float> uneven() const {
        std::vector<float> expected;
        for (int from = 0; from < comm_.world(); from++) {
            size_t begin = 0;
            for (int to = 0; to < comm_.rank(); to++) begin += between(from, to);
            const std::vector<float> piece = values_of(from, begin, between(from, comm_.rank()));
            expected.insert(expected.end(), piece.begin(), piece.end());
        }
        return expected;
    }
    void reduce_scatter(GuardedArray<float>& out, Wire wire, bool accumulate) {
        comm_.reduce_scatter(out, mine_, count_, wire, accumulate, workspace_.data(), stream_);
    }
    size_t workspace_bytes() const {
        return std::max({comm_.reduce_scatter_workspace(count_, Wire::fp32, false),
                         comm_.reduce_scatter_workspace(count_, Wire::bf16, true),
                         comm_.reduce_scatter_workspace(count_, Wire::fp8, true),
                         comm_.all_reduce_workspace<float>(count_), comm_.all_reduce_workspace<int32_t>(count_),
                         size_t{1}});
    }

    const std::string name_;
    const Comm comm_;
    const size_t count_, world_;
    const OwnedStream stream_ = create_stream(StreamPriority::communication);
    GuardedArray<float> mine_, gathered_, exchanged_, uneven_, sent_, sum_, added_, added_in_fp8_, reduced_;
    GuardedArray<int32_t> largest_;
    GuardedMemory workspace_;
};

void look_at(const Patterns& patterns, const Comm& world, const char* how) {
    const std::string problem = patterns.problem();
    if (!problem.empty()) throw Error(ExitCode::communication, "on {}, {}{}", world.host(world.rank()), problem, how);
}

}  // namespace

void check_collectives(const std::vector<NamedComm>& comms, const Comm& world) {
    for (const NamedComm& named : comms)
        for (const size_t count : {size_t{1}, kFew}) {
            Patterns patterns(named, count);
            patterns.enqueue();
            do_together(world, [&] { look_at(patterns, world, ""); });
        }
    std::vector<std::unique_ptr<Patterns>> together;
    for (const NamedComm& named : comms) together.push_back(std::make_unique<Patterns>(named, kFew));
    for (const auto& patterns : together) patterns->enqueue();
    do_together(world, [&] {
        for (const auto& patterns : together) look_at(*patterns, world, ", all communicators at once");
    });
}

}  // namespace llmc
