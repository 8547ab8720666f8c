// Comm's collectives on device memory. Here they are counted, a world of one rank copies, and reductions that a
// back-end lacks, or that must not depend on its algorithm, exchange pieces and sum them in rank order (reductions.h).
#include <exception>
#include <numeric>
#include <type_traits>

#include "llmc/comm/comm_state.h"
#include "llmc/kernels/elementwise.h"

namespace llmc {

static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Bytes of a piece on the wire.
static size_t piece_bytes(size_t count, Wire wire) {
    if (wire == Wire::fp8) return Fp8Piece{count}.bytes();
    return count * (wire == Wire::bf16 ? sizeof(bf16) : sizeof(float));
}

void Comm::all_gather(void* out, const void* in, size_t bytes, stream_t stream) const {
    State& s = *state_;
    s.count(s.traffic.all_gather, s.others() * bytes);
    if (bytes == 0) return;
    if (s.world == 1) {
        if (out != in) copy_on_device(out, in, bytes, stream);
        return;
    }
    s.device().all_gather(out, in, bytes, "all_gather", stream);
}

void Comm::all_to_all(void* out, const void* in, size_t bytes, stream_t stream) const {
    State& s = *state_;
    if (out == in && bytes) throw Error(ExitCode::failure, "all_to_all cannot work in place");
    s.count(s.traffic.all_to_all, s.others() * bytes);
    if (bytes == 0) return;
    const std::vector<size_t> sizes(static_cast<size_t>(s.world), bytes);
    if (s.world == 1)
        copy_on_device(out, in, bytes, stream);
    else
        s.device().all_to_all_v(out, sizes, in, sizes, "all_to_all", stream);
}

void Comm::all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                        stream_t stream) const {
    State& s = *state_;
    const size_t ranks = static_cast<size_t>(s.world), me = static_cast<size_t>(s.rank);
    if (receive.size() != ranks || send.size() != ranks || receive[me] != send[me])
        throw Error(
            ExitCode::failure, "all_to_all_v: sizes of {} and {} pieces, own ones of {} and {} bytes, for {} ranks",
            receive.size(), send.size(), receive.size() > me ? receive[me] : 0, send.size() > me ? send[me] : 0, ranks);
    const size_t total = std::accumulate(send.begin(), send.end(), size_t{0});
    if (out == in && total) throw Error(ExitCode::failure, "all_to_all_v cannot work in place");
    s.count(s.traffic.all_to_all, total - send[me]);
    if (s.world > 1)
        s.device().all_to_all_v(out, receive, in, send, "all_to_all_v", stream);
    else if (total > 0)
        copy_on_device(out, in, total, stream);
}

void Comm::broadcast(void* data, size_t bytes, int root, stream_t stream) const {
    State& s = *state_;
    if (root < 0 || root >= s.world)
        throw Error(ExitCode::failure, "broadcast from rank {} of {} ranks", root, s.world);
    s.count(s.traffic.broadcast, s.rank == root ? s.others() * bytes : 0);
    if (bytes && s.world > 1) s.device().broadcast(data, bytes, root, stream);
}

size_t Comm::reduce_scatter_workspace(size_t count, Wire wire, bool accumulate) const {
    const State& s = *state_;
    if (s.world == 1 || count == 0) return 0;
    const size_t pieces = aligned(piece_bytes(count, wire) * static_cast<size_t>(s.world));
    if (wire != Wire::fp32) return 2 * pieces;  // pieces as sent and as received
    if (s.library_reduces()) return accumulate ? aligned(count * sizeof(float)) : 0;
    return pieces;
}

