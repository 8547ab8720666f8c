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

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// The number in a file, or kNoLimit if the file has something else, such as "max".
size_t number_in(const std::string& path) {
    std::ifstream file(path);
    size_t value = 0;
    return file >> value ? value : kNoLimit;
}

// Bytes of the file cache, which the kernel frees for other uses, in a control group and its children. Version 1 has
// these numbers of the group alone under the same keys, and those with its children under "total_".
size_t cached_in(const std::string& group) {
    std::ifstream file(group + "/memory.stat");
    size_t own = 0, total = 0, value = 0;
    for (std::string key; file >> key >> value;) {
        if (key == "inactive_file" || key == "active_file") own += value;
        if (key == "total_inactive_file" || key == "total_active_file") total += value;
    }
    return std::max(own, total);
}

size_t room_in(const std::string& group, const char* limit_name, const char* used_name) {
    const size_t limit = number_in(group + limit_name), used = number_in(group + used_name);
    if (limit == kNoLimit || used == kNoLimit) return kNoLimit;
    const size_t taken = used - std::min(used, cached_in(group));
    return limit - std::min(limit, taken);
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
    size_t available = kNoLimit;
    std::ifstream meminfo("/proc/meminfo");
    for (std::string key, unit; meminfo >> key;) {
        size_t kilobytes = 0;
        meminfo >> kilobytes;
        std::getline(meminfo, unit);
        if (key == "MemAvailable:") available = kilobytes * 1024;
    }
    std::ifstream file("/proc/self/cgroup");
    const std::string groups{std::istreambuf_iterator<char>(file), {}};
    return std::min(available, room_in_control_groups("/sys/fs/cgroup", groups));
}

size_t room_in_control_groups(const std::string& root, const std::string& groups) {
    size_t room = kNoLimit;
    for (const std::string& line : split(groups, '\n')) {  // "0::/job/step" (version 2), "4:memory:/job" (version 1)
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == line.npos || second == line.npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool is_v1 = contains(split(controllers, ','), "memory");
        if (!is_v1 && !controllers.empty()) continue;
        // In a container the path may be one of the host, which does not exist here, but the root always counts.
        for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
            if (path == "/") path.clear();
            const std::string group = root + (is_v1 ? "/memory" : "") + path;
            room = std::min(room, is_v1 ? room_in(group, "/memory.limit_in_bytes", "/memory.usage_in_bytes")
                                        : room_in(group, "/memory.max", "/memory.current"));
            if (path.find('/') == path.npos) break;
        }
    }
    return room;
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
