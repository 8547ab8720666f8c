// Times all_gather and reduce_scatter on zeros (link_rates.h).
#include "llmc/comm/link_rates.h"

#include <algorithm>
#include <string>

#include "llmc/base/clock.h"

namespace llmc {
namespace {

// Message sizes in floats: 1 MiB per rank; over NCCL 64 MiB over all ranks, because small messages do not reach the
// speed of the links.
constexpr size_t kFloats = size_t{256} << 10, kFloatsOverNccl = size_t{16} << 20;
constexpr int kWarmUp = 1, kTimed = 4;

using Floats = Owned<float*, device_free>;
Floats zeros(size_t count, stream_t stream) {
    float* const memory = static_cast<float*>(device_malloc(count * sizeof(float)));
    set_bytes(memory, 0, count * sizeof(float), stream);
    return memory;
}

template <class Operation>
double rate_of(const Comm& comm, size_t bytes, stream_t stream, Operation&& operation) {
    double begin = 0;
    for (int i = 0; i < kWarmUp + kTimed; i++) {
        if (i == kWarmUp) {
            synchronize(stream);
            comm.barrier();
            begin = monotonic_seconds();
        }
        operation();
    }
    synchronize(stream);
    const double seconds = monotonic_seconds() - begin;
    return kTimed * static_cast<double>(bytes) * (comm.world() - 1) / seconds;
}

}  // namespace

LinkRates measure_links(const Comm& comm) {
    const size_t world = static_cast<size_t>(comm.world());
    const size_t count = std::string(comm.name()) == "nccl" ? std::max(kFloats, kFloatsOverNccl / world) : kFloats;
    const size_t bytes = count * sizeof(float),
                 workspace_bytes = comm.reduce_scatter_workspace(count, Wire::fp32, false);
    Floats whole, part, workspace;
    const OwnedStream stream = create_stream(StreamPriority::communication);
    whole = zeros(count * world, stream);
    part = zeros(count, stream);
    workspace = zeros(workspace_bytes / sizeof(float) + 1, stream);
    LinkRates rates;
    rates.all_gather = rate_of(comm, bytes, stream, [&] {
        comm.all_gather(whole, whole + static_cast<size_t>(comm.rank()) * count, bytes, stream);
    });
    rates.reduce_scatter = rate_of(
        comm, bytes, stream, [&] { comm.reduce_scatter(part, whole, count, Wire::fp32, false, workspace, stream); });
    comm.reset_traffic();  // which counts what training sends
    return rates;
}

}  // namespace llmc
