// Grids, blocks and barriers: indices of threads, and warps that wait for one another.
#include <doctest/doctest.h>

#include <numeric>

#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {

TEST_CASE("ptx grid: special registers in one, two and three dimensions") {
    const char* const names[] = {"%tid.x",  "%tid.y",  "%tid.z",  "%ctaid.x",  "%ctaid.y",  "%ctaid.z",
                                 "%ntid.x", "%ntid.y", "%ntid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
                                 "%laneid", "%warpid", "%clock",  "WARP_SZ"};
    constexpr uint32_t kNames = 16;
    // The thread's index in the grid, whatever its shape.
    std::string text =
        "mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.s32 %r1, %r1, %r2, %r3; "
        "mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.s32 %r1, %r1, %r2, %r3; mov.u32 %r2, %ntid.z; "
        "mov.u32 %r3, %tid.z; mad.lo.s32 %r1, %r1, %r2, %r3; mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; "
        "mad.lo.s32 %r1, %r1, %r2, %r3; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r1, %r1, %r2, %r3; "
        "mul.wide.u32 %rd9, %r1, 64; add.s64 %rd9, %rd0, %rd9; ";
    for (uint32_t n = 0; n < kNames; n++)
        text += ptx("mov.u32 %r4, $1; st.global.u32 [%rd9+$2], %r4; ", names[n], 4 * n);
    const Shape shapes[] = {threads(1),
                            threads(33, 3),
                            {{2, 3, 1}, {7, 5, 1}},
                            {{3, 2, 2}, {4, 3, 5}},
                            {{1, 1, 4}, {1, 1, 64}},
                            {{5, 1, 1}, {32, 32, 1}}};
    for (const Shape& s : shapes) {
        const uint32_t block = s.block[0] * s.block[1] * s.block[2], grid = s.grid[0] * s.grid[1] * s.grid[2];
        const Buffer out(size_t{4} * kNames * block * grid);
        run_snippet(text, {out.address()}, s);
        const auto values = out.read<uint32_t>();
        bool ok = true;
        for (uint32_t b = 0; b < grid; b++)
            for (uint32_t t = 0; t < block; t++) {
                const uint32_t expected[kNames] = {t % s.block[0],
                                                   t / s.block[0] % s.block[1],
                                                   t / s.block[0] / s.block[1],
                                                   b % s.grid[0],
                                                   b / s.grid[0] % s.grid[1],
                                                   b / s.grid[0] / s.grid[1],
                                                   s.block[0],
                                                   s.block[1],
                                                   s.block[2],
                                                   s.grid[0],
                                                   s.grid[1],
                                                   s.grid[2],
                                                   t % 32,
                                                   t / 32,
                                                   0,
                                                   32};
                for (uint32_t n = 0; n < kNames; n++)
                    ok &= values[(b * block + t) * kNames + n] == expected[n] || names[n] == std::string("%clock");
            }
        CHECK(ok);
    }
}

TEST_CASE("ptx grid: every block runs once") {
    for (const uint32_t blocks : {1u, 2u, 64u, 97u, 1000u}) {
        const Buffer counters(std::vector<uint32_t>(blocks, 0));
        run_snippet(
            "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd9, %r1, 4; add.s64 %rd9, %rd0, %rd9; red.global.add.u32 [%rd9], 1;",
            {counters.address()}, threads(40, blocks));
        CHECK(counters.read<uint32_t>() == std::vector<uint32_t>(blocks, 40));
    }
}

// In each round every thread reads what its right neighbour wrote, with two barriers per round. After the rounds it has
// the number of the thread that far to the right.
TEST_CASE("ptx grid: bar.sync makes all warps wait") {
    for (const std::string& barrier :
         {std::string("bar.sync 0; "), std::string("barrier.sync 3; "), std::string("bar.sync 1, 96; "),
          std::string("mov.u32 %r8, 15; mov.u32 %r9, 96; bar.sync %r8, %r9; ")}) {
        const Buffer out(96 * 4);
        run_snippet(element_address(20, 0, 4) +
                        "mov.u32 %r0, %tid.x; mov.u32 %r7, data; shl.b32 %r1, %r0, 2; add.s32 %r1, %r1, %r7; "
                        "add.s32 %r2, %r0, 1; rem.u32 %r2, %r2, 96; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r7; "
                        "mov.u32 %r3, %r0; mov.u32 %r4, 0; LOOP: st.shared.u32 [%r1], %r3; " +
                        barrier + "ld.shared.u32 %r3, [%r2]; " + barrier +
                        "add.s32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, 50; @%p0 bra LOOP; st.global.u32 [%rd20], %r3;",
                    {out.address()}, threads(96), ".shared .align 4 .b8 data[384]; ");
        const auto values = out.read<uint32_t>();
        bool ok = true;
        for (uint32_t i = 0; i < 96; i++) ok &= values[i] == (i + 50) % 96;
        CHECK(ok);
    }
}

// One warp writes and three wait: an arrival counts but does not wait.
TEST_CASE("ptx grid: bar.arrive lets a warp continue") {
    const Buffer out(128 * 4);
    run_snippet(element_address(20, 0, 4) +
                    "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 32; mov.u32 %r7, data; mov.u32 %r4, 0; @!%p0 bra READ; "
                    "shl.b32 %r1, %r0, 2; add.s32 %r1, %r1, %r7; st.shared.u32 [%r1], %r0; bar.arrive 1, 128; bra END; "
                    "READ: bar.sync 1, 128; and.b32 %r1, %r0, 31; shl.b32 %r1, %r1, 2; add.s32 %r1, %r1, %r7; "
                    "ld.shared.u32 %r4, [%r1]; END: st.global.u32 [%rd20], %r4;",
                {out.address()}, threads(128), ".shared .align 4 .b8 data[128]; ");
    const auto values = out.read<uint32_t>();
    bool ok = true;
    for (uint32_t i = 0; i < 128; i++) ok &= values[i] == (i < 32 ? 0 : i % 32);
    CHECK(ok);
}

// Barriers do not wait for warps that have ended, nor for such lanes of a warp.
TEST_CASE("ptx grid: a barrier waits for the threads that have not ended") {
    for (const int left : {1, 20, 32, 50, 64, 70}) {
        const Buffer out(std::vector<uint32_t>(96, 7));
        run_snippet(element_address(20, 0, 4) +
                        ptx("setp.ge.u32 %p0, %r62, $1; @%p0 ret; bar.sync 0; st.global.u32 [%rd20], %r62;", left),
                    {out.address()}, threads(96));
        const auto values = out.read<uint32_t>();
        bool ok = true;
        for (uint32_t i = 0; i < 96; i++) ok &= values[i] == (i < static_cast<uint32_t>(left) ? i : 7);
        CHECK(ok);
    }
}

TEST_CASE("ptx: grids in other orders") {
    expect_cases("ptx grid", {{"VIRTUAL_GPU_ORDER", "random"}, {"VIRTUAL_GPU_SEED", "5"}});
    expect_cases("ptx grid", {{"VIRTUAL_GPU_ORDER", "descending"}});
    expect_cases("ptx grid", {{"VIRTUAL_GPU_THREADS", "3"}});
    expect_cases("ptx grid", {{"VIRTUAL_GPU_THREADS", "1"}, {"VIRTUAL_GPU_COUNTS", "/dev/null"}});
}

}  // namespace virtual_gpu::test
