// mbarrier: phases by definition, and each rule broken once.
#include <doctest/doctest.h>

#include "dev/virtual_gpu/options.h"
#include "test/virtual_gpu/hopper_program.h"

namespace virtual_gpu::test {
namespace {

const std::string kBarriers = ".shared .align 8 .b64 bar[4];\n.shared .align 128 .b8 data[256];\n";
const std::string kInit =
    "mov.u32 %r0, %tid.x;\nshr.u32 %r1, %r0, 5;\nsetp.eq.u32 %p0, %r0, 0;\nsetp.eq.u32 %p1, %r1, 0;\n"
    "@%p0 mbarrier.init.shared::cta.b64 [bar], ";
std::string wait(const std::string& parity, const std::string& label = "W", const std::string& barrier = "bar") {
    return "{\n.reg .pred p;\n" + label + ":\nmbarrier.try_wait.parity.shared::cta.b64 p, [" + barrier + "], " +
           parity + ", 1000;\n@!p bra " + label + ";\n}\n";
}

}  // namespace

TEST_CASE("hopper: mbarrier counts arrivals of its phases") {
    // Word by word: state before, pending counts seen by the arrivals, and whether each phase is complete.
    const Buffer out(std::vector<uint32_t>(16, 99));
    const auto arrive = [](const std::string& how, int at) {
        return "mbarrier.arrive" + how + ";\nmbarrier.pending_count.b64 %r5, %rd9;\nst.global.u32 [%rd0+" +
               std::to_string(4 * at) + "], %r5;\n";
    };
    const auto test = [](const std::string& what, int at) {
        return "mbarrier.test_wait" + what + ";\nselp.u32 %r5, 1, 0, %p2;\nst.global.u32 [%rd0+" +
               std::to_string(4 * at) + "], %r5;\n";
    };
    const std::string parity = ".parity.shared::cta.b64 %p2, [bar], ";
    run_snippet(kInit + "3;\n@!%p0 bra END;\n" + arrive(".shared::cta.b64 %rd9, [bar]", 0) + test(parity + "0", 1) +
                    test(parity + "1", 2) + arrive(".shared.b64 %rd9, [bar], 2", 3) + test(parity + "0", 4) +
                    test(parity + "1", 5) + test(".shared.b64 %p2, [bar], %rd9", 6) +
                    // The second phase: bytes as well.
                    arrive(".expect_tx.release.cta.shared::cta.b64 %rd9, [bar], 64", 7) +
                    arrive(".noComplete.shared.b64 %rd9, [bar], 1", 8) + arrive(".shared.b64 %rd9, [bar], 1", 9) +
                    test(parity + "1", 10) + "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 64;\n" +
                    test(parity + "1", 11) + test(parity + "0", 12) + arrive("_drop.shared.b64 %rd9, [bar]", 13) +
                    "mbarrier.arrive.shared.b64 _, [bar], 2;\n" + arrive(".shared.b64 %rd9, [bar]", 14) +
                    test(".shared.b64 %p2, [bar], %rd9", 15) + "END:",
                {out.address()}, {}, kBarriers);
    CHECK(out.read<uint32_t>() == std::vector<uint32_t>{3, 0, 1, 2, 1, 0, 1, 3, 2, 1, 0, 1, 0, 3, 2, 0});
}

TEST_CASE("hopper: warps and lanes wait for each other at mbarriers") {
    // Four warps: the last one writes, and the others read.
    const Buffer out(std::vector<uint32_t>(128, 0));
    run_snippet(kInit +
                    "32;\nbar.sync 0;\nsetp.eq.u32 %p1, %r1, 3;\n@!%p1 bra READ;\nshl.b32 %r2, %r0, 2;\n"
                    "and.b32 %r2, %r2, 127;\nmov.u32 %r3, data;\nadd.u32 %r2, %r2, %r3;\nst.shared.u32 [%r2], %r0;\n"
                    "mbarrier.arrive.shared::cta.b64 _, [bar];\nREAD:\n" +
                    wait("0") + "ld.shared.u32 %r4, [data+8];\n" + element_address(9, 0, 4) +
                    "st.global.u32 [%rd9], %r4;",
                {out.address()}, threads(128), kBarriers);
    CHECK(out.read<uint32_t>() == std::vector<uint32_t>(128, 98));
    // Lanes of one warp that took different branches.
    const Buffer lanes(std::vector<uint32_t>(32, 0));
    run_snippet(kInit + "1;\nbar.warp.sync 0xffffffff;\n@%p0 bra FIRST;\n" + wait("0") +
                    "bra END;\nFIRST:\nst.shared.u32 [data], 5;\nmbarrier.arrive.shared::cta.b64 _, [bar];\nEND:\n"
                    "bar.warp.sync 0xffffffff;\nld.shared.u32 %r4, [data];\n" +
                    element_address(9, 0, 4) + "st.global.u32 [%rd9], %r4;",
                {lanes.address()}, {}, kBarriers);
    CHECK(lanes.read<uint32_t>() == std::vector<uint32_t>(32, 5));
}

TEST_CASE("hopper: mbarriers' rules") {
    const std::string one = kInit + "1;\nbar.sync 0;\n";
    const Buffer global(std::vector<uint64_t>(4, 0));
    check(
        {
            {"@%p0 mbarrier.init.shared.b64 [bar], 1;\n{{||mbarrier.init.shared.b64 [bar], "
             "1;\n}}mbarrier.test_wait.parity."
             "shared.b64 %p1, [bar], 0;",
             {"no mbarrier was initialized at shared 0"},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], {{0||1}};", {"a count of 0"}, kOneThread},
            {"mbarrier.init.shared.b64 [bar], {{1048576||1048575}};", {"a count of 1048576"}, kOneThread},
            {"mbarrier.init.shared.b64 [bar+{{4||8}}], 1;", {"misaligned mbarrier of 8 bytes"}, kOneThread},
            {"mbarrier.init.shared.b64 [bar], 1;\n{{||mbarrier.inval.shared.b64 [bar];\n}}mbarrier.init.shared.b64 "
             "[bar], 1;",
             {"an mbarrier is there already, of PTX line "},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], 2;\nmbarrier.arrive.shared.b64 _, [bar], {{3||2}};",
             {"3 arrivals at the mbarrier at shared 0 are more than are expected: phase 0, which waits for 2 of 2 "
              "arrivals"},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], 1;\nmbarrier.arrive.expect_tx.shared.b64 _, [bar], {{16||0}};\n"
             "mbarrier.arrive.shared.b64 _, [bar];",
             {"1 arrivals", "0 of 1 arrivals and 16 bytes"},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], 2;\nmbarrier.arrive.noComplete.shared.b64 %rd9, [bar], {{2||1}};",
             {"an arrival that may not complete the phase does"},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], 2;\nmbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;\n"
             "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], {{1||0}};",
             {"cannot count 1048576 bytes"},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], 1;\nmbarrier.test_wait.parity.shared.b64 %p1, [bar], {{2||1}};",
             {"phase parity 2"},
             kOneThread},
            {"mbarrier.init.shared.b64 [bar], 1;\nmbarrier.arrive.shared.b64 %rd9, "
             "[bar];\n{{mbarrier.arrive.shared.b64 _, "
             "[bar]||}};\nmbarrier.test_wait.shared.b64 %p1, [bar], %rd9;",
             {"a state of phase 0; the mbarrier is in phase 2"},
             kOneThread},
            // Generic addresses lead there too, but not out of shared memory.
            {"{{mov.b64 %rd9, %rd0||mov.u64 %rd8, bar;\ncvta.shared.u64 %rd9, %rd8}};\nmbarrier.init.b64 [%rd9], 1;",
             {"mbarrier outside of shared memory"},
             kOneThread},
            // The barrier's bits are opaque.
            {"mbarrier.init.shared.b64 [bar], 1;\n{{||mbarrier.inval.shared.b64 [bar];\n}}st.shared.u32 [bar+4], 1;",
             {"a write to shared 4, where an mbarrier lies"},
             kOneThread},
            {"st.shared.u64 [bar+8], 1;\nmbarrier.init.shared.b64 [bar], 1;\nld.shared.u64 %rd9, [bar+{{0||8}}];",
             {"load of 8 bytes of shared memory", "of an mbarrier"},
             kOneThread},
            // Waiting threads and their places.
            {one + "{{||@%p0 mbarrier.arrive.shared.b64 _, [bar];\n}}" + wait("0"),
             {"every warp waits: warp 0 at the mbarrier at shared 0 (PTX line ",
              "): phase 0, which waits for 1 of 1 arrivals and 0 bytes; warp 1 at the mbarrier"},
             threads(64)},
            {one +
                 "@%p1 bar.sync 1, 64;\n@!%p1 {{mbarrier.test_wait.parity.shared.b64 %p2, [bar], 1||bar.sync 1, 64}};\n"
                 "@%p1 bra END;\n" +
                 wait("{{0||1}}") + "END:",
             {"every warp waits: warp 0 at barrier 1", "warp 1 at the mbarrier"},
             threads(64)},
            {"mbarrier.init.shared.b64 [bar], 1;\nmbarrier.arrive.expect_tx.shared.b64 _, [bar], {{32||0}};\n" +
                 wait("0"),
             {"waits for 0 of 1 arrivals and 32 bytes"},
             kOneThread},
            {"{{mbarrier.arrive.volatile.shared.b64||mbarrier.pending_count.b64 %r1, %rd1; //}} _, [bar];",
             {"instruction not known: mbarrier.arrive.volatile.shared.b64"},
             kOneThread},
        },
        kBarriers, {global.address()});
}

