// A launch: buffers, transfer of bytes, and detection of lost or stuck ranks (launch.h).
#include "dev/virtual_gpu/nccl/launch.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/nccl/card_order.h"
#include "dev/virtual_gpu/nccl/elements.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/planned_faults.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu::nccl {
namespace {

constexpr int kRounds = 64;  // rounds of moving bytes before other streams get a turn

// The number of turns that other streams get before a launch begins to read, and again before its results appear,
// unless streams run in plain order. Communication takes long on a GPU, so this finds work that should wait for it and
// does not. With `random` it is occasionally very long, beyond several launches issued later.
constexpr int kMostPostponed = 8, kLongPostponed = 64, kOneInLong = 32;
int postponement(std::mt19937_64& random) {
    if (options().streams == Streams::now) return 0;
    if (options().streams == Streams::lazy) return kMostPostponed;
    return random() % kOneInLong == 0 ? kLongPostponed : static_cast<int>(random() % (kMostPostponed + 1));
}

std::string buffer_name(const Call& call, const char* which) { return call.describe() + ": " + which; }

}  // namespace

Launch::Launch(ncclComm& comm, std::vector<Call> calls)
    : comm_(comm), segment_(comm.segment), calls_(std::move(calls)) {
    for (const Call& call : calls_)
        if (std::find(streams_.begin(), streams_.end(), call.stream) == streams_.end()) streams_.push_back(call.stream);
    arrived_.resize(streams_.size());
    static std::atomic<long> launches{0};
    const long number = ++launches;
    stalls_ = number == planned_fault("stall");
    std::mt19937_64 random(options().seed + static_cast<uint64_t>(number));
    before_start_ = postponement(random);
    before_end_ = postponement(random);
    if (counting())
        for (const Call& call : calls_)
            count_work({{"collective", name_of(call.kind)},
                        {"ranks", comm.ranks},
                        {"sent_bytes", send_extent(call, comm.rank, comm.ranks) * size_of(call.type)},
                        {"received_bytes", recv_extent(call, comm.rank, comm.ranks) * size_of(call.type)}});
    comm_.outstanding++;
    CardOrder::issue(*this);
    say("has issued " + name() + ", and its stream has not come to it");
}

Launch::~Launch() { end(); }

std::string Launch::name() const {
    std::string text = calls_.front().describe();
    if (calls_.size() > 1) text += format(" and %zu more of its group", calls_.size() - 1);
    return format("%s on communicator %d", text.c_str(), comm_.id);
}

// ---- life ----------------------------------------------------------------------------------------------------------

bool Launch::poll(size_t stream) {
    if (!ended_ && comm_.life == ncclComm::Life::aborted) end();
    if (ended_) return true;
    arrived_[stream] = true;
    if (last_look_ == 0) last_move_ = last_look_ = now();
    if (!started_) {
        if (std::find(arrived_.begin(), arrived_.end(), false) != arrived_.end()) {
            say("waits in " + name() + " for another stream of the group");
            return watch(false), false;
        }
        if (const std::string other = CardOrder::holds_up(*this); !other.empty()) {
            say("waits to start " + name() + " behind " + other);
            return watch(false), false;
        }
        if (before_start_ > 0) return before_start_--, false;
        start();
        if (ended_) return true;
    }
    bool moved = false;
    for (int round = 0; round < kRounds && can_move() && move(); round++) moved = true;
    if (can_move() && complete()) {
        if (before_end_ > 0) return before_end_--, false;
        finish();
        return true;
    }
    watch(moved);
    return false;
}

void Launch::conclude() {
    if (fault_) throw Fault(*std::exchange(fault_, std::nullopt));
}

void Launch::start() {
    started_ = true;
    say((stalls_ ? "stalls on purpose in " : "is in ") + name());
    try {
        check_buffers();
    } catch (const Fault& fault) {
        fault_ = fault.what();
        say("failed: " + *fault_);
        return end();
    }
    for (size_t i = 0; i < calls_.size(); i++) {
        const Call& call = calls_[i];
        const size_t bytes = call.count * size_of(call.type);
        if (call.kind == Kind::send) {
            Channel& channel = segment_->channel(Traffic::point_to_point, comm_.rank, call.peer);
            outgoing_.push_back({&channel, call.peer, label_of(call), inputs_[i], bytes});
        } else if (call.kind == Kind::recv) {
            Channel& channel = segment_->channel(Traffic::point_to_point, call.peer, comm_.rank);
            incoming_[i].push_back({&channel, call.peer, label_of(call), {}, std::vector<char>(bytes)});
        } else {
            add_collective(i);
        }
    }
}

