// Instructions that a warp's lanes execute together, against the PTX ISA's definitions, written a second time.
#include <doctest/doctest.h>

#include <bit>
#include <random>

#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

// Loads each lane's 32-bit words from `words` into %r1 to %rN, and returns the results of `snippet` in %r20 and, as 0
// or 1, in %p5. Lanes outside of `lanes` do not execute it.
struct Results {
    std::vector<uint32_t> values;
    std::vector<uint32_t> flags;
};
Results run(const std::string& snippet, const std::vector<std::vector<uint32_t>>& words, uint32_t lanes = kAll) {
    std::vector<uint32_t> all;
    for (const auto& w : words) all.insert(all.end(), w.begin(), w.end());
    const Buffer in(all), out(256);
    std::string text = element_address(20, 0, 4) + element_address(21, 1, 4);
    for (size_t n = 0; n < words.size(); n++) text += ptx("ld.global.u32 %r$1, [%rd21+$2]; ", n + 1, 128 * n);
    text +=
        ptx("mov.u32 %r20, -7; setp.eq.s32 %p5, 0, 1; mov.u32 %r40, $1; shr.u32 %r40, %r40, %r62; "
            "and.b32 %r40, %r40, 1; setp.eq.s32 %p9, %r40, 0; @%p9 bra SKIP; $2\n"
            "SKIP: st.global.u32 [%rd20], %r20; selp.u32 %r21, 1, 0, %p5; st.global.u32 [%rd20+128], %r21;",
            lanes, snippet);
    run_snippet(text, {out.address(), in.address()});
    const auto values = out.read<uint32_t>();
    return {{values.begin(), values.begin() + 32}, {values.begin() + 32, values.end()}};
}

std::vector<uint32_t> same(uint32_t x) { return std::vector<uint32_t>(32, x); }
std::vector<uint32_t> random_words(std::mt19937& random) {
    std::vector<uint32_t> words(32);
    for (uint32_t& w : words) w = random();
    return words;
}

// PTX ISA, "shfl.sync": the source lane, or -1 if it is out of range.
int source_lane(const std::string& mode, int lane, int b, int c) {
    const int clamp = c & 31, segments = c >> 8 & 31;
    const int most = (lane & segments) | (clamp & ~segments), least = lane & segments;
    b &= 31;
    if (mode == "up") return lane - b >= most ? lane - b : -1;
    if (mode == "down") return lane + b <= most ? lane + b : -1;
    if (mode == "bfly") return (lane ^ b) <= most ? lane ^ b : -1;
    const int from = least | (b & ~segments);
    return from <= most ? from : -1;
}

}  // namespace

TEST_CASE("ptx: shfl.sync takes from the lane in its definition") {
    std::mt19937 random(1);
    for (const std::string mode : {"up", "down", "bfly", "idx"})
        for (int trial = 0; trial < 60; trial++) {
            const auto a = random_words(random);
            // The values of __shfl_sync for widths of 32, 16, ..., then arbitrary ones that may differ by lane.
            std::vector<uint32_t> b(32), c(32);
            const uint32_t width = 1u << random() % 6, common_b = random() % 40;
            for (size_t i = 0; i < 32; i++) {
                c[i] = trial < 40 ? (32 - width) << 8 | (mode == "up" ? 0 : 31) : random() & 0x1f1f;
                b[i] = trial < 20 ? common_b : random() % 64;
            }
            const Results r = run("shfl.sync." + mode + ".b32 %r20|%p5, %r1, %r2, %r3, 0xffffffff;", {a, b, c});
            const Results without = run("shfl.sync." + mode + ".b32 %r20, %r1, %r2, %r3, 0xffffffff;", {a, b, c});
            bool ok = r.values == without.values;
            for (int i = 0; i < 32; i++) {
                const auto lane = static_cast<size_t>(i);
                const int from = source_lane(mode, i, static_cast<int>(b[lane]), static_cast<int>(c[lane]));
                ok &= r.values[lane] == a[from < 0 ? lane : static_cast<size_t>(from)];
                ok &= r.flags[lane] == (from >= 0 ? 1u : 0u);
            }
            CHECK_MESSAGE(ok, mode << " " << trial);
        }
}

