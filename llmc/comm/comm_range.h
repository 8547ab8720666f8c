// A named range of collectives in profiles and traces (device/trace.h), with the bytes that this rank sent.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/device/trace.h"

namespace llmc {

class CommRange {
public:
    CommRange(const char* name, const Comm& comm, stream_t stream)
        : range_(name, Trace::Kind::communication, stream), comm_(comm), before_(comm.traffic().bytes()) {}
    ~CommRange() { range_.set_bytes(comm_.traffic().bytes() - before_); }

private:
    ProfileRange range_;
    const Comm& comm_;
    const uint64_t before_;
};

}  // namespace llmc
