// The shared memory segment: seats, locks, channels and exchanges (segment.h).
#include "dev/virtual_gpu/nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu::nccl {
namespace {

constexpr size_t kText = 512, kExchange = 256;
constexpr char kMagic[] = "virtual NCCL id";

struct Id {
    char magic[sizeof kMagic];
    int process, file;
    uint64_t random;
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));

// Segments that this process created, by id. They stay open until all ranks have come, or until the process ends.
std::mutex created_mutex;
std::map<uint64_t, int>& created() {
    static auto* const files = new std::map<uint64_t, int>;
    return *files;
}

// Copies a text that another process may read meanwhile. The reader may see a mixture, but never an unterminated text.
void copy_text(char (&to)[kText], const std::string& from) {
    const size_t length = std::min(from.size(), kText - 1);
    std::memcpy(to, from.data(), length);
    std::memset(to + length, 0, kText - length);
}

struct flock lock_of(int rank) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
}

std::atomic<double> patience_seconds{10};

}  // namespace

void set_patience(double seconds) { patience_seconds = seconds; }
double patience() { return patience_seconds; }
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Segment::Seat {
    std::atomic<int> present;
    std::atomic<uint64_t> given, read;  // numbers of exchanges
    char card[kText], doing[kText], exchanged[kExchange];
};
struct Segment::Header {
    uint64_t random;
    std::atomic<int> ranks;    // stated by the first rank
    std::atomic<int> failing;  // only one rank may write the failure
    std::atomic<int> failure;
    char failure_text[kText];
    Seat seats[kMostRanks];
};

// ---- channels ------------------------------------------------------------------------------------------------------

size_t Channel::push(const char* bytes, size_t count) {
    const uint64_t at = pushed_.load(std::memory_order_relaxed);
    count = std::min(count, kBytes - static_cast<size_t>(at - pulled_.load(std::memory_order_acquire)));
    const size_t place = at % kBytes, first = std::min(count, kBytes - place);
    if (count == 0) return 0;
    std::memcpy(ring_ + place, bytes, first);
    std::memcpy(ring_, bytes + first, count - first);
    pushed_.store(at + count, std::memory_order_release);
    return count;
}

size_t Channel::pull(char* bytes, size_t count) {
    const uint64_t at = pulled_.load(std::memory_order_relaxed);
    count = std::min(count, static_cast<size_t>(pushed_.load(std::memory_order_acquire) - at));
    const size_t place = at % kBytes, first = std::min(count, kBytes - place);
    if (count == 0) return 0;
    std::memcpy(bytes, ring_ + place, first);
    std::memcpy(bytes + first, ring_, count - first);
    pulled_.store(at + count, std::memory_order_release);
    return count;
}

Channel& Segment::channel(Traffic traffic, int from, int to) const {
    return channels_[(static_cast<int>(traffic) * ranks_ + from) * ranks_ + to];
}

// ---- coming and leaving --------------------------------------------------------------------------------------------

ncclUniqueId Segment::create() {
    const int file = memfd_create("virtual NCCL", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Header)) != 0)
        throw Error(ncclSystemError, format("no shared memory: %s", std::strerror(errno)));
    std::random_device device;
    Id id = {};
    std::memcpy(id.magic, kMagic, sizeof kMagic);
    id.process = getpid();
    id.file = file;
    id.random = (static_cast<uint64_t>(device()) << 32 | device()) | 1;
    if (pwrite(file, &id.random, sizeof id.random, offsetof(Header, random)) != sizeof id.random)
        throw Error(ncclSystemError, format("no shared memory: %s", std::strerror(errno)));
    const std::lock_guard lock(created_mutex);
    created()[id.random] = file;
    ncclUniqueId result = {};
    std::memcpy(&result, &id, sizeof id);
    return result;
}

Segment::Segment(const ncclUniqueId& id, int ranks, int rank, const std::string& card) : ranks_(ranks), rank_(rank) {
    try {
        open(id);
        take_seat(card);
    } catch (const Error&) {
        close_all();
        throw;
    }
}

Segment::~Segment() { close_all(); }

void Segment::close_all() {
    if (header_) munmap(header_, bytes_);
    if (file_ >= 0) close(file_);
}

void Segment::leave() {
    struct flock lock = lock_of(rank_);
    lock.l_type = F_UNLCK;
    fcntl(file_, F_OFD_SETLK, &lock);
}

