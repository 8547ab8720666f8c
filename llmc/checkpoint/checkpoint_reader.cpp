// Opens a checkpoint's files, verifies them, and reads ranges of tensors across them.
// build: threads, fuzzed
#include "llmc/checkpoint/checkpoint_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "llmc/checkpoint/checkpoint_directory.h"

namespace llmc {

constexpr InputKind kManifest = {"manifest", "a complete checkpoint", ExitCode::checkpoint, 1024, false};
constexpr InputKind kStateFile = {"file of a checkpoint", "a complete checkpoint", ExitCode::checkpoint, 0, false};
constexpr size_t kMostOpenFiles = 256;  // a process often has only 1024 descriptors
constexpr size_t kMostThreads = 4;      // per rank; a machine may have eight ranks

// Calls part(i, memory) for i = 0 .. count - 1 in several threads, each with memory of its own. This thread is one of
// them, and calls `alive` before each of its parts. If parts fail, throws the error of the first one in order,
// as a loop would.
template <class Part>
static void in_threads(size_t count, const CheckpointReader::Alive& alive, const Part& part) {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    size_t failed = count;
    std::exception_ptr error;
    const auto work = [&](bool is_main) {
        std::vector<char> memory;
        for (size_t i; (i = next++) < count;) {
            try {
                if (is_main) alive();
                part(i, memory);
            } catch (...) {
                next = count;  // the parts below this one have begun, and will end
                const std::lock_guard lock(mutex);
                if (i < failed) error = std::current_exception();
                failed = std::min(failed, i);
            }
        }
    };
    std::vector<std::jthread> threads;
    const size_t most = std::min({count, kMostThreads, size_t{std::thread::hardware_concurrency()}});
    try {
        while (threads.size() + 1 < most) threads.emplace_back(work, false);
    } catch (const std::system_error&) {  // the threads that exist do all the work
    }
    work(true);
    threads.clear();
    if (error) std::rethrow_exception(error);
}

CheckpointReader::CheckpointReader(const std::string& directory)
    : CheckpointReader(directory, read_input(directory + "/" + kManifestName, kManifest)) {}

CheckpointReader::CheckpointReader(const std::string& directory, const std::string& manifest_text)
    : directory_(directory),
      text_(manifest_text),
      manifest_(parse_manifest(directory + "/" + kManifestName, manifest_text)),
      open_(manifest_.files.size()) {
    const int64_t step = step_in_name(directory);
    if (step >= 0 && step != manifest_.step)
        refuse_file(directory, "holds step {}, which its name does not say; rename it to {}", manifest_.step,
                    checkpoint_path("", manifest_.step).substr(1));  // without the slash
    for (size_t f = 0; f < manifest_.files.size(); f++)
        for (const StateSlice& slice : manifest_.files[f].slices)
            places_[slice.name()].push_back({f, slice.start, slice.count});
    for (auto& [name, places] : places_)
        std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.start < b.start; });
}

const StateTensor& CheckpointReader::tensor(const std::string& name) const {
    for (const StateTensor& tensor : manifest_.tensors)
        if (tensor.name == name) return tensor;
    refuse_file(directory_, "holds no tensor {}", name);
}

uint64_t CheckpointReader::size_of(const StateFile& file) const {
    struct stat status;
    if (::lstat(path(file).c_str(), &status) != 0) refuse_file(path(file), "is missing: {}", std::strerror(errno));
    if (!S_ISREG(status.st_mode)) refuse_file(path(file), "is not a regular file");
    return static_cast<uint64_t>(status.st_size);
}