// With race detection: accesses that mbarriers order, and those they do not.
TEST_CASE("hopper: with races, mbarriers order threads") {
    if (!options().races) return;
    // Depending on the order of warps, the error says that the barrier does not exist or that its init races.
    const std::string two = "mov.u32 %r0, %tid.x;\nsetp.eq.u32 %p0, %r0, 0;\nsetp.eq.u32 %p1, %r0, 32;\n",
                      init = "@%p0 mbarrier.init.shared::cta.b64 [bar], 1;\n";
    check({{two + init + "@%p0 mbarrier.arrive.shared.b64 _, [bar];\n{{||bar.sync 0;\n}}" + wait("0"),
            {"mbarrier"},
            threads(64)},
           // Thread 32 reads data that thread 0 wrote before or after it arrived.
           {two + init +
                "bar.sync 0;\n@%p0 st.shared.u32 [data+{{4||0}}], 1;\n@%p0 mbarrier.arrive.shared.b64 _, [bar];\n"
                "@%p0 st.shared.u32 [data+{{0||4}}], 1;\n" +
                wait("0") + "@%p1 ld.shared.u32 %r1, [data];",
            {"a race in shared memory with warp 0, lane 0"},
            threads(64)},
           // Lane 0 arrives for lane 1, which it must have met.
           {two + init +
                "bar.sync 0;\nsetp.eq.u32 %p2, %r0, 1;\n@%p2 st.shared.u32 [data], 1;\n"
                "{{||bar.warp.sync 0xffffffff;\n}}@%p0 mbarrier.arrive.shared.b64 _, [bar];\n" +
                wait("0") + "@%p1 ld.shared.u32 %r1, [data];",
            {"a race in shared memory with warp 0, lane 1"},
            threads(64)},
           // Another lane of the writer's warp waits.
           {two + init +
                "setp.eq.u32 %p1, %r0, 1;\nbar.warp.sync 0xffffffff;\n@%p0 st.shared.u32 [data], 1;\n"
                "@%p0 mbarrier.arrive.shared.b64 _, [bar];\n{{||" +
                wait("0") + "}}@%p1 ld.shared.u32 %r1, [data];",
            {"a race in shared memory with warp 0, lane 0"}}},
          kBarriers);
}

TEST_CASE("hopper: races are looked for") {
    if (!options().races) CHECK(run_tests_with("VIRTUAL_GPU_RACES=1", "hopper: with races") == 0);
}

}  // namespace virtual_gpu::test