TEST_CASE("ptx: votes and reductions are those of the named lanes") {
    std::mt19937 random(2);
    for (int trial = 0; trial < 60; trial++) {
        auto a = random_words(random);
        const uint32_t lanes = trial == 0 ? kAll : trial == 1 ? 1 : random() | 1u << random() % 32;
        const int kind = trial % 3;  // no lane, all lanes, or some lanes vote for it
        uint32_t votes = 0, sum = 0, conjunction = kAll, disjunction = 0, parity = 0, least = kAll, most = 0;
        int32_t least_signed = INT32_MAX, most_signed = INT32_MIN;
        for (size_t i = 0; i < 32; i++) {
            if (kind != 2) a[i] = a[i] << 1 | (kind == 1 ? 1u : 0u);
            if (!(lanes >> i & 1)) continue;
            votes |= (a[i] & 1) << i;
            sum += a[i], conjunction &= a[i], disjunction |= a[i], parity ^= a[i];
            least = std::min(least, a[i]), most = std::max(most, a[i]);
            least_signed = std::min(least_signed, static_cast<int32_t>(a[i]));
            most_signed = std::max(most_signed, static_cast<int32_t>(a[i]));
        }
        const auto check = [&](const std::string& snippet, uint32_t expected, bool flag) {
            const Results r =
                run("and.b32 %r30, %r1, 1; setp.ne.s32 %p1, %r30, 0; " + snippet, {a, same(lanes)}, lanes);
            bool ok = true;
            for (size_t i = 0; i < 32; i++) {
                const bool here = lanes >> i & 1;
                ok &= flag ? r.flags[i] == (here ? expected : 0)
                           : r.values[i] == (here ? expected : static_cast<uint32_t>(-7));
            }
            CHECK_MESSAGE(ok, snippet << " of " << lanes);
        };
        check("vote.sync.ballot.b32 %r20, %p1, %r2;", votes, false);
        check("vote.sync.ballot.b32 %r20, !%p1, %r2;", lanes & ~votes, false);
        check("vote.sync.any.pred %p5, %p1, %r2;", votes != 0, true);
        check("vote.sync.all.pred %p5, %p1, %r2;", votes == lanes, true);
        check("vote.sync.any.pred %p5, !%p1, %r2;", votes != lanes, true);
        check("vote.sync.all.pred %p5, !%p1, %r2;", votes == 0, true);
        check("vote.sync.uni.pred %p5, %p1, %r2;", votes == 0 || votes == lanes, true);
        // The guard's negation is not the operand's.
        check("@!%p9 vote.sync.any.pred %p5, %p1, %r2;", votes != 0, true);
        check("activemask.b32 %r20;", lanes, false);
        check("bar.warp.sync %r2; mov.u32 %r20, %r2;", lanes, false);
        check("redux.sync.add.s32 %r20, %r1, %r2;", sum, false);
        check("redux.sync.add.u32 %r20, %r1, %r2;", sum, false);
        check("redux.sync.and.b32 %r20, %r1, %r2;", conjunction, false);
        check("redux.sync.or.b32 %r20, %r1, %r2;", disjunction, false);
        check("redux.sync.xor.b32 %r20, %r1, %r2;", parity, false);
        check("redux.sync.min.u32 %r20, %r1, %r2;", least, false);
        check("redux.sync.max.u32 %r20, %r1, %r2;", most, false);
        check("redux.sync.min.s32 %r20, %r1, %r2;", static_cast<uint32_t>(least_signed), false);
        check("redux.sync.max.s32 %r20, %r1, %r2;", static_cast<uint32_t>(most_signed), false);
    }
}

// Groups of eight lanes, each with its own mask, at one instruction.
TEST_CASE("ptx: lanes with equal masks form groups") {
    std::mt19937 random(3);
    const auto a = random_words(random);
    std::vector<uint32_t> masks(32), last(32), sums(32, 0), odd(32, 0);
    for (size_t i = 0; i < 32; i++) {
        masks[i] = 0xffu << (i / 8 * 8);
        last[i] = a[i / 8 * 8 + 7];
        for (size_t j = i / 8 * 8; j < i / 8 * 8 + 8; j++) sums[i] += a[j], odd[i] |= (a[j] & 1) << j;
    }
    CHECK(run("redux.sync.add.u32 %r20, %r1, %r2;", {a, masks}).values == sums);
    CHECK(run("shfl.sync.idx.b32 %r20, %r1, 7, 0x181f, %r2;", {a, masks}).values == last);
    CHECK(run("and.b32 %r30, %r1, 1; setp.ne.s32 %p1, %r30, 0; vote.sync.ballot.b32 %r20, %p1, %r2;", {a, masks})
              .values == odd);
    // A mask on which two lanes disagree, and a source in another group.
    masks[3] = 0x7f;
    CHECK(contains(fault_of([&] {
                       run("bar.warp.sync %r2;", {a, masks});
                   }),
                   "member mask 000000ff, 0000007f in lane 3"));
    masks[3] = 0xff;
    CHECK(contains(fault_of([&] {
                       run("shfl.sync.idx.b32 %r20, %r1, 9, 31, %r2;", {a, masks});
                   }),
                   "reads lane 9, which is not active"));
}

