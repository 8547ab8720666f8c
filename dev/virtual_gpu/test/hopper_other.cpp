// The smaller instructions of sm_90.
#include "dev/virtual_gpu/test/hopper_program.h"

namespace virtual_gpu::test {
namespace {

const std::string kData = ".shared .align 128 .b8 data[1024]; ";
const std::string kThreadIds =
    "mov.u32 %r0, %tid.x; mov.u32 %r1, %laneid; shr.u32 %r2, %r0, 5; setp.eq.u32 %p0, %r0, 0; "
    "setp.lt.u32 %p1, %r1, 16; shr.u32 %r3, %r0, 7; setp.eq.u32 %p2, %r3, 0; setp.eq.u32 %p3, %r2, 3; ";

}  // namespace

TEST_CASE("hopper: stmatrix stores fragments") {
    for (const int count : {1, 2, 4})
        for (const bool transposed : {false, true}) {
            const Buffer out(std::vector<uint16_t>(static_cast<size_t>(count) * 64, 0));
            std::string s = kThreadIds + "mov.u32 %r10, data; shl.b32 %r11, %r1, 4; add.u32 %r10, %r10, %r11; ", words;
            // Words m and m + 1 of a lane hold its number with 2 m, and with 2 m + 1.
            for (int m = 0; m < count; m++) {
                s += ptx("mad.lo.s32 %r$1, %r1, 0x01000100, $2; ", 20 + m, 2 * m | (2 * m + 1) << 16);
                words += ptx("$1%r$2", m ? ", " : "", 20 + m);
            }
            s += ptx("stmatrix.sync.aligned.m8n8.x$1$2.shared.b16 [%r10], {$3}; ", count, transposed ? ".trans" : "",
                     words) +
                 "bar.warp.sync 0xffffffff; mov.u32 %r12, data; mov.u32 %r13, 0; LOOP: cvt.u64.u32 %rd5, %r13; "
                 "add.s64 %rd6, %rd0, %rd5; add.u32 %r14, %r12, %r13; ld.shared.u16 %h1, [%r14]; "
                 "@%p0 st.global.u16 [%rd6], %h1; add.u32 %r13, %r13, 2; setp.lt.u32 %p5, %r13, " +
                 std::to_string(128 * count) + "; @%p5 bra LOOP;";
            run_snippet(s, {out.address()}, {}, kData);
            std::vector<uint16_t> expected;
            for (int m = 0; m < count; m++)
                for (int r = 0; r < 8; r++)
                    for (int c = 0; c < 8; c++) {
                        const int i = transposed ? c : r, j = transposed ? r : c;  // row and column in the fragment
                        expected.push_back(static_cast<uint16_t>((i * 4 + j / 2) << 8 | (2 * m + j % 2)));
                    }
            INFO("x", count, transposed ? " transposed" : "");
            CHECK(out.read<uint16_t>() == expected);
        }
    const std::string address = kThreadIds + "mov.u32 %r10, data; shl.b32 %r11, %r1, 4; add.u32 %r10, %r10, %r11; ",
                      x4 = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r10], {%r0, %r0, %r0, %r0};";
    check({{address + "{{@%p1 ||}}" + x4, {"stmatrix with 16 of 32 lanes"}},
           {address + "add.u32 %r10, %r10, {{8||16}}; " + x4, {"misaligned stmatrix of 16 bytes"}},
           {address + "add.u32 %r10, %r10, {{528||512}}; " + x4, {"stmatrix of 16 bytes at shared 1024"}},
           {address + "stmatrix.sync.aligned.m8n8.{{x2||x4}}.shared.b16 [%r10], {%r0, %r0, %r0, %r0};",
            {"another number of matrices"}}},
          kData);
}

TEST_CASE("hopper: setmaxnreg moves registers between warpgroups") {
    // Two warpgroups with 168 registers per thread, together 336 for a thread of each.
    const auto message = [](const std::string& snippet, int registers = 168, uint32_t block = 256) {
        const std::string text = module_text(kThreadIds + snippet, 0);
        return fault_of([&] {
            const auto kernels = read_module(text);
            kernels.at(0)->registers = registers;
            run_grid({kernels.at(0).get(), {1, 1, 1}, {block, 1, 1}, 0, {}});
        });
    };
    const auto set = [](const std::string& how, int count) {
        return ptx("setmaxnreg.$1.sync.aligned.u32 $2; ", how, count);
    };
    const auto both = [&](const std::string& first, const std::string& second) {
        return "@%p2 bra FIRST; " + second + "bra END; FIRST: " + first + "END: ";
    };
    CHECK(message(both(set("dec", 96), set("inc", 240))) == "");
    CHECK(message(both(set("inc", 240), set("dec", 96))) == "");
    CHECK(contains(message(both(set("dec", 104), set("inc", 240))), " for registers (PTX line "));
    CHECK(contains(message(both("", set("inc", 176))), "for registers"));
    CHECK(
        contains(message(both(set("dec", 176), set("inc", 168))), "setmaxnreg.dec to 176 registers: the warp has 168"));
    CHECK(
        contains(message(both(set("dec", 96), set("inc", 160))), "setmaxnreg.inc to 160 registers: the warp has 168"));
    CHECK(message(both(set("dec", 176), set("inc", 160)), 0) == "");  // the number of registers is unknown
    for (int count : {16, 100, 264})
        CHECK(contains(message(set("dec", count)), "registers: 24 to 256, a multiple of 8"));
    CHECK(contains(message("@%p1 " + set("dec", 96)), "an instruction of a warpgroup with 16 of 32 lanes"));
    CHECK(contains(message("@%p3 " + set("dec", 96)), "ends without the setmaxnreg.dec.sync.aligned.u32 of PTX line "));
    CHECK(contains(message(set("dec", 96), 168, 192), "the last 2 warps of the block are no warpgroup"));
}

TEST_CASE("hopper: clusters, elections and other instructions that no kernel uses are refused") {
    for (const char* snippet :
         {"elect.sync %r5|%p4, 0xffffffff;", "mapa.shared::cluster.u32 %r5, %r0, 0;", "barrier.cluster.arrive.aligned;",
          "barrier.cluster.wait.aligned;", "griddepcontrol.wait;", "prefetch.tensormap [%rd0];",
          "cp.async.bulk.prefetch.L2.global [%rd0], 128;"})
        CHECK(contains(fault_of([&] { run_snippet(snippet, {0}); }), "instruction not known"));
    CHECK(contains(fault_of([] { read_module(kModule + ".visible .entry k() .reqnctapercluster 2, 1, 1 { ret; }"); }),
                   ".reqnctapercluster"));
}

}  // namespace virtual_gpu::test
