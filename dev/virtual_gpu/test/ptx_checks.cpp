// Each rule that the virtual GPU checks, broken once: a snippet that breaks it, the required message, and the same
// snippet with the rule kept, which runs. %rd0 is a buffer of 252 written bytes, %rd1 one of 256 that were never
// written, and %rd2 was freed.
#include <doctest/doctest.h>

#include "dev/virtual_gpu/test/rules.h"

namespace virtual_gpu::test {
namespace {

const std::string kArrays = ".shared .align 16 .b8 array[64]; .extern .shared .align 16 .b8 dynamic[]; ";

std::string fault_of_snippet(const std::string& snippet, const Shape& shape) {
    const Buffer written(std::vector<uint8_t>(252, 0)), fresh(256);
    const uint64_t freed = [] { return Buffer(4096).address(); }();
    return fault_of([&] { run_snippet(snippet, {written.address(), fresh.address(), freed}, shape, kArrays); });
}

void check(const std::vector<Rule>& rules) { check_rules(rules, fault_of_snippet); }

Shape with_dynamic_shared(uint32_t bytes) { return {{1, 1, 1}, {32, 1, 1}, bytes}; }

const std::string kLane = "mov.u32 %r0, %laneid; ";
const std::string kWarp = "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; setp.eq.u32 %p0, %r1, 0; ";
const std::string kFillShared =
    "mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, dynamic; add.s32 %r3, %r2, %r1; st.shared.u32 [%r3], %r0; ";

}  // namespace

TEST_CASE("ptx: global memory is accessed within live allocations") {
    check({
        {"ld.global.u32 %r1, [{{%rd0+252||%rd0+248}}];",
         {"kernel test, PTX line ", "'ld.global.u32 %r1, [%rd0+252];'", "block (0,0,0), thread (0,0,0)",
          "load of 4 bytes at global 0x", "0 bytes past an allocation of 252 bytes"}},
        {"ld.global.v2.u32 {%r1, %r2}, [{{%rd0+248||%rd0+240}}];",
         {"load of 8 bytes", "past an allocation of 252 bytes"}},
        {"ld.global.u8 %h1, [%rd0+{{-1||0}}];", {"load of 1 bytes at global"}},
        {"st.global.u32 [{{%rd0+4096||%rd0+4}}], 1;", {"store of 4 bytes"}},
        {"atom.global.add.u32 %r1, [{{%rd0+252||%rd0+4}}], 1;", {"atomic of 4 bytes"}},
        {"red.global.add.u32 [{{%rd0+252||%rd0+4}}], 1;", {"atomic of 4 bytes"}},
        {"st.global.u32 [{{%rd2+64||%rd0+64}}], 1;", {"in freed memory"}},
        {"mov.u64 %rd9, 0; {{ld.global.u32 %r1, [%rd9]||mov.u32 %r1, 0}};", {"at global 0x0", "in no allocation"}},
        {"mov.u64 %rd9, 0; {{ld.global.u32 %r1, [%rd9+-4]||mov.u32 %r1, 0}};",
         {"0xfffffffffffffffc", "in no allocation"}},
        {"mov.u64 %rd9, 0; {{st.v4.u32 [%rd9+-16], {%r0, %r1, %r2, %r3}||mov.u32 %r1, 0}};", {"store of 16 bytes"}},
        {kLane + "mul.wide.u32 %rd9, %r0, 4; add.s64 %rd10, %rd9, {{-64||%rd0}}; ld.global.u32 %r1, [%rd10];",
         {"at global 0xffffffffffffffc0"}},
        // Only the seventh lane leaves the buffer, because of its thread index.
        {kLane + "mul.wide.u32 %rd9, %r0, {{36||4}}; add.s64 %rd10, %rd0, %rd9; ld.global.u32 %r1, [%rd10];",
         {"thread (7,0,0)"}},
    });
}

TEST_CASE("ptx: shared memory is accessed within the block's") {
    check({
        {"st.shared.u32 [array+{{64||60}}], 1;", {"store of 4 bytes at shared 64; the block has 64"}},
        {"st.shared.v4.u32 [array+{{64||48}}], {%r1, %r1, %r1, %r1};", {"store of 16 bytes at shared 64"}},
        {"mov.u32 %r1, array; st.shared.u32 [%r1+{{-4||0}}], 1;", {"at shared -4; the block has 64"}},
        {"mov.u64 %rd9, array; st.shared.u32 [%rd9+{{-1028||0}}], 1;", {"store of 4 bytes at shared"}},
        {"mov.u32 %r1, array; st.shared.u32 [%r1+{{-1028||0}}], 1;", {"store of 4 bytes at shared"}},
        {"st.shared.u32 [dynamic+{{128||124}}], 1;", {"at shared 192; the block has 192"}, with_dynamic_shared(128)},
        {"cvta.shared.u64 %rd9, 1024; st.u32 [%rd9+{{64||60}}], 1;", {"at shared 64; the block has 64"}},
        {"st.shared.u32 [array], 1; atom.shared.add.u32 %r1, [array+{{64||0}}], 1;",
         {"atomic of 4 bytes at shared 64"}},
    });
}

TEST_CASE("ptx: accesses are aligned to their size") {
    check({
        {"ld.global.u32 %r1, [%rd0+{{2||4}}];", {"misaligned load of 4 bytes"}},
        {"ld.global.u16 %h1, [%rd0+{{1||2}}];", {"misaligned load of 2 bytes"}},
        {"ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0+{{8||16}}];", {"misaligned load of 16 bytes"}},
        {"st.global.u64 [%rd0+{{4||8}}], %rd0;", {"misaligned store of 8 bytes"}},
        {"st.shared.v2.u32 [array+{{4||8}}], {%r1, %r1};", {"misaligned store of 8 bytes"}},
        {"atom.global.add.u64 %rd9, [%rd0+{{4||8}}], 1;", {"misaligned atomic of 8 bytes"}},
        {"cp.async.cg.shared.global [array], [%rd0+{{8||16}}], 16;", {"misaligned cp.async's load of 16 bytes"}},
        {"cp.async.ca.shared.global [array+{{4||8}}], [%rd0], 8;", {"misaligned cp.async's store of 8 bytes"}},
    });
}

TEST_CASE("ptx: memory is read after it was written") {
    check({
        {"ld.global.u32 %r1, [{{%rd1||%rd0}}];", {"load of 4 bytes of global memory", "never written"}},
        {"st.global.u8 [%rd1], 1; st.global.u8 [%rd1+1], 1; ld.global.{{u32 %r1||u16 %h1}}, [%rd1];",
         {"the 3. of which is one that was never written"}},
        {"st.shared.u32 [array], 1; ld.shared.u32 %r1, [array+{{4||0}}];",
         {"load of 4 bytes of shared memory", "never written"}},
        {"atom.global.add.u32 %r1, [{{%rd1||%rd0}}], 1;", {"atomic of 4 bytes", "never written"}},
        {"red.global.add.u32 [{{%rd1||%rd0}}], 1;", {"atomic of 4 bytes", "never written"}},
        {"cp.async.cg.shared.global [array], [{{%rd1||%rd0}}], 16;", {"cp.async's load of 16 bytes", "never written"}},
        {kFillShared + "add.s32 %r4, %r2, {{8||0}}; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];",
         {"misaligned ldmatrix of 16 bytes"},
         with_dynamic_shared(256)},
        {kFillShared + "add.s32 %r4, %r2, {{128||0}}; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];",
         {"ldmatrix of 16 bytes", "never written"},
         with_dynamic_shared(256)},
        {kFillShared + "add.s32 %r4, %r2, {{256||0}}; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];",
         {"ldmatrix of 16 bytes at shared"},
         with_dynamic_shared(256)},
    });
}

TEST_CASE("ptx: asynchronous copies are read after a wait") {
    const std::string copies =
        "cp.async.cg.shared.global [array], [%rd0], 16; cp.async.commit_group; "
        "cp.async.cg.shared.global [array+16], [%rd0+16], 16; cp.async.commit_group; ";
    const std::string load = "ld.shared.u32 %r1, [array+16];";
    check({
        {copies + "{{||cp.async.wait_all; }}" + load,
         {"load of 4 bytes of shared", "asynchronous copy that has not been waited for"}},
        {copies + "cp.async.wait_group {{1||0}}; " + load, {"asynchronous copy that has not been waited for"}},
        {copies + "cp.async.wait_group 1; ld.shared.u32 %r1, [array+{{16||0}}];", {"asynchronous copy"}},
        // The copy is not in a group yet.
        {"cp.async.cg.shared.global [array], [%rd0], 16; {{||cp.async.commit_group; }}cp.async.wait_group 0; "
         "ld.shared.u32 %r1, [array];",
         {"asynchronous copy"}},
        // A lane's wait only covers its own copies.
        {kLane + "setp.eq.s32 %p0, %r0, 0; @%p0 cp.async.cg.shared.global [array], [%rd0], 16; "
                 "{{@!%p0||@%p0}} cp.async.wait_all; ld.shared.u32 %r1, [array];",
         {"asynchronous copy"}},
        {"cp.async.cg.shared.global [array], [%rd0+{{240||224}}], 16;", {"cp.async's load of 16 bytes at global"}},
        {"cp.async.cg.shared.global [array+{{64||48}}], [%rd0], 16;", {"cp.async's store of 16 bytes at shared 64"}},
        {"mov.u32 %r1, {{17||16}}; cp.async.cg.shared.global [array], [%rd0], 16, %r1;",
         {"cp.async of 16 bytes reads 17"}},
    });
}

TEST_CASE("ptx: barriers") {
    const Shape two_warps = threads(64);
    check({
        {kLane + "setp.lt.u32 %p0, %r0, {{16||32}}; @%p0 bar.sync 0;",
         {"a barrier that lanes 0000ffff of a warp reach and ffff0000 do not"}},
        {kWarp + "@%p0 bar.sync 1; @!%p0 bar.sync {{2||1}};",
         {"kernel test, block (0,0,0): every warp waits:", "warp 0 at barrier 1 (PTX line ",
          "warp 1 at barrier 2 (PTX line "},
         two_warps},
        {kWarp + "@%p0 bar.sync 1, {{64||32}};", {"every warp waits: warp 0 at barrier 1"}, two_warps},
        {kWarp + "@%p0 bar.sync 1, 64; @!%p0 bar.arrive 1, {{96||64}};",
         {"barrier 1: ", "threads expected here, ", "by those who wait"},
         two_warps},
        {kWarp + "@%p0 bar.sync 1, 64; @!%p0 bar.sync 1{{||, 64}};", {"barrier 1: "}, two_warps},
        {kWarp + "@!%p0 bar.arrive 1, {{96; @!%p0 bar.arrive 1, 96||64}}; @%p0 bar.sync 1, {{96||64}};",
         {"barrier 1: the warp arrives again before it is complete"},
         two_warps},
        {"bar.sync 0, {{33||32}};", {"barrier 0 of 33 threads"}},
        {"bar.sync 0, {{0||32}};", {"barrier 0 of 0 threads"}},
        {"bar.sync {{16||15}};", {"barrier 16"}},
    });
}

TEST_CASE("ptx: collectives need the lanes that they name") {
    const std::string half = kLane + "setp.lt.u32 %p0, %r0, 16; ", named = "{{0xffffffff||0x0000ffff}};";
    check({
        {half + "@%p0 bar.warp.sync " + named, {"bar.warp.sync: lanes ffff0000 are named and not here"}},
        {half + "@%p0 shfl.sync.idx.b32 %r1, %r0, 0, 31, " + named,
         {"shfl.sync: lanes ffff0000 are named and not here"}},
        {half + "@%p0 vote.sync.any.pred %p1, %p0, " + named, {"vote.sync: lanes ffff0000 are named and not here"}},
        {half + "@%p0 redux.sync.add.s32 %r1, %r0, " + named, {"redux.sync: lanes ffff0000 are named and not here"}},
        {half + "shfl.sync.idx.b32 %r1, %r0, 0, 31, {{0x0000ffff||0xffffffff}};",
         {"thread (16,0,0)", "the thread is not in its own member mask 0000ffff"}},
        {half + "@%p0 shfl.sync.idx.b32 %r1, %r0, {{16||15}}, 31, 0x0000ffff;",
         {"shfl.sync reads lane 16, which is not active"}},
        {half + "@%p0 shfl.sync.down.b32 %r1, %r0, 1, {{31||15}}, 0x0000ffff;",
         {"thread (15,0,0)", "shfl.sync reads lane 16"}},
        {kFillShared + "setp.ne.u32 %p0, %r0, {{3||32}}; @%p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r2];",
         {"ldmatrix with 31 of 32 lanes"},
         with_dynamic_shared(256)},
        {half +
             "mov.b32 %r1, 0; mov.f32 %f0, 0f00000000; {{@%p0 ||}}mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
             "{%f0, %f0, %f0, %f0}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f0, %f0, %f0, %f0};",
         {"mma with 16 of 32 lanes"}},
        {half + "{{trap||@!%p0 bra DONE; @%p0 bra DONE; trap; DONE:}};", {"trap", "thread (0,0,0)"}},
    });
}

TEST_CASE("ptx: unknown text is named with its line") {
    check({
        {"mov.u32 %r1, 1; {{frobnicate.f32 %f1, %f2||mov.u32 %r2, %r1}};",
         {"PTX line 18: instruction not known: frobnicate.f32"}},
        {"{{add.ftz.f32||add.f32}} %f1, %f2, %f3;", {"PTX line 17: instruction not known: add.ftz.f32"}},
        {"{{ld.global.v3.f32||ld.global.f32}} %f1, [%rd0];", {"instruction not known: ld.global.v3.f32"}},
        {"add.s32 %r1, %r2{{||, %r3}};", {"add.s32: another number of operands"}},
        {"add.s32 %r1, %r2, {{%rd3||%r3}};", {"add.s32: operand %rd3 has another width"}},
        {"add.s32 %r1, %r2, {{%q3||%r3}};", {"operand not known: %q3"}},
        {"mov.u32 %r1, {{%clock_hi||%clock}};", {"operand not known: %clock_hi"}},
        {"mov.f32 %f1, {{1.5||0f3fc00000}};", {"1.5"}},
        {"setp.eq.s32 %p0, 0, 0; selp.b32 %r1, 1, 2, {{!||}}%p0;", {"selp.b32"}},
        {"{{bra NOWHERE||bra HERE}}; HERE:", {"no such label: NOWHERE"}},
        {"{{cvt.u16.u32 %rd9||cvt.u64.u32 %rd9}}, 5;", {"cvt.u16.u32: operand %rd9 has another width"}},
    });
    CHECK(contains(
        fault_of([] { run_text(kModule + ".visible .entry k()\n{ .reg .b32 %r<2>; mov.u32 %r1, 1; } ", {}, {}); }),
        "PTX line 6: the kernel falls off its end"));
    CHECK(contains(fault_of([] { read_module(kModule + ".visible .entry k()\n{ ret; "); }), "end of text in a kernel"));
    CHECK(contains(fault_of([] { read_module(kModule + ".func f() { ret; }"); }), "not known in a module: .func"));
    CHECK(contains(fault_of([] { read_module(kModule + ".visible .entry k() .reqntid 32 { ret; }"); }),
                   "directive: .reqntid"));
}

TEST_CASE("ptx: parameters are loaded within those of the kernel") {
    const std::string text =
        kModule + ".visible .entry k(.param .u32 a, .param .u32 b)\n{ .reg .b32 %r<4>; .reg .b64 %rd<2>; ";
    const auto message = [&](const std::string& load) {
        return fault_of([&] { run_text(text + load + "\nret; } ", std::vector<unsigned char>(8), {}); });
    };
    CHECK(message("ld.param.u32 %r1, [b];") == "");
    CHECK(contains(message("ld.param.u32 %r1, [b+4];"), "parameter out of bounds"));
    CHECK(contains(message("ld.param.u64 %rd1, [b];"), "parameter out of bounds"));
    CHECK(contains(message("ld.param.u32 %r1, [a+-4];"), "parameter out of bounds"));
    CHECK(contains(message("ld.param.u32 %r1, [c];"), "symbol not known"));
}

}  // namespace virtual_gpu::test