// All non-exited threads in a mask must arrive; a mask may also name threads that have ended.
TEST_CASE("ptx: masks may name lanes that have ended") {
    const Buffer out(std::vector<uint32_t>(32, 5));
    run_snippet(element_address(20, 0, 4) +
                    "setp.ge.u32 %p0, %r62, 20; @%p0 ret; redux.sync.add.u32 %r1, 1, 0x00ffffff; "
                    "redux.sync.add.u32 %r2, 1, 0xffffffff; add.s32 %r1, %r1, %r2; st.global.u32 [%rd20], %r1;",
                {out.address()});
    const auto values = out.read<uint32_t>();
    for (size_t i = 0; i < 32; i++) CHECK(values[i] == (i < 20 ? 40 : 5));
    CHECK(contains(fault_of([&] {
                       run_snippet(
                           element_address(20, 0, 4) +
                               "setp.ge.u32 %p0, %r62, 20; @%p0 ret; shfl.sync.idx.b32 %r1, %r62, 25, 31, 0xffffffff;",
                           {out.address()});
                   }),
                   "reads lane 25, which is not active"));
}

// ldmatrix: row r of matrix m comes from the address of lane 8 m + r. Lane l gets elements 2 (l % 4) and + 1 of row l /
// 4, or, transposed, of column l / 4.
TEST_CASE("ptx: ldmatrix distributes the rows of 8 x 8 matrices") {
    std::mt19937 random(4);
    std::vector<uint16_t> data(32 * 8);
    for (uint16_t& x : data) x = static_cast<uint16_t>(random());
    std::vector<uint32_t> rows(32);  // for each lane, the row that its address points to
    for (uint32_t i = 0; i < 32; i++) rows[i] = (i * 13 + 5) % 32;
    const Buffer in(data), row_of(rows);
    for (const int matrices : {1, 2, 4})
        for (const bool transposed : {false, true}) {
            std::string list = "%r20", stores;
            for (int m = 0; m < matrices; m++) {
                if (m) list += ", %r2" + std::to_string(m);
                stores += ptx("st.global.u32 [%rd21+$1], %r2$2; ", 128 * m, m);
            }
            const Buffer out(static_cast<size_t>(128 * matrices));
            // Lanes whose address is ignored have an illegal one.
            run_snippet(element_address(20, 0, 16) + element_address(21, 1, 4) + element_address(22, 2, 4) +
                            "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd20]; mov.u32 %r5, data; shl.b32 %r6, %r62, 4; "
                            "add.s32 %r6, %r5, %r6; st.shared.v4.u32 [%r6], {%r1, %r2, %r3, %r4}; bar.sync 0; "
                            "ld.global.u32 %r7, [%rd22]; shl.b32 %r7, %r7, 4; add.s32 %r7, %r5, %r7; " +
                            ptx("setp.ge.u32 %p0, %r62, $1; selp.u32 %r7, 0, %r7, %p0; "
                                "ldmatrix.sync.aligned.m8n8.x$2$3.shared.b16 {$4}, [%r7]; ",
                                8 * matrices, matrices, transposed ? ".trans" : "", list) +
                            stores,
                        {in.address(), out.address(), row_of.address()}, threads(32),
                        ".shared .align 16 .b8 data[512]; ");
            const auto values = out.read<uint32_t>();
            bool ok = true;
            for (uint32_t m = 0; m < static_cast<uint32_t>(matrices); m++)
                for (uint32_t l = 0; l < 32; l++) {
                    const auto element = [&](uint32_t i, uint32_t j) {
                        return static_cast<uint32_t>(transposed ? data[rows[8 * m + j] * 8 + i]
                                                                : data[rows[8 * m + i] * 8 + j]);
                    };
                    ok &= values[32 * m + l] == (element(l / 4, l % 4 * 2) | element(l / 4, l % 4 * 2 + 1) << 16);
                }
            CHECK_MESSAGE(ok, matrices << (transposed ? " transposed" : ""));
        }
}

}  // namespace virtual_gpu::test
