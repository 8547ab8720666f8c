// Every collective against a plain loop over all ranks' data, with odd sizes, on the world and on parts of it.
// build: threads
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "llmc/kernels/elementwise.h"
#include "test/comm/ranks/ranks.h"
#include "test/helpers.h"
#include "test/kernels/specifications/reference_quantize.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The world, its halves if the world is even, its odd and even ranks, and every rank alone.
std::vector<Comm> communicators() {
    std::vector<Comm> all = {world()};
    static const Comm odd_even = world().split(world().rank() % 2, "odd and even ranks");
    static const Comm alone = world().split(world().rank(), "every rank alone");
    static const Comm again = world().split(0, "duplicate");
    all.insert(all.end(), {odd_even, alone, again});
    if (world().world() % 2 == 0) {
        static const Comm pairs = world().neighbours(2, "neighbours"), across = world().counterparts(2, "counterparts");
        all.insert(all.end(), {pairs, across});
    }
    return all;
}

// Runs `function` with the same seed on all ranks, because parts of unequal size draw different numbers of seeds.
template <class Function>
void for_each_communicator(Function function) {
    const uint32_t before = seed();
    uint32_t part = 0;
    for (const Comm& comm : communicators()) {
        seed() = before + 1000 * ++part;
        function(comm);
    }
    seed() = before + 1000 * ++part;
}

template <class T>
std::vector<T> concatenate(const std::vector<std::vector<T>>& parts) {
    std::vector<T> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

// Equal bits, including NaN.
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

float round_to_bf16(float x) { return to_float(to<bf16>(x)); }

// ((r0 + r1) + r2) + ... for element `at`. If `wire` says so, each term is first rounded to BF16.
float sum_by_rank(const std::vector<std::vector<float>>& values, size_t at, Wire wire, const float* start = nullptr) {
    float sum = start ? *start : 0;
    for (size_t r = 0; r < values.size(); r++) {
        const float term = wire == Wire::bf16 ? round_to_bf16(values[r][at]) : values[r][at];
        sum = r || start ? sum + term : term;
    }
    return sum;
}

// True if sums must equal a loop in rank order: on all back-ends except NCCL, and on NCCL with rank order.
bool in_rank_order(const Comm& comm) {
    return comm.reduce_order() == ReduceOrder::rank || std::string(comm.name()) != "nccl";
}

}  // namespace

TEST_CASE("ranks: rank, world and host") {
    const Comm& comm = world();
    std::vector<int> ranks(as_size(comm.world()));
    const int mine = comm.rank();
    comm.host_all_gather(ranks.data(), &mine, sizeof mine);
    for (int r = 0; r < comm.world(); r++) CHECK(ranks[as_size(r)] == r);
    CHECK(comm.local_world() == comm.world());  // the tests run on one machine
    CHECK(comm.local_rank() == comm.rank());
    CHECK(comm.is_main() == (comm.rank() == 0));
    CHECK_FALSE(comm.host(0).empty());
}

TEST_CASE("ranks: all_gather") {
    for_each_communicator([](const Comm& comm) {
        for (const size_t bytes : odd_counts()) {
            CAPTURE(bytes);
            const auto values = random_by_rank<uint8_t>(comm.world(), bytes);
            const auto& mine = values[as_size(comm.rank())];
            DeviceArray<uint8_t> in(mine), out(bytes * as_size(comm.world()));
            comm.all_gather(out, in, bytes, test_stream());
            CHECK(same(out.download(), concatenate(values)));
            CHECK(same(in.download(), mine));

            std::vector<uint8_t> poisoned(out.size(), 0xAB);
            std::copy(mine.begin(), mine.end(), poisoned.begin() + static_cast<long>(bytes * as_size(comm.rank())));
            out.upload(poisoned);
            comm.all_gather(out, out.get() + bytes * as_size(comm.rank()), bytes, test_stream());
            CHECK(same(out.download(), concatenate(values)));
        }
    });
}

