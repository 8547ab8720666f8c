// The table of which elements each call moves (operation.h).
#include "dev/virtual_gpu/nccl/operation.h"

#include <algorithm>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/nccl/elements.h"

namespace virtual_gpu::nccl {

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::all_gather:
            return "ncclAllGather";
        case Kind::reduce_scatter:
            return "ncclReduceScatter";
        case Kind::all_reduce:
            return "ncclAllReduce";
        case Kind::broadcast:
            return "ncclBroadcast";
        case Kind::all_to_all:
            return "ncclAlltoAll";
        case Kind::send:
            return "ncclSend";
        case Kind::recv:
            return "ncclRecv";
    }
    return "";
}

std::string Call::describe() const {
    std::string text =
        format("%s #%llu (%zu %s", name_of(kind), static_cast<unsigned long long>(number), count, nccl::name_of(type));
    if (reduces()) text += format(", %s", nccl::name_of(op));
    if (has_root()) text += format(", root %d", peer);
    if (!collective()) text += format(", %s rank %d", kind == Kind::send ? "to" : "from", peer);
    return text + ")";
}

Elements sent(const Call& call, int from, int to, int ranks) {
    const size_t n = call.count;
    switch (call.kind) {
        case Kind::all_gather:
        case Kind::all_reduce:
            return {0, n};
        case Kind::broadcast:
            return {0, from == call.peer ? n : 0};
        case Kind::reduce_scatter:
        case Kind::all_to_all:
            return {static_cast<size_t>(to) * n, n};
        case Kind::send:
        case Kind::recv:
            break;
    }
    (void)ranks;
    return {};
}

size_t place(const Call& call, int from) {
    const bool apart = call.kind == Kind::all_gather || call.kind == Kind::all_to_all;
    return apart ? static_cast<size_t>(from) * call.count : 0;
}

size_t send_extent(const Call& call, int rank, int ranks) {
    if (!call.collective()) return call.kind == Kind::send ? call.count : 0;
    size_t extent = 0;
    for (int to = 0; to < ranks; to++)
        if (const Elements part = sent(call, rank, to, ranks); part.count > 0)
            extent = std::max(extent, part.at + part.count);
    return extent;
}

size_t recv_extent(const Call& call, int rank, int ranks) {
    if (!call.collective()) return call.kind == Kind::recv ? call.count : 0;
    size_t extent = 0;
    for (int from = 0; from < ranks; from++)
        if (const size_t count = sent(call, from, rank, ranks).count; count > 0)
            extent = std::max(extent, place(call, from) + count);
    return extent;
}

bool in_place(const Call& call, int rank, int ranks) {
    // ncclAlltoAll: "In-place operation is currently not supported".
    if (!call.collective() || call.kind == Kind::all_to_all) return false;
    const Elements own = sent(call, rank, rank, ranks);
    if (own.count == 0) return false;
    const size_t bytes = size_of(call.type);
    return static_cast<const char*>(call.send) + own.at * bytes ==
           static_cast<const char*>(call.recv) + place(call, rank) * bytes;
}

Label label_of(const Call& call) {
    Label label = {};
    // To the receiver, a send looks like its own recv.
    label.kind = call.kind == Kind::recv ? Kind::send : call.kind;
    label.type = static_cast<uint32_t>(call.type);
    label.op = call.reduces() ? static_cast<uint32_t>(call.op) : 0;
    label.root = call.has_root() ? call.peer : 0;
    label.count = call.count;
    label.number = call.number;
    return label;
}

std::string difference(const Label& one, int rank_of_one, const Label& other, int rank_of_other) {
    std::string what;
    const auto differ = [&](bool different, const char* name) {
        if (different) what += (what.empty() ? "" : ", ") + std::string(name);
    };
    differ(one.kind != other.kind, "the operation");
    differ(one.count != other.count, "the count");
    differ(one.type != other.type, "the data type");
    differ(one.op != other.op, "the reduction");
    differ(one.root != other.root, "the root");
    if (what.empty()) return {};
    const auto words = [](const Label& label) {
        Call call = {label.kind, nullptr, nullptr, label.count, static_cast<ncclDataType_t>(label.type)};
        call.op = static_cast<ncclRedOp_t>(label.op);
        call.peer = label.root;
        call.number = label.number;
        if (!call.collective())
            return format("%zu %s (message #%llu)", call.count, nccl::name_of(call.type),
                          static_cast<unsigned long long>(call.number));
        return call.describe();
    };
    if (one.kind == Kind::send && other.kind == Kind::send)
        return format("%s differs: rank %d sends %s, rank %d receives %s", what.c_str(), rank_of_one,
                      words(one).c_str(), rank_of_other, words(other).c_str());
    return format("%s differs: rank %d is in %s, rank %d in %s", what.c_str(), rank_of_one, words(one).c_str(),
                  rank_of_other, words(other).c_str());
}

}  // namespace virtual_gpu::nccl
