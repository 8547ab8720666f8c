// The back-end over NCCL, and the only file that knows NCCL. The build needs only nccl.h: the library is opened when a
// run has several GPUs, so train_gpt also starts on machines without it.
//
// Sums are ncclSum, never ncclAvg: the caller scales values first. Communicators are blocking. The watchdog handles
// hangs: it asks for asynchronous errors and ends the process instead of aborting the communicator. Events around every
// operation tell it how far the GPU is.
//
// Buffers are not registered with NCCL (ncclMemAlloc, ncclCommRegister). Registration would free multiprocessors where
// switches add up (NVLink SHARP), but no machine with several GPUs has been available to measure that.
// build: per device
#include "llmc/comm/backend.h"

#if LLMC_CUDA && LLMC_USE_NCCL
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "llmc/device/cuda_calls.h"

namespace llmc {

bool built_with_nccl() { return true; }

namespace {

// The first version that starts the collectives of several communicators in the order of the calls
// (NCCL_LAUNCH_ORDER_IMPLICIT). For earlier ones its guide warns of deadlocks when several communicators of a GPU are
// at work at once.
constexpr int kOldest = 22600;
constexpr const char* kOldestText = "2.26";

struct NcclLibrary {
// clang-format off
#define LLMC_NCCL_FUNCTIONS(X)                                                                                 \
    X(GetVersion) X(GetUniqueId) X(CommInitRank) X(CommGetAsyncError) X(GetErrorString) X(GetLastError)        \
    X(GroupStart) X(GroupEnd) X(AllGather) X(ReduceScatter) X(AllReduce) X(Broadcast) X(Send) X(Recv)
// clang-format on
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
        throw Error(ExitCode::communication, "{} failed: {} ({}){}", call, GetErrorString(status), GetLastError(comm),
                    status == ncclSystemError || status == ncclRemoteError ? "; NCCL_DEBUG=INFO says more" : "");
    }

private:
    NcclLibrary() {
        void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            throw Error(ExitCode::no_resources,
                        "several GPUs need NCCL's library: {}; install libnccl2, or add its folder to LD_LIBRARY_PATH",
                        dlerror());
#define LLMC_NCCL_LOAD(name) name = reinterpret_cast<decltype(name)>(load(handle, "nccl" #name));
        LLMC_NCCL_FUNCTIONS(LLMC_NCCL_LOAD)
#undef LLMC_NCCL_LOAD
        check(GetVersion(&version), "ncclGetVersion");
        if (version < kOldest)
            throw Error(ExitCode::no_resources, "NCCL {} is too old: {} or newer is needed (built with {})",
                        version_text(version), kOldestText, version_text(NCCL_VERSION_CODE));
    }
    static void* load(void* handle, const char* symbol) {
        void* address = dlsym(handle, symbol);
        if (!address)
            throw Error(ExitCode::no_resources, "libnccl.so.2 has no {}: it is too old; {} or newer is needed", symbol,
                        kOldestText);
        return address;
    }
    static std::string version_text(int code) {
        return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
    }
};

ncclDataType_t nccl_type(ElementType type) {
    constexpr ncclDataType_t types[] = {ncclFloat32, ncclFloat64, ncclInt32};
    return types[static_cast<size_t>(type)];
}

// Pairs of events before and after an operation in its stream, reused once the operation is known to be done. Any
// thread may query and return them.
class Marks : public std::enable_shared_from_this<Marks> {
public:
    struct Pair {
        event_t begin = create_event(), end = create_event();
        int device = 0;
        Pair() { LLMC_CHECK_CUDA(cudaGetDevice(&device)); }
    };
    std::shared_ptr<Pair> take() {
        const std::lock_guard lock(mutex_);
        if (free_.empty()) free_.push_back(new Pair);
        Pair* pair = free_.back();
        free_.pop_back();
        return {pair, [self = shared_from_this()](Pair* used) {
                    const std::lock_guard back(self->mutex_);
                    self->free_.push_back(used);
                }};
    }

private:
    std::mutex mutex_;
    std::vector<Pair*> free_;  // kept to the process's end, when CUDA may be gone already
};

// If the device is lost, that error is reported elsewhere.
bool has_passed(event_t event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) cudaGetLastError();  // an answer, not an error for the next launch to find
    return status == cudaSuccess;
}
DeviceProgress progress_of(const Marks::Pair& marks) {
    // Without this, CUDA would create a context on device 0 for the watchdog's thread, in every rank. That can take
    // longer than the watchdog has for its last message.
    cudaSetDevice(marks.device);
    if (has_passed(marks.end)) return DeviceProgress::done;
    return has_passed(marks.begin) ? DeviceProgress::running : DeviceProgress::waiting;
}

class NcclBackend final : public Backend {
public:
    NcclBackend(Transport& control, std::shared_ptr<CommProcess> process, std::string group)
        : process_(std::move(process)),
          group_(std::move(group)),
          world_(static_cast<size_t>(control.world())),
          rank_(static_cast<size_t>(control.rank())) {
        process_->waits.measure_on_device();
        ncclUniqueId id = {};
        if (rank_ == 0) nccl_.check(nccl_.GetUniqueId(&id), "ncclGetUniqueId");
        control.broadcast(&id, sizeof id, 0);
        const uint64_t sequence = process_->log->begin("ncclCommInitRank", group_, 0);
        nccl_.check(nccl_.CommInitRank(&comm_, control.world(), id, control.rank()), "ncclCommInitRank");
        process_->log->end(sequence);
    }
    // No ncclCommDestroy: it would wait for ranks that may be gone. Communicators live as long as the process.
    ~NcclBackend() override = default;

