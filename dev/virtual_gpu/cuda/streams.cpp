// The runtime API of streams and events (streams.h).
#include "dev/virtual_gpu/cuda/streams.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "dev/virtual_gpu/cuda/device_thread.h"
#include "dev/virtual_gpu/cuda/errors.h"

namespace virtual_gpu {
namespace {

// The CUDA driver's priorities: the greatest priority is the smallest number.
constexpr int kLeastPriority = 0, kGreatestPriority = -5;

// The live events; handles of others are refused.
std::mutex events_mutex;
std::set<const CUevent_st*>& events() {
    static auto* const all = new std::set<const CUevent_st*>;
    return *all;
}
bool is_event(cudaEvent_t event) {
    const std::lock_guard lock(events_mutex);
    return events().contains(event);
}

DeviceThread& thread() { return DeviceThread::get(); }

// CUDA leaves it undefined what a call does with a destroyed handle. On an H100, train_gpt crashed in
// cudaStreamSynchronize() when it used one. An error code could be ignored, so the program ends here.
[[noreturn]] void refuse_destroyed(const char* what) {
    report("%s is used that does not exist or was destroyed, which CUDA leaves undefined", what);
    std::abort();
}

// For calls on a stream: returns the device's error; otherwise success and the stream.
cudaError_t entered_stream(cudaStream_t handle, CUstream_st*& stream) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    if (handle == cudaStreamPerThread) {
        report("cudaStreamPerThread is not supported");
        return returned(cudaErrorInvalidResourceHandle);
    }
    stream = thread().find(handle, current_device());
    if (!stream) refuse_destroyed("a stream");
    return cudaSuccess;
}
cudaError_t entered_event(cudaEvent_t event) {
    const cudaError_t status = entered();
    if (status == cudaSuccess && event == nullptr) return returned(cudaErrorInvalidResourceHandle);
    if (status == cudaSuccess && !is_event(event)) refuse_destroyed("an event");
    return status;
}

// The result of a call that waited: the error of the work it waited for.
cudaError_t after_waiting() { return returned(device_error()); }

cudaError_t enqueue(CUstream_st* stream, Work work) {
    thread().enqueue(stream, std::move(work));
    return cudaSuccess;
}

}  // namespace

cudaError_t submit(cudaStream_t handle, std::string what, std::function<void()> run, std::function<bool()> ready) {
    CUstream_st* stream = nullptr;
    const cudaError_t status = entered_stream(handle, stream);
    if (status != cudaSuccess) return status;
    if (stream->device != current_device()) return returned(cudaErrorInvalidResourceHandle);
    Work work;
    work.what = std::move(what);
    work.run = std::move(run);
    work.ready = std::move(ready);
    return enqueue(stream, std::move(work));
}

cudaError_t wait_for_stream(cudaStream_t handle) {
    CUstream_st* stream = nullptr;
    const cudaError_t status = entered_stream(handle, stream);
    if (status != cudaSuccess) return status;
    // The default stream waits for the blocking streams even if it has no work of its own.
    if (stream->legacy) enqueue(stream, {});
    thread().wait(stream, thread().last_of(stream));
    return after_waiting();
}

cudaError_t wait_for_devices() {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    thread().wait_for_all();
    return after_waiting();
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

// ---- streams -------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    if (!stream || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking))
        return returned(cudaErrorInvalidValue);
    // "If priority is specified outside the range [...], it will automatically be clamped".
    *stream = thread().create(current_device(), flags, std::min(std::max(priority, kGreatestPriority), kLeastPriority));
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, kLeastPriority);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    CUstream_st* stream = nullptr;
    const cudaError_t status = entered_stream(handle, stream);
    if (status != cudaSuccess) return status;
    if (stream->legacy) return returned(cudaErrorInvalidResourceHandle);
    thread().destroy(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for_stream(stream); }
cudaError_t cudaDeviceSynchronize() { return wait_for_devices(); }

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    CUstream_st* stream = nullptr;
    const cudaError_t status = entered_stream(handle, stream);
    if (status != cudaSuccess) return status;
    return returned(thread().is_done(stream) ? device_error() : cudaErrorNotReady);
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    CUstream_st* stream = nullptr;
    const cudaError_t status = entered_stream(handle, stream);
    if (status != cudaSuccess) return status;
    *priority = stream->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
    CUstream_st* stream = nullptr;
    const cudaError_t status = entered_stream(handle, stream);
    if (status != cudaSuccess) return status;
    *flags = stream->flags;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = kLeastPriority;
    if (greatest) *greatest = kGreatestPriority;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    if (!function) return returned(cudaErrorInvalidValue);
    return submit(stream, "cudaLaunchHostFunc", [function, data] {
        set_in_host_function(true);
        function(data);
        set_in_host_function(false);
    });
}

// ---- events --------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    if (!event || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming))) return returned(cudaErrorInvalidValue);
    *event = new CUevent_st{current_device(), flags, nullptr};
    const std::lock_guard lock(events_mutex);
    events().insert(*event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

// The object stays, because a reused handle must not become a new event's.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const cudaError_t status = entered_event(event);
    if (status != cudaSuccess) return status;
    const std::lock_guard lock(events_mutex);
    events().erase(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    CUstream_st* stream = nullptr;
    cudaError_t status = entered_stream(handle, stream);
    if (status == cudaSuccess) status = entered_event(event);
    if (status != cudaSuccess) return status;
    if (event->device != stream->device) return returned(cudaErrorInvalidResourceHandle);
    Work work;
    work.what = "cudaEventRecord";
    work.records = event->last = std::make_shared<Recording>();
    return enqueue(stream, std::move(work));
}

// Waits for the recording that the event has at the time of the call. The event may belong to another device.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    CUstream_st* stream = nullptr;
    cudaError_t status = entered_stream(handle, stream);
    if (status == cudaSuccess) status = entered_event(event);
    if (status != cudaSuccess) return status;
    if (flags != cudaEventWaitDefault) return returned(cudaErrorInvalidValue);
    if (!event->last) return cudaSuccess;
    Work work;
    work.what = "cudaStreamWaitEvent";
    work.waits_for = event->last;
    return enqueue(stream, std::move(work));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const cudaError_t status = entered_event(event);
    if (status != cudaSuccess) return status;
    if (event->last) thread().wait(event->last->stream, event->last->number);
    return after_waiting();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    const cudaError_t status = entered_event(event);
    if (status != cudaSuccess) return status;
    const bool done = !event->last || thread().is_done(*event->last);
    return returned(done ? device_error() : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    cudaError_t status = entered_event(from);
    if (status == cudaSuccess) status = entered_event(to);
    if (status != cudaSuccess) return status;
    if (!milliseconds) return returned(cudaErrorInvalidValue);
    for (const CUevent_st* event : {from, to})
        if (!event->last || event->flags & cudaEventDisableTiming || event->device != from->device)
            return returned(cudaErrorInvalidResourceHandle);
    for (const CUevent_st* event : {from, to})
        if (!thread().is_done(*event->last)) return returned(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(to->last->time - from->last->time).count();
    return cudaSuccess;
}

}  // extern "C"
