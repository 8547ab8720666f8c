// Branches, loops and early returns of single lanes, compared with the same program on the host, lane by lane. The
// programs are random structured control flow over four registers.
#include <doctest/doctest.h>

#include <memory>
#include <random>

#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

constexpr int kVariables = 4;

// One lane, simulated on the host.
struct Lane {
    uint32_t v[kVariables];
    bool returned = false;
};

struct Statement {
    enum Kind { assign, branch, loop, leave, choose, meet } kind;
    int d = 0, a = 0, b = 0;  // variables
    uint32_t constant = 0;
    std::vector<Statement> first, second;  // branch: then, else; loop: its body; choose: cases 0 and 1
};
using Statements = std::vector<Statement>;

class Generator {
public:
    explicit Generator(uint32_t seed) : random_(seed) {}
    Statements statements(int depth, int count) {
        Statements list;
        for (int n = 0; n < count; n++) list.push_back(statement(depth));
        return list;
    }

private:
    int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
    Statement statement(int depth) {
        Statement s;
        const int choice = below(depth == 0 ? 3 : 10);
        s.kind = choice < 3    ? Statement::assign
                 : choice < 6  ? Statement::branch
                 : choice == 6 ? Statement::loop
                 : choice == 7 ? Statement::choose
                 : choice == 8 ? Statement::meet
                               : Statement::leave;
        s.d = below(kVariables), s.a = below(kVariables), s.b = below(kVariables);
        s.constant = random_();
        if (s.kind == Statement::branch || s.kind == Statement::choose) s.second = statements(depth - 1, below(3));
        if (s.kind == Statement::branch || s.kind == Statement::choose || s.kind == Statement::loop)
            s.first = statements(depth - 1, 1 + below(2));
        return s;
    }
    std::mt19937 random_;
};

// ---- on the host ----

void run(const Statements& list, Lane& lane) {
    for (const Statement& s : list) {
        if (lane.returned) return;
        uint32_t* const v = lane.v;
        switch (s.kind) {
            case Statement::assign:
                v[s.d] = (v[s.a] ^ s.constant) * 5 + v[s.b];
                break;
            case Statement::branch:
                run((v[s.a] >> (s.constant % 32) & 1) != 0 ? s.first : s.second, lane);
                break;
            case Statement::loop:
                for (uint32_t left = v[s.a] & 3; left != 0 && !lane.returned; left--) run(s.first, lane);
                break;
            case Statement::choose: {
                const uint32_t which = v[s.a] & 3;
                if (which == 0) run(s.first, lane);
                if (which == 1) run(s.second, lane);
                if (which == 2) v[s.d] += s.constant;
                break;
            }
            case Statement::leave:
                lane.returned = (v[s.a] >> (s.constant % 32) & 3) == 0;
                break;
            case Statement::meet:
                break;
        }
    }
}

// ---- as PTX: variables in %r0 to %r3, results at [%rd20] ----

class Writer {
public:
    std::string write(const Statements& list) {
        block(list, 0);
        return text_ + "bra STORE; " + tail_ + "STORE: " + kStore + "LEAVE: ";
    }

private:
    static constexpr const char* kStore = "st.global.v4.u32 [%rd20], {%r0, %r1, %r2, %r3}; ";

    std::string label() { return "L" + std::to_string(labels_++); }
    void bit(const Statement& s, int mask) {  // %r10 = the bits that decide
        text_ += ptx("shr.u32 %r10, %r$1, $2; and.b32 %r10, %r10, $3; ", s.a, s.constant % 32, mask);
    }