    void all_gather(void* out, const void* in, size_t bytes, const char* what, stream_t stream) override {
        issue(what, (world_ - 1) * bytes, stream,
              [&] { check(nccl_.AllGather(in, out, bytes, ncclUint8, comm_, stream), "ncclAllGather"); });
    }
    // Sends each rank its piece. (ncclAlltoAll needs a newer NCCL than we require, and equal pieces.)
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                      const char* what, stream_t stream) override {
        const size_t sent = std::accumulate(send.begin(), send.end(), size_t{0}) - send[rank_];
        issue(what, sent, stream, [&] {
            check(nccl_.GroupStart(), "ncclGroupStart");
            const char* from = static_cast<const char*>(in);
            char* to = static_cast<char*>(out);
            for (size_t r = 0; r < world_; r++) {
                const int peer = static_cast<int>(r);
                if (send[r]) check(nccl_.Send(from, send[r], ncclUint8, peer, comm_, stream), "ncclSend");
                if (receive[r]) check(nccl_.Recv(to, receive[r], ncclUint8, peer, comm_, stream), "ncclRecv");
                from += send[r];
                to += receive[r];
            }
            check(nccl_.GroupEnd(), "ncclGroupEnd");
        });
    }
    void broadcast(void* data, size_t bytes, int root, stream_t stream) override {
        issue("broadcast", static_cast<int>(rank_) == root ? (world_ - 1) * bytes : 0, stream,
              [&] { check(nccl_.Broadcast(data, data, bytes, ncclUint8, root, comm_, stream), "ncclBroadcast"); });
    }
    void reduce_scatter(float* out, const float* in, size_t count, stream_t stream) override {
        issue("reduce_scatter", (world_ - 1) * count * sizeof(float), stream, [&] {
            check(nccl_.ReduceScatter(in, out, count, ncclFloat32, ncclSum, comm_, stream), "ncclReduceScatter");
        });
    }
    void all_reduce(void* data, size_t count, ElementType type, ReduceOp op, stream_t stream) override {
        const size_t bytes = count * (type == ElementType::f64 ? 8 : 4);
        issue("all_reduce", 2 * (world_ - 1) * bytes / world_, stream, [&] {
            check(nccl_.AllReduce(data, data, count, nccl_type(type), op == ReduceOp::sum ? ncclSum : ncclMax, comm_,
                                  stream),
                  "ncclAllReduce");
        });
    }
    void begin_group() override {
        check(nccl_.GroupStart(), "ncclGroupStart");
        in_group_ = true;
    }
    // Starts the operations of the group. On several streams they begin when all those streams have reached them, and
    // end on all of them at once (NCCL's guide, "Group Calls").
    void end_group() override {
        in_group_ = false;
        check(nccl_.GroupEnd(), "ncclGroupEnd");
        for (const Issued& operation : std::exchange(grouped_, {})) follow(operation);
    }

    std::string failure() override {
        ncclResult_t status = ncclSuccess;
        if (nccl_.CommGetAsyncError(comm_, &status) != ncclSuccess) return "NCCL cannot be asked for its state";
        if (status == ncclSuccess || status == ncclInProgress) return {};
        return fmt::format("NCCL ({}): {} ({})", group_, nccl_.GetErrorString(status), nccl_.GetLastError(comm_));
    }

private:
    struct Issued {
        uint64_t sequence;
        std::shared_ptr<Marks::Pair> marks;
        stream_t stream;
    };

    template <class Call>
    void issue(const char* what, size_t bytes, stream_t stream, Call call) {
        // Asks about several old operations per new one, so that the log forgets finished ones faster than it grows.
        constexpr size_t kLooks = 4;
        process_->log->look(kLooks);
        process_->waits.begin(stream);
        const Issued operation{process_->log->begin(what, group_, bytes), marks_->take(), stream};
        record(operation.marks->begin, stream);
        call();
        if (in_group_)
            grouped_.push_back(operation);
        else
            follow(operation);
    }
    // Marks the end of an operation in its stream, for the log and for the waits.
    void follow(const Issued& operation) {
        record(operation.marks->end, operation.stream);
        process_->waits.end(operation.stream);
        process_->log->issued(operation.sequence, [marks = operation.marks] { return progress_of(*marks); });
    }
    void check(ncclResult_t status, const char* call) const { nccl_.check(status, call, comm_); }

    const NcclLibrary& nccl_ = NcclLibrary::instance();
    std::shared_ptr<CommProcess> process_;
    std::string group_;
    const std::shared_ptr<Marks> marks_ = std::make_shared<Marks>();
    size_t world_, rank_;
    ncclComm_t comm_ = nullptr;
    bool in_group_ = false;
    std::vector<Issued> grouped_;
};

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(Transport& control, std::shared_ptr<CommProcess> process,
                                           std::string group) {
    return std::make_unique<NcclBackend>(control, std::move(process), std::move(group));
}

}  // namespace llmc

#else

namespace llmc {
bool built_with_nccl() { return false; }
std::unique_ptr<Backend> make_nccl_backend(Transport&, std::shared_ptr<CommProcess>, std::string) {
    refuse("this build has no NCCL: build train_gpt with USE_NCCL=1");
}
}  // namespace llmc
#endif
