// Invalid texts and lengths from another rank.
#include "llmc/comm/agreement.h"

#include <doctest/doctest.h>

#include <cstring>

#include "llmc/comm/backend.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Two ranks; this is rank 0. `lie` computes rank 1's part of every all_gather from rank 0's.
class Liar final : public Transport {
public:
    std::function<void(char* data, size_t bytes)> lie = [](char*, size_t) {};

    const char* name() const override { return "liar"; }
    int rank() const override { return 0; }
    int world() const override { return 2; }
    void all_gather(void* out, const void* in, size_t bytes) override {
        std::memcpy(out, in, bytes);
        std::memcpy(static_cast<char*>(out) + bytes, in, bytes);
        lie(static_cast<char*>(out) + bytes, bytes);
    }
    void all_to_all_v(void*, const std::vector<size_t>&, const void*, const std::vector<size_t>&) override {}
    void broadcast(void*, size_t, int) override {}
    void barrier() override {}
    std::shared_ptr<Transport> split(int) override { return nullptr; }
    void finish() override {}
};

void fill(char* data, size_t bytes) { std::memset(data, 'x', bytes); }

}  // namespace

TEST_CASE("peer_text: ends at the first NUL or at the capacity, and has no control characters") {
    CHECK(peer_text("abc\0def", 7) == "abc");
    CHECK(peer_text("abcdef", 3) == "abc");
    CHECK(peer_text("", 1) == "");
    CHECK(peer_text("a\033[2Jb\n\x7f", 8) == "a?[2Jb??");
    CHECK(peer_text("\xc3\xa9", 2) == "\xc3\xa9");
}

TEST_CASE("comm: a host name without an end, and a difference of configurations with control characters") {
    const auto liar = std::make_shared<Liar>();
    liar->lie = fill;
    const Comm comm = connect_transport(liar, false, ReduceOrder::any);
    CHECK(comm.host(1) == std::string(256, 'x'));
    liar->lie = [](char* data, size_t bytes) {
        const std::string text = "\033[2Jx";
        const uint64_t length = text.size();
        if (bytes == sizeof length || bytes == sizeof length + length) std::memcpy(data, &length, sizeof length);
        if (bytes == sizeof length + length) text.copy(data + sizeof length, length);
    };
    CHECK(error_of([&] { comm.require_equal("configuration", "anything"); }, ExitCode::bad_flags) ==
          "?[2Jx; start every rank with the same program and the same flags");
}

TEST_CASE("comm: a rank that receives a wrong identity for itself still counts itself") {
    const auto liar = std::make_shared<Liar>();
    liar->lie = [](char* data, size_t bytes) { fill(data - bytes, 2 * bytes); };
    const Comm comm = connect_transport(liar, false, ReduceOrder::any);
    CHECK(comm.local_world() == 1);
    CHECK(comm.local_rank() == 0);
}

TEST_CASE("agreement: lengths of texts are bounded by what all ranks announced") {
    const auto liar = std::make_shared<Liar>();
    const Comm comm = connect_transport(liar, false, ReduceOrder::any);
    CHECK(gather_texts(comm, "text") == std::vector<std::string>{"text", "text"});
    for (const uint64_t length : {uint64_t{5}, uint64_t{1} << 20, ~uint64_t{0}}) {
        liar->lie = [=](char* data, size_t bytes) {
            if (bytes == sizeof length + 4) std::memcpy(data, &length, sizeof length);
        };
        CHECK(contains(error_of([&] { gather_texts(comm, "text"); }), "rank 1 announces a text of"));
    }
    for (const int64_t longest : {int64_t{1} << 40, (int64_t{64} << 20) + 1}) {
        liar->lie = [=](char* data, size_t) { std::memcpy(data, &longest, sizeof longest); };
        CHECK(contains(error_of([&] { gather_texts(comm, "text"); }), "67108864 is the most"));
        CHECK(contains(error_of([&] { broadcast_text(comm, "text"); }), "67108864 is the most"));
    }
}

TEST_CASE("agreement: a failure whose exit code is not a number is still a failure") {
    const auto liar = std::make_shared<Liar>();
    const Comm comm = connect_transport(liar, false, ReduceOrder::any);
    liar->lie = [](char* data, size_t bytes) {
        const int64_t one = 1;
        if (bytes == sizeof one) std::memcpy(data, &one, sizeof one);  // "I have failed", or the length of its text
        if (bytes == sizeof(uint64_t) + 1) std::memcpy(data, &one, sizeof one), data[sizeof one] = '?';
    };
    const Failure failure = first_failure(comm, {});
    CHECK(failure.code == ExitCode::failure);
    CHECK(failure.text == "rank 1: ?");
}

TEST_CASE("agreement: the first input that ranks have read differently is named") {
    const InputFingerprints mine = {{"training set 'a'", 1}, {"sidecars", 2}, {"validation set 'b'", 3}};
    const auto liar = std::make_shared<Liar>();
    const Comm comm = connect_transport(liar, false, ReduceOrder::any);
    CHECK_NOTHROW(require_same_inputs(comm, mine));
    for (const size_t changed : {size_t{0}, size_t{1}, size_t{2}}) {
        // In rank 1's text, its fingerprints of this input and of those after it.
        liar->lie = [=](char* data, size_t bytes) {
            std::string text(data, bytes);
            for (size_t i = changed; i < mine.size() && bytes > 64; i++) text[text.find(mine[i].first) - 2] = 'f';
            text.copy(data, bytes);
        };
        const std::string message = error_of([&] { require_same_inputs(comm, mine); }, ExitCode::bad_data);
        CAPTURE(message);
        CHECK(contains(message, "rank 1 on"));
        CHECK(contains(message, "another " + mine[changed].first + " than rank 0"));
        CHECK(contains(message, "000000000000000f and 000000000000000" + std::to_string(mine[changed].second)));
    }
}
