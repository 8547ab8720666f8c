// The meeting of ranks over TCP, with strangers at the port and processes that claim to be ranks, and invalid messages
// from a rank that was admitted.
#include "llmc/comm/tcp.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "llmc/base/clock.h"
#include "llmc/comm/backend.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The error that the call throws, as "CODE text", or "" if it returns.
std::string ending_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
    return {};
}

TcpMeeting meeting_of(int world, int port, double timeout = 20, double hello_limit = 0.4) {
    return {.address = {"127.0.0.1", port},
            .world = world,
            .program = "0123456789abcdef",
            .secret = "secret",
            .timeout = timeout,
            .hello_limit = hello_limit};
}

// Rank 0 in its own thread, waiting for the others from the start.
class HubThread {
public:
    explicit HubThread(int world, double timeout = 20, double hello_limit = 0.4)
        : listener_(TcpSocket::listen("127.0.0.1", 0)),
          meeting_(meeting_of(world, listener_.port(), timeout, hello_limit)) {
        thread_ = std::thread(
            [this] { error_ = ending_of([this] { meet_as_hub(std::move(listener_), meeting_, peers_); }); });
    }
    ~HubThread() {
        if (thread_.joinable()) thread_.join();
    }
    const TcpMeeting& meeting() const { return meeting_; }
    // The result of the meeting: "" if all ranks have come.
    const std::string& error() {
        if (thread_.joinable()) thread_.join();
        return error_;
    }
    std::vector<TcpSocket>& peers() { return peers_; }

private:
    TcpSocket listener_;
    TcpMeeting meeting_;
    std::vector<TcpSocket> peers_;
    std::string error_;
    std::thread thread_;
};

TcpSocket stranger(const TcpMeeting& meeting) {
    std::string error;
    TcpSocket socket = TcpSocket::connect(meeting.address.host, meeting.address.port, monotonic_seconds() + 5, error);
    REQUIRE(socket.open());
    return socket;
}

}  // namespace

