// mbarrier: phases by definition, and each rule broken once.
#include <doctest/doctest.h>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/hopper_program.h"

namespace virtual_gpu::test {
namespace {

const std::string kBarriers = ".shared .align 8 .b64 bar[4]; .shared .align 128 .b8 data[256]; ";
const std::string kInit =
    "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r1, 0; "
    "@%p0 mbarrier.init.shared::cta.b64 [bar], ";

}  // namespace

TEST_CASE("hopper: mbarrier counts arrivals of its phases") {
    // Word by word: is the phase of this parity complete?
    const Buffer out(std::vector<uint32_t>(7, 99));
    const auto arrive = [](const std::string& rest) { return "mbarrier.arrive" + rest + "; "; };
    const auto test = [](int parity, int at) {
        return ptx(
            "mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], $1; selp.u32 %r5, 1, 0, %p2; "
            "st.global.u32 [%rd0+$2], %r5; ",
            parity, 4 * at);
    };
    run_snippet(kInit + "3; @!%p0 bra END; " + arrive(".shared::cta.b64 _, [bar]") + test(0, 0) + test(1, 1) +
                    arrive(".shared.b64 _, [bar], 2") + test(0, 2) + test(1, 3) +
                    // The second phase: bytes as well, of which none is left.
                    arrive(".expect_tx.release.cta.shared::cta.b64 _, [bar], 0") + test(1, 4) +
                    arrive(".shared.b64 _, [bar], 2") + test(1, 5) + test(0, 6) + "END:",
                {out.address()}, {}, kBarriers);
    CHECK(out.read<uint32_t>() == std::vector<uint32_t>{0, 1, 1, 0, 0, 1, 0});
}

TEST_CASE("hopper: warps and lanes wait for each other at mbarriers") {
    // Four warps: the last one writes, and the others read.
    const Buffer out(std::vector<uint32_t>(128, 0));
    run_snippet(kInit +
                    "32; bar.sync 0; setp.eq.u32 %p1, %r1, 3; @!%p1 bra READ; shl.b32 %r2, %r0, 2; "
                    "and.b32 %r2, %r2, 127; mov.u32 %r3, data; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r0; "
                    "mbarrier.arrive.shared::cta.b64 _, [bar]; READ: " +
                    wait("0") + "ld.shared.u32 %r4, [data+8]; " + element_address(9, 0, 4) +
                    "st.global.u32 [%rd9], %r4;",
                {out.address()}, threads(128), kBarriers);
    CHECK(out.read<uint32_t>() == std::vector<uint32_t>(128, 98));
    // Lanes of one warp that took different branches.
    const Buffer lanes(std::vector<uint32_t>(32, 0));
    run_snippet(kInit + "1; bar.warp.sync 0xffffffff; @%p0 bra FIRST; " + wait("0") +
                    "bra END; FIRST: st.shared.u32 [data], 5; mbarrier.arrive.shared::cta.b64 _, [bar]; "
                    "END: bar.warp.sync 0xffffffff; ld.shared.u32 %r4, [data]; " +
                    element_address(9, 0, 4) + "st.global.u32 [%rd9], %r4;",
                {lanes.address()}, {}, kBarriers);
    CHECK(lanes.read<uint32_t>() == std::vector<uint32_t>(32, 5));
}

TEST_CASE("hopper: mbarriers' rules") {
    const std::string one = kInit + "1; bar.sync 0; ";
    const Buffer global(std::vector<uint64_t>(4, 0));
    check(
        {
            {"@%p0 mbarrier.init.shared.b64 [bar], 1; {{||mbarrier.init.shared.b64 [bar], 1; "
             "}}mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0;",
             {"no mbarrier was initialized at shared 0"}},
            {"mbarrier.init.shared.b64 [bar], {{0||1}};", {"a count of 0"}},
            {"mbarrier.init.shared.b64 [bar], {{1048576||1048575}};", {"a count of 1048576"}},
            {"mbarrier.init.shared.b64 [bar+{{4||8}}], 1;", {"misaligned mbarrier of 8 bytes"}},
            {"mbarrier.init.shared.b64 [bar], 1; mbarrier.init.shared.b64 [bar+{{0||8}}], 1;",
             {"an mbarrier is there already, of PTX line "}},
            {"mbarrier.init.shared.b64 [bar], 2; mbarrier.arrive.shared.b64 _, [bar], {{3||2}};",
             {"3 arrivals at the mbarrier at shared 0 are more than are expected: phase 0, which waits for 2 of 2 "
              "arrivals"}},
            {"mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.expect_tx.shared.b64 _, [bar], {{16||0}}; "
             "mbarrier.arrive.shared.b64 _, [bar];",
             {"1 arrivals", "0 of 1 arrivals and 16 bytes"}},
            {"mbarrier.init.shared.b64 [bar], 3; mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1048575; "
             "mbarrier.arrive.expect_tx.shared.b64 _, [bar], {{1||0}};",
             {"cannot count 1048576 bytes"}},
            {"mbarrier.init.shared.b64 [bar], 1; mbarrier.try_wait.parity.shared.b64 %p1, [bar], {{2||1}};",
             {"phase parity 2"}},
            // Generic addresses lead there too, but not out of shared memory.
            {"{{mov.b64 %rd9, %rd0||mov.u64 %rd8, bar; cvta.shared.u64 %rd9, %rd8}}; mbarrier.init.b64 [%rd9], 1;",
             {"mbarrier outside of shared memory"}},
            // The barrier's bits are opaque.
            {"mbarrier.init.shared.b64 [bar], 1; st.shared.u32 [bar+{{4||8}}], 1;",
             {"a write to shared 4, where an mbarrier lies"}},
            {"st.shared.u64 [bar+8], 1; mbarrier.init.shared.b64 [bar], 1; ld.shared.u64 %rd9, [bar+{{0||8}}];",
             {"load of 8 bytes of shared memory", "of an mbarrier"}},
            // Waiting threads and their places.
            {one + "{{||@%p0 mbarrier.arrive.shared.b64 _, [bar]; }}" + wait("0"),
             {"every warp waits: warp 0 at the mbarrier at shared 0 (PTX line ",
              "): phase 0, which waits for 1 of 1 arrivals and 0 bytes; warp 1 at the mbarrier"},
             threads(64)},
            {one +
                 "@%p1 bar.sync 1, 64; @!%p1 {{mbarrier.try_wait.parity.shared.b64 %p2, [bar], 1||bar.sync 1, 64}}; "
                 "@%p1 bra END; " +
                 wait("{{0||1}}") + "END:",
             {"every warp waits: warp 0 at barrier 1", "warp 1 at the mbarrier"},
             threads(64)},
            {"mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.expect_tx.shared.b64 _, [bar], {{32||0}}; " +
                 wait("0"),
             {"waits for 0 of 1 arrivals and 32 bytes"}},
            {"mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive{{.volatile||}}.shared.b64 _, [bar];",
             {"instruction not known: mbarrier.arrive.volatile.shared.b64"}},
            {"mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.shared.b64 {{%rd9||_}}, [bar];",
             {"only arrivals without a result are known"}},
        },
        kBarriers, {global.address()}, kOneThread);
}

// With race detection: accesses that mbarriers order, and those they do not.
TEST_CASE("hopper: with races, mbarriers order threads") {
    if (!options().races) return;
    // Depending on the order of warps, the error says that the barrier does not exist or that its init races.
    const std::string two = "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 32; ",
                      init = "@%p0 mbarrier.init.shared::cta.b64 [bar], 1; ";
    check({{two + init + "@%p0 mbarrier.arrive.shared.b64 _, [bar]; {{||bar.sync 0; }}" + wait("0"),
            {"mbarrier"},
            threads(64)},
           // Thread 32 reads data that thread 0 wrote before or after it arrived.
           {two + init +
                "bar.sync 0; @%p0 st.shared.u32 [data+{{4||0}}], 1; @%p0 mbarrier.arrive.shared.b64 _, [bar]; "
                "@%p0 st.shared.u32 [data+{{0||4}}], 1; " +
                wait("0") + "@%p1 ld.shared.u32 %r1, [data];",
            {"a race in shared memory with warp 0, lane 0"},
            threads(64)},
           // Lane 0 arrives for lane 1, which it must have met.
           {two + init +
                "bar.sync 0; setp.eq.u32 %p2, %r0, 1; @%p2 st.shared.u32 [data], 1; {{||bar.warp.sync 0xffffffff; "
                "}}@%p0 mbarrier.arrive.shared.b64 _, [bar]; " +
                wait("0") + "@%p1 ld.shared.u32 %r1, [data];",
            {"a race in shared memory with warp 0, lane 1"},
            threads(64)},
           // Another lane of the writer's warp waits.
           {two + init +
                "setp.eq.u32 %p1, %r0, 1; bar.warp.sync 0xffffffff; @%p0 st.shared.u32 [data], 1; "
                "@%p0 mbarrier.arrive.shared.b64 _, [bar]; {{||" +
                wait("0") + "}}@%p1 ld.shared.u32 %r1, [data];",
            {"a race in shared memory with warp 0, lane 0"}}},
          kBarriers);
}

TEST_CASE("hopper: races are looked for") {
    if (!options().races) expect_cases("hopper: with races", {{"VIRTUAL_GPU_RACES", "1"}});
}

}  // namespace virtual_gpu::test