TEST_CASE("ranks: all_to_all") {
    for_each_communicator([](const Comm& comm) {
        for (const size_t bytes : odd_counts()) {
            CAPTURE(bytes);
            const size_t ranks = as_size(comm.world()), me = as_size(comm.rank());
            const auto values = random_by_rank<uint8_t>(comm.world(), bytes * ranks);
            DeviceArray<uint8_t> in(values[me]), out(bytes * ranks);
            comm.all_to_all(out, in, bytes, test_stream());
            std::vector<uint8_t> expected;
            for (size_t r = 0; r < ranks; r++)
                for (size_t i = 0; i < bytes; i++) expected.push_back(values[r][me * bytes + i]);
            CHECK(same(out.download(), expected));
        }
    });
}

TEST_CASE("ranks: all_to_all_v") {
    for_each_communicator([](const Comm& comm) {
        for (const size_t unit : odd_counts()) {
            CAPTURE(unit);
            const size_t ranks = as_size(comm.world()), me = as_size(comm.rank());
            // Some pieces are empty.
            const auto bytes = [&](size_t from, size_t to) { return unit * ((from + 2 * to) % 3); };
            std::vector<size_t> send, receive;
            for (size_t r = 0; r < ranks; r++) send.push_back(bytes(me, r)), receive.push_back(bytes(r, me));
            const auto values = random_by_rank<uint8_t>(comm.world(), 2 * unit * ranks);
            std::vector<uint8_t> expected;
            for (size_t r = 0; r < ranks; r++) {
                size_t begin = 0;
                for (size_t to = 0; to < me; to++) begin += bytes(r, to);
                for (size_t i = 0; i < bytes(r, me); i++) expected.push_back(values[r][begin + i]);
            }
            DeviceArray<uint8_t> in(values[me]), out(expected.size());
            const uint64_t before = comm.traffic().all_to_all.bytes;
            comm.all_to_all_v(out, receive, in, send, test_stream());
            CHECK(same(out.download(), expected));
            size_t to_others = 0;
            for (size_t r = 0; r < ranks; r++) to_others += r == me ? 0 : send[r];
            CHECK(comm.traffic().all_to_all.bytes - before == to_others);
            send.push_back(0);
            CHECK_THROWS_AS(comm.all_to_all_v(out, receive, in, send, test_stream()), Error);
        }
    });
}

TEST_CASE("ranks: broadcast, from every rank") {
    for_each_communicator([](const Comm& comm) {
        for (int root = 0; root < comm.world(); root++) {
            const size_t bytes = odd_counts()[as_size(root) % odd_counts().size()] + 3;
            const auto values = random_by_rank<uint8_t>(comm.world(), bytes);
            DeviceArray<uint8_t> data(values[as_size(comm.rank())]);
            comm.broadcast(data, bytes, root, test_stream());
            comm.broadcast(data, 0, root, test_stream());
            CHECK(same(data.download(), values[as_size(root)]));
        }
    });
}

TEST_CASE("ranks: reduce_scatter") {
    for_each_communicator([](const Comm& comm) {
        for (const Wire wire : {Wire::fp32, Wire::bf16}) {
            for (const size_t count : odd_counts()) {
                CAPTURE(count);
                const size_t ranks = as_size(comm.world()), me = as_size(comm.rank());
                const auto values = random_by_rank<float>(comm.world(), count * ranks);
                DeviceArray<float> in(values[me]), out(count);
                Workspace workspace(comm.reduce_scatter_workspace(count, wire, true));
                comm.reduce_scatter(out, in, count, wire, false, workspace.get(), test_stream());
                const std::vector<float> actual = out.download();
                std::vector<float> expected;
                const Wire sent = ranks == 1 ? Wire::fp32 : wire;  // one rank sends nothing
                for (size_t i = 0; i < count; i++) expected.push_back(sum_by_rank(values, me * count + i, sent));
                if (in_rank_order(comm) || wire == Wire::bf16)
                    CHECK(same(actual, expected));
                else
                    CHECK(max_relative_error(actual, to_doubles(expected), 1e3) < 1e-5);
                CHECK(same(in.download(), values[me]));

                // Accumulates onto existing values: in rank order, or after the library's sum.
                const std::vector<float> before = random_by_rank<float>(comm.world() + 1, count).back();
                out.upload(before);
                comm.reduce_scatter(out, in, count, wire, true, workspace.get(), test_stream());
                const std::vector<float> accumulated = out.download();
                for (size_t i = 0; i < count; i++)
                    expected[i] = in_rank_order(comm) || wire == Wire::bf16
                                      ? sum_by_rank(values, me * count + i, sent, &before[i])
                                      : before[i] + actual[i];
                CHECK(same(accumulated, expected));

                // Also in place.
                comm.reduce_scatter(in.get() + me * count, in, count, wire, false, workspace.get(), test_stream());
                const std::vector<float> whole = in.download();
                const std::vector<float> slice(whole.begin() + static_cast<long>(me * count),
                                               whole.begin() + static_cast<long>((me + 1) * count));
                CHECK(same(slice, actual));
            }
        }
    });
}

