// The back-end over NCCL, and the whole file that knows it. The build needs nccl.h alone: the library is opened when
// the program runs with several GPUs, so that train_gpt starts on machines without it.
//
// Sums are ncclSum of what the caller scaled before: never ncclAvg. Communicators are blocking; what hangs in one is
// the watchdog's, which asks for asynchronous errors and ends the process instead of aborting the communicator.
#include "llmc/comm/backend.h"

#if LLMC_CUDA && LLMC_USE_NCCL
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <utility>

namespace llmc {

bool built_with_nccl() { return true; }

namespace {

constexpr int kOldest = 22000;  // 2.20

struct NcclLibrary {
#define LLMC_NCCL_FUNCTIONS(X)                                                                                     \
    X(GetVersion)                                                                                                  \
    X(GetUniqueId)                                                                                                 \
    X(CommInitRank)                                                                                                \
    X(CommGetAsyncError) X(GetErrorString) X(GetLastError) X(GroupStart) X(GroupEnd) X(AllGather) X(ReduceScatter) \
        X(AllReduce) X(Broadcast) X(Send) X(Recv)
#define LLMC_NCCL_MEMBER(name) decltype(&nccl##name) name;
    LLMC_NCCL_FUNCTIONS(LLMC_NCCL_MEMBER)
#undef LLMC_NCCL_MEMBER
    int version = 0;

    static const NcclLibrary& instance() {
        static const NcclLibrary library;
        return library;
    }
    void check(ncclResult_t status, const char* call, ncclComm_t comm = nullptr) const {
        if (status == ncclSuccess) return;
        throw Error(
            ExitCode::communication,
            strprintf("%s failed: %s (%s)%s", call, GetErrorString(status), GetLastError(comm),
                      status == ncclSystemError || status == ncclRemoteError ? "; NCCL_DEBUG=INFO says more" : ""));
    }

private:
    NcclLibrary() {
        void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            throw Error(ExitCode::no_resources,
                        strprintf("several GPUs need NCCL's library: %s; install libnccl2, or add its folder to "
                                  "LD_LIBRARY_PATH",
                                  dlerror()));
#define LLMC_NCCL_LOAD(name) name = reinterpret_cast<decltype(name)>(load(handle, "nccl" #name));
        LLMC_NCCL_FUNCTIONS(LLMC_NCCL_LOAD)
#undef LLMC_NCCL_LOAD
        check(GetVersion(&version), "ncclGetVersion");
        if (version < kOldest)
            throw Error(ExitCode::no_resources,
                        strprintf("NCCL %s is too old: 2.20 or newer is needed (built with %s)",
                                  version_text(version).c_str(), version_text(NCCL_VERSION_CODE).c_str()));
    }
    static void* load(void* handle, const char* symbol) {
        void* address = dlsym(handle, symbol);
        if (!address)
            throw Error(ExitCode::no_resources,
                        strprintf("libnccl.so.2 has no %s: it is too old; 2.20 or newer is needed", symbol));
        return address;
    }
    static std::string version_text(int code) {
        return strprintf("%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
    }
};

ncclDataType_t nccl_type(ElementType type) {
    switch (type) {
        case ElementType::f32:
            return ncclFloat32;
        case ElementType::f64:
            return ncclFloat64;
        case ElementType::i32:
            return ncclInt32;
        case ElementType::u32:
            return ncclUint32;
        case ElementType::u64:
            return ncclUint64;
    }
    return ncclInt8;
}

class NcclBackend final : public Backend {
public:
    NcclBackend(Transport& control, std::shared_ptr<OperationLog> log, std::string group)
        : log_(std::move(log)),
          group_(std::move(group)),
          world_(static_cast<size_t>(control.world())),
          rank_(static_cast<size_t>(control.rank())) {
        ncclUniqueId id = {};
        if (rank_ == 0) nccl_.check(nccl_.GetUniqueId(&id), "ncclGetUniqueId");
        control.broadcast(&id, sizeof id, 0);
        const uint64_t sequence = log_->begin("ncclCommInitRank", group_, 0);
        nccl_.check(nccl_.CommInitRank(&comm_, control.world(), id, control.rank()), "ncclCommInitRank");
        log_->end(sequence);
    }
    // ncclCommDestroy would wait for ranks that may be gone; communicators live as long as the process.
    ~NcclBackend() override = default;

    const char* name() const override { return "nccl"; }