// Opens a file of the checkpoint and checks that it holds exactly the slices in the manifest.
const SafetensorsFile& CheckpointReader::open(size_t index) const {
    std::unique_ptr<SafetensorsFile>& opened = open_[index];
    if (opened) return *opened;
    if (open_files_ == kMostOpenFiles) {
        for (std::unique_ptr<SafetensorsFile>& other : open_) other.reset();
        open_files_ = 0;
    }
    const StateFile& file = manifest_.files[index];
    size_of(file);
    auto candidate = std::make_unique<SafetensorsFile>(path(file));
    if (candidate->tensors().size() != file.slices.size())
        refuse_file(path(file), "holds {} tensors, the manifest lists {}", candidate->tensors().size(),
                    file.slices.size());
    for (const StateSlice& slice : file.slices) {
        const TensorInfo& info = candidate->info(slice.name());
        if (info.dtype != slice.dtype || info.bytes() != slice.bytes())
            refuse_file(path(file), "{} is {} {}, the manifest lists {} values in {}", slice.name(), info.dtype,
                        shape_text(info.shape), slice.count, slice.dtype);
    }
    opened = std::move(candidate);
    open_files_++;
    return *opened;
}

// The tensors between two bytes of a file, for a message: "m of h.0.fc.weight, ...".
std::string CheckpointReader::tensor_at(const SafetensorsFile& opened, uint64_t begin, uint64_t end) const {
    std::string first, last;
    for (const TensorInfo& tensor : opened.tensors()) {
        const uint64_t from = opened.data_start() + tensor.begin, to = opened.data_start() + tensor.end;
        if (to <= begin || from >= end) continue;
        if (first.empty()) first = tensor.name;
        last = tensor.name;
    }
    if (first.empty()) return "its header";
    return first == last ? "tensor " + first : "tensors " + first + " to " + last;
}

void CheckpointReader::check_chunks(const StateFile& file, size_t first, size_t count, const Alive& alive) const {
    const InputFile opened(path(file), kStateFile);
    in_threads(count, alive, [&](size_t i, std::vector<char>& chunk) {
        const size_t c = first + i;
        const uint64_t begin = c * manifest_.chunk_bytes;
        const size_t bytes = static_cast<size_t>(std::min(manifest_.chunk_bytes, file.bytes - begin));
        chunk.resize(bytes);
        if (opened.read_at(begin, chunk.data(), bytes) < bytes)
            refuse_file(path(file), "was truncated while it was read");
        if (checksum(chunk.data(), bytes) == file.checksums[c]) return;
        std::string what = "its header";
        try {
            what = tensor_at(SafetensorsFile(path(file)), begin, begin + bytes);
        } catch (const Error&) {  // the header itself is damaged
        }
        refuse_file(path(file), "is damaged between bytes {} and {} ({}): the checksum does not match", begin,
                    begin + bytes, what);
    });
}

void CheckpointReader::verify(Verify how, size_t part, size_t parts, const Alive& alive) const {
    if (how == Verify::none) return;
    // The parts consist of chunks, or of files if only their sizes are checked.
    const auto pieces_of = [&](const StateFile& file) { return how == Verify::full ? file.checksums.size() : 1; };
    size_t all = 0, before = 0;
    for (const StateFile& file : manifest_.files) all += pieces_of(file);
    const size_t begin = all * part / parts, end = all * (part + 1) / parts;
    for (size_t f = 0; f < manifest_.files.size(); f++) {
        const StateFile& file = manifest_.files[f];
        const size_t from = std::max(begin, before), to = std::min(end, before + pieces_of(file));
        if (from < to) {
            const uint64_t bytes = size_of(file);
            if (bytes != file.bytes) refuse_file(path(file), "has {} bytes, {} were written", bytes, file.bytes);
            if (how == Verify::full) check_chunks(file, from - before, to - from, alive);
            open(f);
        }
        before += pieces_of(file);
    }
}

void CheckpointReader::read(const std::string& tensor_name, const std::string& part, uint64_t start, uint64_t count,
                            float* values) const {
    const StateSlice wanted{tensor_name, part, start, count};
    const auto found = places_.find(wanted.name());
    const uint64_t elements = tensor(tensor_name).elements();
    if (found == places_.end() || start > elements || count > elements - start)
        refuse_file(directory_, "holds no elements {} to {} of {}", start, start + count, wanted.name());
    for (const Place& place : found->second) {
        const uint64_t from = std::max(start, place.start), to = std::min(start + count, place.start + place.count);
        if (from < to)
            open(place.file).read_floats(wanted.name(), from - place.start, to - from, values + (from - start));
    }
}

}  // namespace llmc