// Sends the label to every rank, even without data for it: all ranks must be in the same operation.
void Launch::add_collective(size_t index) {
    const Call& call = calls_[index];
    const size_t size = size_of(call.type);
    const int self = comm_.rank;
    for (int peer = 0; peer < comm_.ranks; peer++) {
        if (peer == self) {
            incoming_[index].push_back({});
            continue;
        }
        const Elements out = sent(call, self, peer, comm_.ranks), in = sent(call, peer, self, comm_.ranks);
        outgoing_.push_back({&segment_->channel(Traffic::collective, self, peer), peer, label_of(call),
                             out.count ? inputs_[index] + out.at * size : nullptr, out.count * size});
        incoming_[index].push_back({&segment_->channel(Traffic::collective, peer, self),
                                    peer,
                                    label_of(call),
                                    {},
                                    std::vector<char>(in.count * size)});
    }
}

void Launch::end() {
    if (std::exchange(ended_, true)) return;
    const int more = --comm_.outstanding;
    if (!fault_) say("has ended " + name() + (more ? format(" and issued %d more", more) : ""));
    CardOrder::end(*this);
}

// ---- buffers -------------------------------------------------------------------------------------------------------

// Data to send must have been written. Memory for received data counts as not written until the end, so reading it too
// early is detected.
void Launch::check_buffers() {
    Memory& memory = Memory::get();
    inputs_.resize(calls_.size());
    incoming_.resize(calls_.size());
    for (size_t i = 0; i < calls_.size(); i++)
        if (const size_t n = send_extent(calls_[i], comm_.rank, comm_.ranks); n > 0)
            inputs_[i] = memory.readable(calls_[i].send, n * size_of(calls_[i].type),
                                         buffer_name(calls_[i], "sendbuff").c_str());
    for (const Call& call : calls_) {
        const size_t size = size_of(call.type), n = recv_extent(call, comm_.rank, comm_.ranks);
        if (n == 0) continue;
        memory.writable(call.recv, n * size, buffer_name(call, "recvbuff").c_str());
        if (!memory.is_device(call.recv)) continue;
        const bool keep_own = in_place(call, comm_.rank, comm_.ranks);
        if (keep_own && place(call, comm_.ranks) == 0) continue;  // its whole buffer is the input
        for (size_t at = 0; at < n; at += call.count) {
            if (keep_own && at == place(call, comm_.rank)) continue;
            std::memset(memory.written(reinterpret_cast<uint64_t>(call.recv) + at * size), 0, call.count * size);
        }
    }
}

void Launch::finish() {
    try {
        for (size_t i = 0; i < calls_.size(); i++) place_results(i);
    } catch (const Fault& fault) {
        fault_ = fault.what();
    }
    end();
}

void Launch::place_results(size_t index) {
    const Call& call = calls_[index];
    const size_t size = size_of(call.type), n = recv_extent(call, comm_.rank, comm_.ranks);
    if (n == 0) return;
    char* const out = Memory::get().writable(call.recv, n * size, buffer_name(call, "recvbuff").c_str());
    std::vector<Incoming>& from = incoming_[index];
    if (call.kind == Kind::recv) {
        std::memcpy(out, from[0].data.data(), n * size);
    } else {
        const Elements own = sent(call, comm_.rank, comm_.rank, comm_.ranks);
        const auto contribution = [&](int rank) -> const char* {
            return rank == comm_.rank ? inputs_[index] + own.at * size : from[static_cast<size_t>(rank)].data.data();
        };
        if (call.reduces()) {
            std::vector<char> sum(contribution(0), contribution(0) + n * size);
            for (int rank = 1; rank < comm_.ranks; rank++)
                accumulate(sum.data(), contribution(rank), n, call.type, call.op);
            std::memcpy(out, sum.data(), n * size);
        } else {
            for (int rank = 0; rank < comm_.ranks; rank++)
                if (sent(call, rank, comm_.rank, comm_.ranks).count > 0)
                    std::memmove(out + place(call, rank) * size, contribution(rank), call.count * size);
        }
    }
    if (lies("corrupt", name_of(call.kind))) out[0] = static_cast<char>(~out[0]);
}

// ---- bytes ---------------------------------------------------------------------------------------------------------