void Comm::reduce_scatter(float* out, const float* in, size_t count, Wire wire, bool accumulate, void* workspace,
                          stream_t stream, const Feedback& feedback) const {
    State& s = *state_;
    const size_t bytes = piece_bytes(count, wire);
    s.count(s.traffic.reduce_scatter, s.others() * bytes);
    if (count == 0) return;
    if (s.world == 1) {
        if (accumulate)
            add(out, out, in, count, stream);
        else if (out != in)
            copy_on_device(out, in, count * sizeof(float), stream);
        return;
    }
    if (!workspace && reduce_scatter_workspace(count, wire, accumulate) > 0)
        throw Error(ExitCode::failure, "reduce_scatter needs its workspace");
    if (wire == Wire::fp32 && s.library_reduces()) {
        float* sum = accumulate ? static_cast<float*>(workspace) : out;
        s.device().reduce_scatter(sum, in, count, stream);
        if (accumulate) add(out, out, sum, count, stream);
        return;
    }
    s.refuse_group("a reduction in rank order");
    const size_t ranks = static_cast<size_t>(s.world);
    const std::vector<size_t> sizes(ranks, bytes);
    uint8_t* const narrow = static_cast<uint8_t*>(workspace);
    if (wire == Wire::fp8) cast_pieces(narrow, in, s.world, count, feedback, stream);
    if (wire == Wire::bf16) cast<bf16, float>(reinterpret_cast<bf16*>(narrow), in, count * ranks, stream);
    const void* const sent = wire == Wire::fp32 ? static_cast<const void*>(in) : narrow;
    uint8_t* const pieces = narrow + (wire == Wire::fp32 ? 0 : aligned(bytes * ranks));
    s.device().all_to_all_v(pieces, sizes, sent, sizes, "reduce_scatter", stream);
    if (wire == Wire::fp8)
        sum_fp8_pieces(out, pieces, s.world, count, accumulate, stream);
    else if (wire == Wire::bf16)
        sum_pieces(out, reinterpret_cast<const bf16*>(pieces), s.world, count, accumulate, stream);
    else
        sum_pieces(out, reinterpret_cast<const float*>(pieces), s.world, count, accumulate, stream);
}

template <class T>
static constexpr ElementType element_type() {
    if constexpr (std::is_same_v<T, float>) return ElementType::f32;
    if constexpr (std::is_same_v<T, double>) return ElementType::f64;
    if constexpr (std::is_same_v<T, int32_t>) return ElementType::i32;
}

template <class T>
size_t Comm::all_reduce_workspace(size_t count) const {
    const State& s = *state_;
    return s.world == 1 || s.library_reduces() ? 0 : aligned(count * static_cast<size_t>(s.world) * sizeof(T));
}

template <class T>
void Comm::all_reduce(T* data, size_t count, ReduceOp op, void* workspace, stream_t stream) const {
    State& s = *state_;
    const size_t bytes = count * sizeof(T);
    const bool library = s.world > 1 && s.library_reduces();
    s.count(s.traffic.all_reduce, library ? 2 * bytes * s.others() / static_cast<size_t>(s.world) : s.others() * bytes);
    if (count == 0 || s.world == 1) return;
    if (library) return s.device().all_reduce(data, count, element_type<T>(), op, stream);
    s.refuse_group("a reduction in rank order");
    if (!workspace) throw Error(ExitCode::failure, "all_reduce needs its workspace");
    T* pieces = static_cast<T*>(workspace);
    s.device().all_gather(pieces, data, bytes, "all_reduce", stream);
    reduce_pieces(data, pieces, s.world, count, op, stream);
}

template size_t Comm::all_reduce_workspace<float>(size_t) const;
template size_t Comm::all_reduce_workspace<double>(size_t) const;
template size_t Comm::all_reduce_workspace<int32_t>(size_t) const;
template void Comm::all_reduce<float>(float*, size_t, ReduceOp, void*, stream_t) const;
template void Comm::all_reduce<double>(double*, size_t, ReduceOp, void*, stream_t) const;
template void Comm::all_reduce<int32_t>(int32_t*, size_t, ReduceOp, void*, stream_t) const;

Comm::Group::Group(const Comm& comm) : comm_(comm), exceptions_(std::uncaught_exceptions()) {
    State& s = *comm_.state_;
    s.refuse_group("a second Group");
    if (!s.backend) return;
    s.backend->begin_group();
    s.process->grouping = s.backend.get();
}
Comm::Group::~Group() noexcept(false) {
    State& s = *comm_.state_;
    s.process->grouping = nullptr;
    if (!s.backend) return;
    try {
        s.backend->end_group();
    } catch (const Error&) {
        if (std::uncaught_exceptions() == exceptions_) throw;  // otherwise the first error is the one to report
    }
}

}  // namespace llmc
