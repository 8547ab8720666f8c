// Copies of the state in pinned memory or in a local file without a name.
#include "llmc/train/staging.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "llmc/device/transfer.h"
#include "llmc/shard/state_values.h"

namespace llmc {
namespace {

// The number in a file, or the largest possible one if the file has something else, such as "max".
size_t number_in(const std::string& path) {
    std::ifstream file(path);
    size_t value = 0;
    return file >> value ? value : std::numeric_limits<size_t>::max();
}

// Creates a new file in a directory, ignoring the given path, and removes its name at once, so that nothing stays
// however the process ends. The file can be read through path() until it is closed.
class UnnamedFile : public FileCalls {
public:
    explicit UnnamedFile(const std::string& directory) : directory_(directory) {}
    ~UnnamedFile() override {
        if (kept_ >= 0) ::close(kept_);
    }
    int open(const char*, int, int) override {
        std::string name = directory_ + "/checkpoint-XXXXXX";
        const int fd = ::mkostemp(name.data(), O_CLOEXEC);
        if (fd < 0 || ::unlink(name.c_str()) != 0) return fd;
        kept_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
        return fd;
    }
    std::string path() const { return fmt::format("/proc/self/fd/{}", kept_); }

private:
    const std::string directory_;
    int kept_ = -1;
};

void require_writable(const std::string& directory) {
    std::error_code ignored;
    std::filesystem::create_directories(directory, ignored);
    UnnamedFile calls(directory);
    const int fd = calls.open("", 0, 0);
    if (fd >= 0) return static_cast<void>(::close(fd));
    throw Error(code_of(errno, ExitCode::bad_flags), "--checkpoint-local {}: cannot create a file in it: {}", directory,
                reason_of(errno, "name a directory on a disk of this machine"));
}

}  // namespace

size_t staged_bytes(const DeviceSlice& part) {
    const size_t scales = part.values.format == StateFormat::fp8 ? div_up(part.slice.count, kStateGroup) : 0;
    return part.slice.count * bytes_of(part.values.format) + scales * sizeof(float);
}

size_t available_host_memory() {
    size_t available = std::numeric_limits<size_t>::max();
    std::ifstream meminfo("/proc/meminfo");
    for (std::string key, unit; meminfo >> key;) {
        size_t kilobytes = 0;
        meminfo >> kilobytes;
        std::getline(meminfo, unit);
        if (key == "MemAvailable:") available = kilobytes * 1024;
    }
    const size_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
    if (limit != std::numeric_limits<size_t>::max() && used <= limit) available = std::min(available, limit - used);
    return available;
}

Staging::Staging(std::vector<DeviceSlice> slices, const std::string& local, size_t memory)
    : slices_(std::move(slices)), local_(local) {
    for (const DeviceSlice& part : slices_) {
        names_.push_back(part.slice);
        bytes_ += staged_bytes(part);
    }
    if (!local_.empty()) require_writable(local_);
    if (!local_.empty() || bytes_ == 0) return;
    if (bytes_ > memory) {
        note_ = fmt::format("saving a checkpoint in the background takes {} of host memory, and {} are available",
                            format_bytes(bytes_), format_bytes(memory));
        return;
    }
    try {
        memory_ = pinned<char>(bytes_);
    } catch (const Error& error) {
        note_ = error.what();
    }
}

SliceBytes Staging::take(stream_t stream) {
    if (!local_.empty()) return from_local_file(stream);
    return memory_ ? from_memory(stream) : from_device(stream);
}

SliceBytes Staging::from_device(stream_t stream) {
    return [this, stream](size_t slice, uint64_t offset, size_t bytes) {
        const StateArray& values = slices_[slice].values;
        if (values.format == StateFormat::fp8) {
            const size_t begin = offset / sizeof(bf16) / kStateGroup * kStateGroup,
                         end = (offset + bytes) / sizeof(bf16);
            return narrowed(read_back(values.from(begin).as<e4m3>(), end - begin, stream).data(),
                            read_back(values.from(begin).scales, div_up(end - begin, kStateGroup), stream).data(),
                            offset - begin * sizeof(bf16), bytes);
        }
        buffer_.resize(bytes);
        read_bytes(buffer_.data(), static_cast<const char*>(values.values) + offset, bytes, stream);
        return static_cast<const char*>(buffer_.data());
    };
}

// Bytes [offset, offset + bytes) of values in fp8 as BF16.
const char* Staging::narrowed(const e4m3* codes, const float* scales, uint64_t offset, size_t bytes) {
    std::vector<bf16> values((offset + bytes + 1) / sizeof(bf16));
    fp8_to_bf16(values.data(), codes, scales, values.size());
    buffer_.resize(bytes);
    std::memcpy(buffer_.data(), reinterpret_cast<const char*>(values.data()) + offset, bytes);
    return buffer_.data();
}

// Values in fp8 are copied as they are, codes and then scales, and become BF16 when they are asked for.
SliceBytes Staging::from_memory(stream_t stream) {
    std::vector<const char*> at;
    char* next = memory_;
    for (const DeviceSlice& part : slices_) {
        const StateArray& values = part.values;
        const size_t count = part.slice.count;
        copy_to_host(next, values.values, count * bytes_of(values.format), stream);
        if (values.scales)
            copy_to_host(next + count, values.scales, div_up(count, kStateGroup) * sizeof(float), stream);
        at.push_back(next);
        next += staged_bytes(part);
    }
    synchronize(stream);
    return [this, at](size_t slice, uint64_t offset, size_t bytes) {
        const DeviceSlice& part = slices_[slice];
        if (part.values.format != StateFormat::fp8) return at[slice] + offset;
        const size_t group = offset / sizeof(bf16) / kStateGroup, end = (offset + bytes) / sizeof(bf16);
        std::vector<float> scales(div_up(end, kStateGroup) - group);  // aligned
        std::memcpy(scales.data(), at[slice] + part.slice.count + group * sizeof(float), scales.size() * sizeof(float));
        return narrowed(reinterpret_cast<const e4m3*>(at[slice]) + group * kStateGroup, scales.data(),
                        offset - group * kStateGroup * sizeof(bf16), bytes);
    };
}

SliceBytes Staging::from_local_file(stream_t stream) {
    local_file_.reset();
    UnnamedFile calls(local_);
    checksums_ = write_state_file(calls, local_, 0, names_, from_device(stream)).checksums;
    local_file_ = std::make_unique<SafetensorsFile>(calls.path());
    return [this](size_t slice, uint64_t offset, size_t bytes) {
        buffer_.resize(bytes);
        local_file_->read_range(names_[slice].name(), offset, buffer_.data(), bytes);
        return buffer_.data();
    };
}

}  // namespace llmc