bool Launch::can_move() const { return !stalls_ && !broken_ && comm_.failure() == ncclSuccess; }

bool Launch::move() {
    bool moved = false;
    std::vector<const Channel*> busy;  // a message that later messages on the channel have to wait for
    const auto turn = [&](const Channel* channel) {
        return std::find(busy.begin(), busy.end(), channel) == busy.end();
    };
    for (Outgoing& message : outgoing_) {
        if (message.end || !turn(message.channel)) continue;
        moved |= send(message);
        if (!message.end) busy.push_back(message.channel);
    }
    busy.clear();
    for (std::vector<Incoming>& of_call : incoming_)
        for (Incoming& message : of_call) {
            const size_t all = sizeof(Label) + message.data.size();
            if (!message.channel || message.done == all || !turn(message.channel)) continue;
            moved |= receive(message);
            if (message.done < all) busy.push_back(message.channel);
        }
    return moved;
}

bool Launch::send(Outgoing& message) {
    const size_t before = message.done;
    if (message.done < sizeof(Label))
        message.done += message.channel->push(reinterpret_cast<const char*>(&message.label) + message.done,
                                              sizeof(Label) - message.done);
    if (message.done >= sizeof(Label)) {
        const size_t at = message.done - sizeof(Label);
        message.done += message.channel->push(message.data + at, message.bytes - at);
    }
    if (message.done == sizeof(Label) + message.bytes) message.end = message.channel->pushed();
    return message.done > before;
}

bool Launch::receive(Incoming& message) {
    const size_t before = message.done;
    if (message.done < sizeof(Label)) {
        message.done +=
            message.channel->pull(reinterpret_cast<char*>(&message.found) + message.done, sizeof(Label) - message.done);
        if (message.done < sizeof(Label)) return message.done > before;
        const std::string text = difference(message.found, message.peer, message.expected, comm_.rank);
        if (!text.empty()) {
            broken_ = true;
            comm_.fail_all(ncclInvalidUsage, text);
            return false;
        }
    }
    const size_t at = message.done - sizeof(Label);
    message.done += message.channel->pull(message.data.data() + at, message.data.size() - at);
    return message.done > before;
}

// A message counts once the other rank has taken it, so the end of a call does not depend on how much happens to fit.
bool Launch::complete() const {
    for (const Outgoing& message : outgoing_)
        if (message.end == 0 || message.channel->pulled() < message.end) return false;
    for (const std::vector<Incoming>& of_call : incoming_)
        for (const Incoming& message : of_call)
            if (message.channel && message.done < sizeof(Label) + message.data.size()) return false;
    return true;
}

// ---- others --------------------------------------------------------------------------------------------------------

// The rank is doing what the oldest launch of the communicator is doing.
void Launch::say(const std::string& doing) {
    if (doing == doing_ || !CardOrder::oldest(*this)) return;
    doing_ = doing;
    segment_->set_doing(doing);
}

void Launch::watch(bool moved) {
    const double time = now();
    if (moved) last_move_ = time;
    if (time - last_look_ < kSecondsBetweenLooks) return;
    last_look_ = time;
    if (started_ && comm_.failure() == ncclSuccess && lost_a_peer()) return;
    if (time - last_move_ > patience() && !comm_.named.exchange(true)) name_those_waiting(time - last_move_);
}

bool Launch::lost_a_peer() {
    const auto lost = [&](int peer) {
        if (!segment_->gone(peer) || (can_move() && (move() || complete())))
            return false;  // it may have sent its part before
        comm_.fail(ncclRemoteError, format("%s waits for rank %d, which is gone", name().c_str(), peer));
        return true;
    };
    for (const Outgoing& message : outgoing_)
        if ((message.end == 0 || message.channel->pulled() < message.end) && lost(message.peer)) return true;
    for (const std::vector<Incoming>& of_call : incoming_)
        for (const Incoming& message : of_call)
            if (message.channel && message.done < sizeof(Label) + message.data.size() && lost(message.peer))
                return true;
    return false;
}

void Launch::name_those_waiting(double seconds) {
    std::string text = format("%s: nothing has moved for %.1f s", comm_.name().c_str(), seconds);
    for (int rank = 0; rank < comm_.ranks; rank++)
        text +=
            format("; rank %d %s%s", rank, segment_->doing(rank).c_str(), segment_->gone(rank) ? " and is gone" : "");
    report(text);
}

}  // namespace virtual_gpu::nccl