    void block(const Statements& list, int depth) {
        for (const Statement& s : list) statement(s, depth);
    }
    void statement(const Statement& s, int depth) {
        switch (s.kind) {
            case Statement::assign:
                text_ += ptx("xor.b32 %r10, %r$2, $4; mad.lo.s32 %r$1, %r10, 5, %r$3; ", s.d, s.a, s.b, s.constant);
                break;
            case Statement::branch:
                branch(s, depth);
                break;
            case Statement::loop:
                loop(s, depth);
                break;
            case Statement::choose:
                choose(s, depth);
                break;
            case Statement::leave:
                leave(s);
                break;
            case Statement::meet:
                // Outside of all branches, the remaining lanes meet here.
                if (depth == 0) text_ += labels_ % 2 ? "bar.sync 0; " : "bar.warp.sync 0xffffffff; ";
                break;
        }
    }
    void branch(const Statement& s, int depth) {
        const std::string otherwise = label(), end = label();
        bit(s, 1);
        text_ += "setp.eq.s32 %p0, %r10, 0; @%p0 bra " + otherwise + "; ";
        block(s.first, depth + 1);
        if (!s.second.empty()) text_ += "bra.uni " + end + "; ";
        text_ += otherwise + ": ";
        block(s.second, depth + 1);
        text_ += end + ": ";
    }
    void loop(const Statement& s, int depth) {
        const std::string begin = label(), end = label();
        const int counter = 20 + depth;
        text_ += ptx("and.b32 %r$1, %r$2, 3; $3: setp.eq.s32 %p1, %r$1, 0; @%p1 bra $4; ", counter, s.a, begin, end);
        block(s.first, depth + 1);
        text_ += ptx("sub.s32 %r$1, %r$1, 1; bra $2; $3: ", counter, begin, end);
    }
    void choose(const Statement& s, int depth) {  // a switch: comparisons, then cases that fall into the end
        const std::string zero = label(), one = label(), two = label(), end = label();
        text_ += ptx("and.b32 %r11, %r$1, 3; ", s.a);
        int which = 0;
        for (const std::string& to : {zero, one, two})
            text_ += ptx("setp.eq.s32 %p2, %r11, $1; @%p2 bra $2; ", which++, to);
        text_ += ptx("bra $1; $2: ", end, zero);
        block(s.first, depth + 1);
        text_ += ptx("bra $1; $2: ", end, one);
        block(s.second, depth + 1);
        text_ += ptx("bra $1; $2: add.s32 %r$3, %r$3, $4; $1: ", end, two, s.d, s.constant);
    }
    // The four ways in which compilers write an early return.
    void leave(const Statement& s) {
        const std::string l = label();
        bit(s, 3);
        switch (s.constant >> 8 & 3) {
            case 0:  // a separate block in the middle
                text_ += "setp.ne.s32 %p3, %r10, 0; @%p3 bra " + l + "; " + kStore + "ret; " + l + ": ";
                break;
            case 1:  // a separate block at the end
                text_ += "setp.eq.s32 %p3, %r10, 0; @%p3 bra " + l + "; ";
                tail_ += l + ": " + kStore + "ret; ";
                break;
            case 2:  // under a predicate
                text_ += std::string("setp.eq.s32 %p3, %r10, 0; @%p3 ") + kStore + "@%p3 ret; ";
                break;
            default:  // a branch to a shared ret
                text_ += std::string("setp.eq.s32 %p3, %r10, 0; @%p3 ") + kStore + "@%p3 bra LEAVE; ";
        }
    }

    std::string text_, tail_;
    int labels_ = 0;
};

void check_program(uint32_t seed) {
    const Statements program = Generator(seed).statements(3, 6);
    const uint32_t count = seed % 3 == 0 ? 50 : 32;  // also with a partial last warp
    const std::string text =
        element_address(20, 0, 16) +
        "mov.u32 %r0, %tid.x; mul.lo.s32 %r1, %r0, -1640531527; shr.u32 %r2, %r1, 13; xor.b32 %r3, %r1, %r2; " +
        Writer().write(program);
    const Buffer out(std::vector<uint32_t>(count * kVariables));
    const std::string message = fault_of([&] { run_snippet(text, {out.address()}, threads(count)); });
    INFO("seed ", seed, "\n", text);
    REQUIRE(message == "");
    const auto results = out.read<uint32_t>();
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t mixed = i * 0x9E3779B9u;
        Lane lane{{i, mixed, mixed >> 13, mixed ^ (mixed >> 13)}};
        run(program, lane);
        for (uint32_t v = 0; v < kVariables; v++) REQUIRE(results[i * kVariables + v] == lane.v[v]);
    }
}

}  // namespace

TEST_CASE("ptx control: random programs compute what the host computes") {
    for (uint32_t seed = 1; seed <= 2000; seed++) check_program(seed);
}

// Diverged lanes, warps and blocks then continue in random order.
TEST_CASE("ptx: control flow in random order") {
    expect_cases("ptx control", {{"VIRTUAL_GPU_ORDER", "random"}, {"VIRTUAL_GPU_SEED", "3"}});
}

}  // namespace virtual_gpu::test