void Segment::open(const ncclUniqueId& unique) {
    Id id;
    std::memcpy(&id, &unique, sizeof id);
    if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0)
        throw Error(ncclInvalidArgument, "this unique id does not come from ncclGetUniqueId");
    id_ = id.random;
    file_ = ::open(format("/proc/%d/fd/%d", id.process, id.file).c_str(), O_RDWR | O_CLOEXEC);
    uint64_t random = 0;
    if (file_ < 0 || pread(file_, &random, sizeof random, offsetof(Header, random)) != sizeof random || random != id_)
        throw Error(ncclSystemError,
                    format("the process %d that made the unique id is gone, or all its ranks have come "
                           "already: a unique id serves one communicator",
                           id.process));
    const size_t begin = (sizeof(Header) + 4095) / 4096 * 4096;
    bytes_ = begin + sizeof(Channel) * 2 * static_cast<size_t>(ranks_ * ranks_);
    int said = 0;
    void* first = mmap(nullptr, begin, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (first == MAP_FAILED) throw Error(ncclSystemError, format("no shared memory: %s", std::strerror(errno)));
    const bool agreed = static_cast<Header*>(first)->ranks.compare_exchange_strong(said, ranks_) || said == ranks_;
    munmap(first, begin);
    if (!agreed)
        throw Error(ncclInvalidArgument,
                    format("rank %d counts %d ranks, and another that came before it %d", rank_, ranks_, said));
    // All ranks reach this with the same size.
    void* all = MAP_FAILED;
    if (ftruncate(file_, static_cast<off_t>(bytes_)) == 0)
        all = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (all == MAP_FAILED) throw Error(ncclSystemError, format("no shared memory: %s", std::strerror(errno)));
    header_ = static_cast<Header*>(all);
    channels_ = reinterpret_cast<Channel*>(static_cast<char*>(all) + begin);
}

void Segment::take_seat(const std::string& card) {
    struct flock lock = lock_of(rank_);
    Seat& seat = header_->seats[rank_];
    if (fcntl(file_, F_OFD_SETLK, &lock) != 0 || seat.present)
        throw Error(ncclInvalidUsage, format("rank %d of %d has come twice", rank_, ranks_));
    copy_text(seat.card, card);
    copy_text(seat.doing, "has called nothing");
    seat.present = 1;
}

void Segment::await_all() {
    int next = 0;
    wait("the creation of a communicator", [&] {
        while (next < ranks_ && present(next)) next++;
        return next == ranks_;
    });
    {
        const std::lock_guard lock(created_mutex);
        const auto own = created().find(id_);
        if (own != created().end()) {
            close(own->second);
            created().erase(own);
        }
    }
    refuse_shared_cards();
}

void Segment::refuse_shared_cards() const {
    for (int a = 0; a < ranks_; a++)
        for (int b = a + 1; b < ranks_; b++)
            if (std::strcmp(header_->seats[a].card, header_->seats[b].card) == 0)
                throw Error(ncclInvalidUsage,
                            format("Duplicate GPU detected: rank %d and rank %d both on CUDA device %s", a, b,
                                   header_->seats[a].card));
}

bool Segment::present(int rank) const { return header_->seats[rank].present; }

bool Segment::gone(int rank) const {
    if (!present(rank) || rank == rank_) return false;
    struct flock lock = lock_of(rank);
    return fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

template <class Condition>
void Segment::wait(const char* what, Condition condition) {
    const double begin = now();
    double looked = begin;
    bool said = false;
    while (!condition()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (now() - looked < kSecondsBetweenLooks) continue;
        looked = now();
        std::string text;
        if (const ncclResult_t code = failure(&text); code != ncclSuccess) throw Error(code, text);
        for (int r = 0; r < ranks_; r++)
            if (gone(r) && !condition())
                throw Error(ncclRemoteError, format("rank %d waits in %s, and rank %d is gone", rank_, what, r));
        if (said || looked - begin < patience()) continue;
        said = true;
        std::string states;
        for (int r = 0; r < ranks_; r++)
            if (r != rank_) states += format("; rank %d %s", r, present(r) ? doing(r).c_str() : "has not come");
        report(format("rank %d waits for %.1f s in %s%s", rank_, looked - begin, what, states.c_str()));
    }
}

// ---- words ---------------------------------------------------------------------------------------------------------

void Segment::set_doing(const std::string& text) { copy_text(header_->seats[rank_].doing, text); }
std::string Segment::doing(int rank) const {
    return std::string(header_->seats[rank].doing, strnlen(header_->seats[rank].doing, kText));
}

void Segment::fail(ncclResult_t code, const std::string& text) {
    if (header_->failing.exchange(1)) return;
    copy_text(header_->failure_text, text);
    header_->failure = code;
}
ncclResult_t Segment::failure(std::string* text) const {
    const ncclResult_t code = static_cast<ncclResult_t>(header_->failure.load());
    if (text && code != ncclSuccess) *text = header_->failure_text;
    return code;
}

void Segment::exchange(void* all, const void* mine, size_t bytes, const char* what) {
    if (bytes > kExchange) throw Error(ncclInternalError, "too much to exchange");
    Seat& seat = header_->seats[rank_];
    // No rank may still be reading the data of the previous exchange.
    const auto all_have = [&](std::atomic<uint64_t> Seat::*count) {
        return [this, count] {
            return std::all_of(header_->seats, header_->seats + ranks_,
                               [&](const Seat& s) { return s.*count >= exchanges_; });
        };
    };
    wait(what, all_have(&Seat::read));
    std::memcpy(seat.exchanged, mine, bytes);
    exchanges_++;
    seat.given = exchanges_;
    wait(what, all_have(&Seat::given));
    for (int r = 0; r < ranks_; r++)
        std::memcpy(static_cast<char*>(all) + static_cast<size_t>(r) * bytes, header_->seats[r].exchanged, bytes);
    seat.read = exchanges_;
}

}  // namespace virtual_gpu::nccl