// Sums the pieces that the ranks cast for this one: onto existing values, and twice, the second time with residuals.
TEST_CASE("ranks: reduce_scatter in FP8") {
    for_each_communicator([](const Comm& comm) {
        for (const size_t count : odd_counts()) {
            CAPTURE(count);
            const size_t ranks = as_size(comm.world()), me = as_size(comm.rank());
            const auto values = random_by_rank<float>(comm.world(), count * ranks);
            std::vector<bf16> owed(count * ranks);
            DeviceArray<float> in(values[me]), out(std::vector<float>(count, 1.0f));
            DeviceArray<bf16> residual(owed);
            Workspace workspace(comm.reduce_scatter_workspace(count, Wire::fp8, true));
            std::vector<float> expected(count, 1.0f);
            const uint64_t before = comm.traffic().reduce_scatter.bytes;
            for (int time = 0; time < 2; time++) {
                comm.reduce_scatter(out, in, count, Wire::fp8, true, workspace.get(), test_stream(), {residual});
                // Each rank casts its own values, because the reference is slow.
                const auto cast = reference::cast_pieces(values[me], owed, comm.world(), count, 1);
                if (ranks > 1) owed = cast.residual;  // one rank sends nothing
                std::vector<uint8_t> all(cast.pieces.size() * ranks), mine;
                comm.host_all_gather(all.data(), cast.pieces.data(), cast.pieces.size());
                const size_t bytes = Fp8Piece{count}.bytes();
                for (size_t r = 0; r < ranks; r++) {
                    const auto begin = all.begin() + static_cast<long>(r * cast.pieces.size() + me * bytes);
                    mine.insert(mine.end(), begin, begin + static_cast<long>(bytes));
                }
                if (ranks > 1)
                    expected = reference::sum_fp8_pieces(mine, comm.world(), count, expected);
                else
                    for (size_t i = 0; i < count; i++) expected[i] += values[0][i];
                CHECK(same(out.download(), expected));
                CHECK(same(residual.download(), owed));
            }
            CHECK(comm.traffic().reduce_scatter.bytes - before == 2 * (ranks - 1) * Fp8Piece{count}.bytes());
            CHECK(same(in.download(), values[me]));
        }
    });
}

template <class T>
static void check_all_reduce(const Comm& comm, size_t count) {
    const auto values = random_by_rank<T>(comm.world(), count);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        DeviceArray<T> data(values[as_size(comm.rank())]);
        Workspace workspace(comm.all_reduce_workspace<T>(count));
        comm.all_reduce<T>(data.get(), count, op, workspace.get(), test_stream());
        std::vector<T> expected = values[0];
        for (size_t r = 1; r < values.size(); r++)
            for (size_t i = 0; i < count; i++)
                expected[i] = op == ReduceOp::sum ? static_cast<T>(expected[i] + values[r][i])
                                                  : std::max(expected[i], values[r][i]);
        const std::vector<T> actual = data.download();
        if (std::is_integral_v<T> || op == ReduceOp::max || in_rank_order(comm))
            CHECK(same(actual, expected));
        else
            for (size_t i = 0; i < count; i++) CHECK(std::fabs(double(actual[i]) - double(expected[i])) < 1e-1);
    }
}