    void all_gather(void* out, const void* in, size_t bytes, const char* what, stream_t stream) override {
        const Noted noted(*this, what, (world_ - 1) * bytes);
        check(nccl_.AllGather(in, out, bytes, ncclUint8, comm_, stream), "ncclAllGather");
    }
    // ncclAlltoAll is younger than what we ask for; this is what it does.
    void all_to_all(void* out, const void* in, size_t bytes, const char* what, stream_t stream) override {
        const Noted noted(*this, what, (world_ - 1) * bytes);
        check(nccl_.GroupStart(), "ncclGroupStart");
        for (size_t r = 0; r < world_; r++) {
            const int peer = static_cast<int>(r);
            check(nccl_.Send(static_cast<const char*>(in) + r * bytes, bytes, ncclUint8, peer, comm_, stream),
                  "ncclSend");
            check(nccl_.Recv(static_cast<char*>(out) + r * bytes, bytes, ncclUint8, peer, comm_, stream), "ncclRecv");
        }
        check(nccl_.GroupEnd(), "ncclGroupEnd");
    }
    void broadcast(void* data, size_t bytes, int root, stream_t stream) override {
        const Noted noted(*this, "broadcast", static_cast<int>(rank_) == root ? (world_ - 1) * bytes : 0);
        check(nccl_.Broadcast(data, data, bytes, ncclUint8, root, comm_, stream), "ncclBroadcast");
    }
    void reduce_scatter(float* out, const float* in, size_t count, stream_t stream) override {
        const Noted noted(*this, "reduce_scatter", (world_ - 1) * count * sizeof(float));
        check(nccl_.ReduceScatter(in, out, count, ncclFloat32, ncclSum, comm_, stream), "ncclReduceScatter");
    }
    void all_reduce(void* data, size_t count, ElementType type, ReduceOp op, stream_t stream) override {
        const size_t bytes = count * (type == ElementType::u64 || type == ElementType::f64 ? 8 : 4);
        const Noted noted(*this, "all_reduce", 2 * (world_ - 1) * bytes / world_);
        check(
            nccl_.AllReduce(data, data, count, nccl_type(type), op == ReduceOp::sum ? ncclSum : ncclMax, comm_, stream),
            "ncclAllReduce");
    }
    void begin_group() override { check(nccl_.GroupStart(), "ncclGroupStart"); }
    void end_group() override { check(nccl_.GroupEnd(), "ncclGroupEnd"); }

    std::string failure() override {
        ncclResult_t status = ncclSuccess;
        if (nccl_.CommGetAsyncError(comm_, &status) != ncclSuccess) return "NCCL does not say how it is";
        if (status == ncclSuccess || status == ncclInProgress) return {};
        return strprintf("NCCL (%s): %s (%s)", group_.c_str(), nccl_.GetErrorString(status), nccl_.GetLastError(comm_));
    }

private:
    // What is noted is that the operation was issued: when it ends, the stream knows.
    class Noted {
    public:
        Noted(NcclBackend& backend, const char* what, size_t bytes)
            : log_(*backend.log_), sequence_(log_.begin(what, backend.group_, bytes)) {}
        ~Noted() { log_.end(sequence_, OperationEntry::State::issued); }
        Noted(const Noted&) = delete;
        Noted& operator=(const Noted&) = delete;

    private:
        OperationLog& log_;
        uint64_t sequence_;
    };
    void check(ncclResult_t status, const char* call) const { nccl_.check(status, call, comm_); }

    const NcclLibrary& nccl_ = NcclLibrary::instance();
    std::shared_ptr<OperationLog> log_;
    std::string group_;
    size_t world_, rank_;
    ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(Transport& control, std::shared_ptr<OperationLog> log, std::string group) {
    return std::make_unique<NcclBackend>(control, std::move(log), std::move(group));
}

std::string gpu_identity() {
    int device = 0;
    char bus[32] = "";
    LLMC_CHECK_CUDA(cudaGetDevice(&device));
    LLMC_CHECK_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    cudaDeviceProp properties;
    LLMC_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
    // MIG slices of one card share its bus and differ in their UUID.
    std::string text = std::string(bus) + " ";
    for (int i = 0; i < 16; i++) text += strprintf("%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    return text;
}

}  // namespace llmc

#else

namespace llmc {
bool built_with_nccl() { return false; }
std::string gpu_identity() { return {}; }
std::unique_ptr<Backend> make_nccl_backend(Transport&, std::shared_ptr<OperationLog>, std::string) {
    throw Error(ExitCode::bad_flags, "this build has no NCCL: build train_gpt with USE_NCCL=1");
}
}  // namespace llmc
#endif