TEST_CASE("meeting: the listener only serves the interface of MASTER_ADDR") {
    CHECK(TcpSocket::listen("127.0.0.1", 0).local_address() == "127.0.0.1");
    for (const char* host : {"localhost", "LOCALHOST", "127.0.0.1", "127.1", "127.8.9.10", "0x7f.1", "::1",
                             "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "::ffff:7f00:1"}) {
        CAPTURE(host);
        const std::string address = TcpSocket::listen(host, 0).local_address();
        // A machine without IPv6 has no ::1.
        CHECK((is_loopback(address) || (std::strchr(host, ':') && address == "0.0.0.0")));
    }
    if (host_name() != "localhost") CHECK_FALSE(is_loopback(TcpSocket::listen(host_name(), 0).local_address()));
    // Not this machine's address, and an unknown name: MASTER_ADDR may be known only to the other machines.
    for (const char* host : {"192.0.2.1", "no-such-host.invalid"}) {
        const std::string address = TcpSocket::listen(host, 0).local_address();
        CHECK((address == "::" || address == "0.0.0.0"));
    }
}

TEST_CASE("meeting: silent connections, however many, do not delay the ranks") {
    HubThread hub(2);
    std::vector<TcpSocket> silent;
    for (int i = 0; i < 300; i++) silent.push_back(stranger(hub.meeting()));
    const double start = monotonic_seconds();
    const TcpSocket rank_1 = meet_as_spoke(1, hub.meeting());
    CHECK(hub.error() == "");
    CHECK(monotonic_seconds() - start < 5);
    CHECK(hub.peers()[1].open());
}

TEST_CASE("meeting: all ranks of a large run may connect at once") {
    HubThread hub(200, 3);
    std::vector<TcpSocket> silent;
    for (int r = 1; r < 200; r++) silent.push_back(stranger(hub.meeting()));
    CHECK(contains(hub.error(), "did not connect"));
    CHECK_FALSE(contains(hub.error(), "too many connections"));
}

TEST_CASE("meeting: a limit of 0 seconds is no limit") {
    HubThread hub(2, 0);
    usleep(50'000);
    std::optional<TcpSocket> rank_1;
    CHECK(ending_of([&] { rank_1 = meet_as_spoke(1, hub.meeting()); }) == "");
    CHECK(hub.error() == "");
}

TEST_CASE("meeting: more ranks than the usual number of descriptors") {
    rlimit limit = {};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    constexpr int kRanks = 200;  // two descriptors each, because all are in this process
    REQUIRE(limit.rlim_max > 3 * kRanks);
    const rlimit before = limit;
    limit.rlim_cur = kRanks;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    HubThread hub(kRanks);
    std::vector<TcpSocket> ranks;
    for (int r = 1; r < kRanks; r++) ranks.push_back(meet_as_spoke(r, hub.meeting()));
    CHECK(hub.error() == "");
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("meeting: a connection that talks slowly is dropped when its time is over") {
    HubThread hub(2);
    TcpSocket slow = stranger(hub.meeting());
    const double start = monotonic_seconds();
    const std::string hello = "LLMCrk03" + std::string(72, 'x');
    size_t sent = 0;
    while (sent < hello.size() && slow.send(&hello[sent], 1) && !slow.peer_closed()) {
        usleep(100'000);
        sent++;
    }
    CHECK(sent < hello.size());
    CHECK(monotonic_seconds() - start < 3);
    const TcpSocket rank_1 = meet_as_spoke(1, hub.meeting());
    CHECK(hub.error() == "");
}

TEST_CASE("meeting: strangers that say something else, and leave at once") {
    HubThread hub(3, 2);  // rank 2 never comes, so rank 0 lists the strangers
    for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'),
                                    std::string("LLMCrk03") + std::string(72, '\1'), std::string("LLMCrk03"),
                                    std::string("LLMCrk01\1\0\0\0\3\0\0\0", 16), std::string()}) {
        TcpSocket socket = stranger(hub.meeting());
        socket.send_without_waiting(text.data(), text.size());
    }
    const TcpSocket rank_1 = meet_as_spoke(1, hub.meeting());
    CHECK(contains(hub.error(), "7 rank 2 did not connect"));
    CHECK(contains(hub.error(), "; dropped 127.0.0.1: it is not a rank of this program"));
    CHECK(contains(hub.error(), "; dropped 127.0.0.1: it left without saying which rank it is"));
    CHECK_FALSE(contains(hub.error(), "dropped :"));
}

TEST_CASE("meeting: a process that is not a missing rank is told why, and the run keeps waiting") {
    HubThread hub(3);
    const auto refusal = [&](int rank, const std::function<void(TcpMeeting&)>& change) {
        TcpMeeting other = hub.meeting();
        change(other);
        return ending_of([&] { meet_as_spoke(rank, other); });
    };
    CHECK(contains(refusal(1, [](TcpMeeting& m) { m.secret = "guessed"; }), "2 rank 0 at 127.0.0.1:"));
    CHECK(contains(refusal(1, [](TcpMeeting& m) { m.secret = "guessed"; }),
                   "set LLMC_SECRET to the same text on all ranks"));
    CHECK(contains(refusal(1, [](TcpMeeting& m) { m.secret = ""; }), "its secret is not rank 0's"));
    CHECK(contains(refusal(1, [](TcpMeeting& m) { m.world = 4; }), "it is rank 1 of 4, but rank 0 expects 3 ranks"));
    CHECK(contains(refusal(3, [](TcpMeeting&) {}), "it is rank 3 of 3"));
    CHECK(contains(refusal(0, [](TcpMeeting&) {}), "it is rank 0 of 3"));
    CHECK(contains(refusal(-7, [](TcpMeeting&) {}), "it is rank -7 of 3"));
    CHECK(contains(refusal(1, [](TcpMeeting& m) { m.program = "another"; }), "another build of the program"));
    const TcpSocket rank_1 = meet_as_spoke(1, hub.meeting());
    CHECK(contains(refusal(1, [](TcpMeeting&) {}),
                   "rank 1 has already connected, from 127.0.0.1; two processes have RANK=1"));
    const TcpSocket rank_2 = meet_as_spoke(2, hub.meeting());
    CHECK(hub.error() == "");
}

// A man in the middle passes on rank 0's challenge and rank 1's hello. Every part of the hello is covered by the proof.
TEST_CASE("meeting: a hello that was changed or recorded on its way is refused") {
    HubThread hub(3, 300, 60);  // a busy machine may take its time between two messages
    std::string recorded;
    const auto answer = [&](int changed_byte, bool replay = false) {
        TcpSocket listener = TcpSocket::listen("127.0.0.1", 0), to_hub = stranger(hub.meeting());
        TcpMeeting middle = hub.meeting();
        middle.address.port = listener.port();
        std::optional<TcpSocket> rank_1;
        std::string error;
        std::thread spoke([&] { error = ending_of([&] { rank_1 = meet_as_spoke(1, middle); }); });
        std::string address, challenge(24, 0), hello(80, 0), verdict(256, 0);
        TcpSocket from_spoke;
        while (!from_spoke.open()) from_spoke = listener.accept(address);
        CHECK(to_hub.receive(challenge.data(), challenge.size()));
        CHECK(from_spoke.send(challenge.data(), challenge.size()));
        CHECK(from_spoke.receive(hello.data(), hello.size()));
        if (changed_byte >= 0) hello[changed_byte] ^= 1;
        if (replay) hello = recorded;
        CHECK(to_hub.send(hello.data(), hello.size()));
        CHECK(to_hub.receive(verdict.data(), verdict.size()));
        CHECK(from_spoke.send(verdict.data(), verdict.size()));
        spoke.join();
        recorded = hello;
        return error;
    };
    for (const int byte : {8, 12, 16, 47, 48, 63, 79}) {  // rank, world, program and proof
        CAPTURE(byte);
        CHECK(contains(answer(byte), "its secret is not rank 0's"));
    }
    CHECK(answer(-1) == "");
    CHECK(contains(answer(-1, true), "its secret is not rank 0's"));
    const TcpSocket rank_1 = meet_as_spoke(1, hub.meeting()), rank_2 = meet_as_spoke(2, hub.meeting());
    CHECK(hub.error() == "");
}

TEST_CASE("meeting: a rank that leaves before all have connected may come again") {
    HubThread hub(3);
    meet_as_spoke(1, hub.meeting()).close();
    std::optional<TcpSocket> again;
    for (int i = 0; i < 50 && !again; i++) {  // until rank 0 has noticed
        usleep(50'000);
        const std::string refused = ending_of([&] { again = meet_as_spoke(1, hub.meeting()); });
        CHECK((refused.empty() || contains(refused, "already connected")));
    }
    REQUIRE(again);
    const TcpSocket rank_2 = meet_as_spoke(2, hub.meeting());
    CHECK(hub.error() == "");
}

TEST_CASE("meeting: rank 0 names the ranks that are missing and the connections it dropped") {
    HubThread hub(4, 1.5);
    const TcpSocket rank_2 = meet_as_spoke(2, hub.meeting());
    TcpMeeting other = hub.meeting();
    other.world = 5;
    CHECK_THROWS_AS(meet_as_spoke(1, other), Error);
    CHECK(contains(hub.error(), "7 ranks 1, 3 did not connect to 127.0.0.1:"));
    CHECK(contains(hub.error(), "within 1.5 s (--timeout-start); dropped 127.0.0.1: it is rank 1 of 5"));
    CHECK_FALSE(contains(hub.error(), "rank 0 waited"));
}

TEST_CASE("meeting: no listener, and a listener of another program") {
    int port = 0;
    { port = TcpSocket::listen("127.0.0.1", 0).port(); }
    CHECK(contains(ending_of([&] { meet_as_spoke(1, meeting_of(2, port, 0.3)); }),
                   fmt::format("7 could not reach rank 0 at 127.0.0.1:{} within 0.3 s (--timeout-start): Connection "
                               "refused; are MASTER_ADDR and MASTER_PORT right",
                               port)));
    TcpSocket other = TcpSocket::listen("127.0.0.1", 0);
    CHECK(contains(ending_of([&] { meet_as_spoke(1, meeting_of(2, other.port(), 0.3)); }), "it does not answer"));
}

TEST_CASE("connect: a signal does not end the wait for an address that does not answer") {
    // A listener with a full queue ignores further connections.
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    const TcpSocket listener(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(::bind(listener.descriptor(), any, size) == 0);
    REQUIRE(::listen(listener.descriptor(), 0) == 0);
    REQUIRE(::getsockname(listener.descriptor(), any, &size) == 0);
    const TcpSocket guests[] = {TcpSocket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)),
                                TcpSocket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0))};
    for (const TcpSocket& guest : guests) ::connect(guest.descriptor(), any, size);

    struct sigaction previous, action = {};
    action.sa_handler = [](int) {};
    sigaction(SIGUSR1, &action, &previous);
    std::atomic<bool> done = false;
    std::thread sender([&, waiting = pthread_self()] {
        while (!done) {
            pthread_kill(waiting, SIGUSR1);
            usleep(10'000);
        }
    });
    std::string error;
    const TcpSocket socket = TcpSocket::connect("127.0.0.1", listener.port(), monotonic_seconds() + 0.3, error);
    done = true;
    sender.join();
    sigaction(SIGUSR1, &previous, nullptr);
    CHECK_FALSE(socket.open());
    CHECK(error == "no answer");
}

// ---- after the meeting ---------------------------------------------------------------------------------------------

namespace {

// The header that transport_tcp.cpp sends.
struct Header {
    uint32_t magic = 0x4C4D4D43;
    uint32_t kind = 0;
    uint64_t sequence = 0, bytes = 0;
};
constexpr uint32_t kAllToAllV = 2;

// The data of the next message.
std::string message_from(TcpSocket& socket) {
    Header header;
    REQUIRE(socket.receive(&header, sizeof header));
    std::string data(header.bytes, '\0');
    REQUIRE(socket.receive(data.data(), data.size()));
    return data;
}

// Runs rank 0's all_to_all_v with a rank 1 that announces these sizes; returns rank 0's error.
std::string exchange_with_liar(const std::vector<size_t>& announced) {
    std::string error;
    int port = 0;
    { port = TcpSocket::listen("127.0.0.1", 0).port(); }
    std::thread rank_0([&] {
        error = ending_of([&] {
            const auto transport = make_tcp_transport(0, meeting_of(2, port));
            std::vector<char> in(16), out(16);
            transport->all_to_all_v(out.data(), {8, 8}, in.data(), {8, 8});
        });
    });
    TcpSocket liar = meet_as_spoke(1, meeting_of(2, port));
    message_from(liar);  // addresses
    message_from(liar);  // secret for communicators split from this one
    const Header sizes{Header{}.magic, kAllToAllV, 3, announced.size() * sizeof(size_t)};
    REQUIRE(liar.send(&sizes, sizeof sizes));
    REQUIRE(liar.send(announced.data(), sizes.bytes));
    const Header row{Header{}.magic, kAllToAllV, 3, announced[0] + announced[1]};
    liar.send_without_waiting(&row, sizeof row);
    const std::string data(16, 'x');
    liar.send_without_waiting(data.data(), data.size());
    Header answer;
    const bool answered = liar.receive(&answer, sizeof answer, monotonic_seconds() + 1);
    liar.close();
    rank_0.join();
    CHECK(answered != contains(error, "was lost"));
    return error;
}

}  // namespace

// With that option the kernel breaks a connection whose peer has not read for so long, although it acknowledges probes.
TEST_CASE("tcp: a busy rank that reads nothing keeps its connection") {
    HubThread hub(2);
    const TcpSocket rank_1 = meet_as_spoke(1, hub.meeting());
    REQUIRE(hub.error() == "");
    for (const TcpSocket* socket : {&rank_1, static_cast<const TcpSocket*>(&hub.peers()[1])}) {
        int milliseconds = -1;
        socklen_t size = sizeof milliseconds;
        CHECK(getsockopt(socket->descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &size) == 0);
        CHECK(milliseconds == 0);
        CHECK(!socket->peer_closed());
    }
}

TEST_CASE("tcp: all ranks learn the whole of a long MASTER_ADDR") {
    int port = 0;
    { port = TcpSocket::listen("127.0.0.1", 0).port(); }
    TcpMeeting meeting = meeting_of(2, port);
    meeting.address.host = "127.0.0." + std::string(100, '0') + "1";
    std::string error;
    std::thread rank_0([&] { error = ending_of([&] { make_tcp_transport(0, meeting); }); });
    TcpSocket rank_1 = meet_as_spoke(1, meeting_of(2, port));
    CHECK(contains(message_from(rank_1), meeting.address.host));
    message_from(rank_1);
    rank_0.join();
    CHECK(error == "");
}

TEST_CASE("tcp: sizes of all_to_all_v that another rank announces are checked before they are used") {
    CHECK(exchange_with_liar({8, 8}) == "");
    CHECK(contains(exchange_with_liar({size_t{1} << 63, (size_t{1} << 63) + 16}), "7 ranks are out of step"));
    CHECK(contains(exchange_with_liar({8, ~size_t{0} - 7}),
                   "7 ranks are out of step: rank 1 has 8 bytes for rank 0, which expects 8, "
                   "and at least"));
    CHECK(contains(exchange_with_liar({9, 7}), "7 ranks are out of step"));
    // A plausible size: memory grows with the data that arrives, and the rank is lost before the rest.
    CHECK(contains(exchange_with_liar({8, size_t{1} << 40}), "7 rank 1 was lost during all_to_all_v"));
}