TEST_CASE("ranks: all_reduce") {
    for_each_communicator([](const Comm& comm) {
        for (const size_t count : odd_counts()) {
            CAPTURE(count);
            check_all_reduce<float>(comm, count);
            check_all_reduce<double>(comm, count);
        }
        // Signed sums stay in range.
        DeviceArray<int32_t> data(std::vector<int32_t>{-5, comm.rank(), 1});
        Workspace workspace(comm.all_reduce_workspace<int32_t>(3));
        comm.all_reduce<int32_t>(data.get(), 3, ReduceOp::sum, workspace.get(), test_stream());
        const int n = comm.world();
        CHECK(data.download() == std::vector<int32_t>{-5 * n, n * (n - 1) / 2, n});
        comm.all_reduce<int32_t>(data.get(), 3, ReduceOp::max, workspace.get(), test_stream());
        CHECK(data.download() == std::vector<int32_t>{-5 * n, n * (n - 1) / 2, n});
    });
}

TEST_CASE("ranks: groups of collectives, one at a time") {
    const Comm& comm = world();
    const Comm other = comm.split(0, "other");
    const auto a = random_by_rank<uint8_t>(comm.world(), 100), b = random_by_rank<uint8_t>(comm.world(), 33);
    const size_t me = as_size(comm.rank()), ranks = as_size(comm.world());
    DeviceArray<uint8_t> in_a(a[me]), in_b(b[me]), out_a(100 * ranks), out_b(33 * ranks);
    {
        const Comm::Group group(comm);
        comm.all_gather(out_a, in_a, 100, test_stream());
        comm.all_gather(out_b, in_b, 33, test_stream());
        if (ranks > 1) {
            CHECK_THROWS_AS(const Comm::Group nested(comm), Error);
            CHECK_THROWS_AS(other.all_gather(out_b, in_b, 33, test_stream()), Error);
        }
        if (ranks > 1 && in_rank_order(comm)) {
            DeviceArray<float> data(1);
            CHECK_THROWS_AS(comm.all_reduce<float>(data.get(), 1, ReduceOp::sum, data.get(), test_stream()), Error);
        }
    }
    CHECK(same(out_a.download(), concatenate(a)));
    CHECK(same(out_b.download(), concatenate(b)));
}

TEST_CASE("ranks: bytes on the wire match the formula") {
    const Comm comm = world().split(0, "counted");
    const size_t n = as_size(comm.world()), others = n - 1;
    DeviceArray<float> big(96 * n), small(96 * n);
    Workspace workspace(
        std::max(comm.reduce_scatter_workspace(96, Wire::fp32, false),
                 std::max(comm.reduce_scatter_workspace(96, Wire::bf16, false), comm.all_reduce_workspace<float>(96))));
    comm.all_gather(big, small, 40, test_stream());
    comm.all_gather(big, small, 2, test_stream());
    CHECK(comm.traffic().all_gather.calls == 2);
    CHECK(comm.traffic().all_gather.bytes == others * 42);
    comm.reduce_scatter(small, big, 96, Wire::fp32, false, workspace.get(), test_stream());
    CHECK(comm.traffic().reduce_scatter.bytes == others * 96 * 4);
    comm.reduce_scatter(small, big, 96, Wire::bf16, false, workspace.get(), test_stream());
    CHECK(comm.traffic().reduce_scatter.calls == 2);
    CHECK(comm.traffic().reduce_scatter.bytes == others * 96 * 6);
    comm.all_to_all(big, small, 5, test_stream());
    CHECK(comm.traffic().all_to_all.bytes == others * 5);
    comm.broadcast(big, 7, 0, test_stream());
    CHECK(comm.traffic().broadcast.bytes == (comm.is_main() ? others * 7 : 0));
    comm.all_reduce<float>(small.get(), 96, ReduceOp::sum, workspace.get(), test_stream());
    CHECK(comm.traffic().all_reduce.bytes == (in_rank_order(comm) ? others * 384 : 2 * others * 384 / n));
    comm.reset_traffic();
    CHECK(comm.traffic().all_gather.calls == 0);
    synchronize(test_stream());
}

TEST_CASE("ranks: several streams, and ranks that wait at different places") {
    const Comm& comm = world();
    const Comm reduces = comm.split(0, "reduce");
    const size_t ranks = as_size(comm.world()), me = as_size(comm.rank());
    const size_t count = 500;
    stream_t gather = create_stream(), reduce = create_stream(), compute = test_stream();
    event_t ready = create_event(), gathered = create_event(), reduced = create_event();
    for (int step = 0; step < 4; step++) {
        const auto values = random_by_rank<float>(comm.world(), count * ranks);
        DeviceArray<float> in(values[me]), doubled(count * ranks), all(count * ranks * ranks), sum(count);
        Workspace workspace(reduces.reduce_scatter_workspace(count, Wire::fp32, false));
        synchronize_device();
        add(doubled, in, in, count * ranks, compute);
        record(ready, compute);
        wait(gather, ready);
        wait(reduce, ready);
        comm.all_gather(all, doubled, count * ranks * sizeof(float), gather);
        record(gathered, gather);
        reduces.reduce_scatter(sum, doubled, count, Wire::fp32, false, workspace.get(), reduce);
        record(reduced, reduce);
        // With lazy streams this decides which stream runs first.
        if ((comm.rank() + step) % 2)
            synchronize(reduced);
        else
            synchronize(gathered);
        comm.barrier();
        synchronize_device();
        std::vector<float> expected_all = concatenate(values), expected_sum;
        for (float& v : expected_all) v *= 2;
        for (size_t i = 0; i < count; i++) expected_sum.push_back(2 * sum_by_rank(values, me * count + i, Wire::fp32));
        CHECK(same(all.download(), expected_all));
        if (in_rank_order(comm)) CHECK(same(sum.download(), expected_sum));
    }
    for (event_t event : {ready, gathered, reduced}) destroy_event(event);
    destroy_stream(gather);
    destroy_stream(reduce);
}

TEST_CASE("ranks: parts of the world") {
    const int n = world().world();
    for (int size = 1; size <= n; size++) {
        if (n % size) {
            CHECK_THROWS_AS(world().neighbours(size, "neighbours"), Error);
            continue;
        }
        const Comm near = world().neighbours(size, "neighbours"), far = world().counterparts(size, "counterparts");
        CHECK(near.world() == size);
        CHECK(near.rank() == world().rank() % size);
        CHECK(far.world() == n / size);
        CHECK(far.rank() == world().rank() / size);
        // A sum within groups, then across them, is a sum over all ranks.
        DeviceArray<int32_t> data(std::vector<int32_t>{1 << world().rank()});
        Workspace workspace(std::max(near.all_reduce_workspace<int32_t>(1), far.all_reduce_workspace<int32_t>(1)));
        near.all_reduce<int32_t>(data.get(), 1, ReduceOp::sum, workspace.get(), test_stream());
        const int32_t within = ((1 << size) - 1) << (world().rank() / size * size);
        CHECK(data.download() == std::vector<int32_t>{within});
        far.all_reduce<int32_t>(data.get(), 1, ReduceOp::sum, workspace.get(), test_stream());
        CHECK(data.download() == std::vector<int32_t>{(1 << n) - 1});
    }
}

TEST_CASE("ranks: host collectives") {
    for_each_communicator([](const Comm& comm) {
        CHECK(comm.host_max(comm.rank() * 10 - 3) == (comm.world() - 1) * 10 - 3);
        std::vector<char> text(100'000, comm.is_main() ? 'x' : 'y');
        comm.host_broadcast(text.data(), text.size(), 0);
        CHECK(text == std::vector<char>(100'000, 'x'));
        comm.barrier();
        comm.require_equal("configuration", "batch=4\nlr=1");
        if (comm.world() == 1) return;
        const char* mine = comm.rank() == 1 ? "batch=4\nlr=2" : "batch=4\nlr=1";
        const std::string message = error_of([&] { comm.require_equal("configuration", mine); }, ExitCode::bad_flags);
        CHECK(message.find("rank 1 on ") == 0);
        CHECK(contains(message, "another configuration than rank 0: 'lr=2' against 'lr=1'"));
        mine = comm.rank() == 1 ? "{\n  \"lr\": 2,\n}" : "{\n  \"lr\": 1,\n}";
        CHECK(
            contains(error_of([&] { comm.require_equal("configuration", mine); }), "'\"lr\": 2' against '\"lr\": 1';"));
        mine = comm.rank() == 0 ? "batch=4" : "batch=4\nlr=1";  // a missing line counts as empty
        CHECK(contains(error_of([&] { comm.require_equal("configuration", mine); }), "'lr=1' against ''"));
    });
}
