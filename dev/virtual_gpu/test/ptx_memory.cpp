// Loads, stores, parameters, shared memory, atomics and asynchronous copies: which bytes they move.
#include <doctest/doctest.h>

#include <cstddef>
#include <random>

#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

struct MemoryType {
    std::string name;
    int bytes;
    std::string reg;  // a register of the type's width
};
const MemoryType kTypes[] = {{"u8", 1, "%h"},    {"s8", 1, "%h"},  {"b8", 1, "%h"},    {"u16", 2, "%h"},
                             {"s16", 2, "%h"},   {"b16", 2, "%h"}, {"u32", 4, "%r"},   {"s32", 4, "%r"},
                             {"b32", 4, "%r"},   {"f32", 4, "%f"}, {"u64", 8, "%rd1"}, {"s64", 8, "%rd1"},
                             {"b64", 8, "%rd1"}, {"f64", 8, "%d"}};

std::vector<uint8_t> random_bytes(size_t n, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(n);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    return bytes;
}

// "%r1" or "{%r1, %r2}"
std::string registers(const std::string& reg, int count) {
    std::string list;
    for (int n = 0; n < count; n++) list += (n ? ", " : "") + reg + std::to_string(n + 1);
    return count == 1 ? list : "{" + list + "}";
}
std::string vector_of(int count) { return count == 1 ? "" : ".v" + std::to_string(count); }

}  // namespace

TEST_CASE("ptx memory: loads and stores of every type and width move exactly their bytes") {
    constexpr size_t kThreads = 48;
    for (const MemoryType& t : kTypes)
        for (const int count : {1, 2, 4}) {
            const int bytes = t.bytes * count;
            if (bytes > 16) continue;
            for (const std::string& reg : {t.reg, std::string("%rd1")}) {  // a wider register may hold it too
                const auto data = random_bytes(kThreads * static_cast<size_t>(bytes));
                const Buffer in(data), out(data.size());
                const std::string access = vector_of(count) + "." + t.name, r = registers(reg, count);
                // From global to shared memory, to shared memory again by generic addresses, and to global memory.
                run_snippet(element_address(20, 0, bytes) + element_address(21, 1, bytes) +
                                ptx("mov.u32 %r10, %tid.x; mul.lo.s32 %r10, %r10, $3; mov.u32 %r11, data; "
                                    "add.s32 %r11, %r11, %r10; cvt.u64.u32 %rd22, %r11; cvta.shared.u64 %rd22, %rd22; "
                                    "ld.global$1 $2, [%rd20]; st.shared$1 [%r11], $2; ld$1 $2, [%rd22]; "
                                    "st$1 [%rd22+1024], $2; ld.shared$1 $2, [%r11+1024]; st$1 [%rd21], $2; ",
                                    access, r, bytes),
                            {in.address(), out.address()}, threads(kThreads), ".shared .align 16 .b8 data[2048]; ");
                CHECK_MESSAGE(out.read<uint8_t>() == data, t.name << " x " << count << " in " << reg);
            }
        }
}

TEST_CASE("ptx memory: loads extend to the register's width") {
    const Buffer in(std::vector<uint32_t>{0xf4f38281, 0xffffffff});
    const auto loaded = [&](const std::string& type, bool wide) {
        const Buffer out(8);
        const std::string reg = wide ? "%rd9" : "%r9";
        run_snippet("mov.u64 %rd9, -1; mov.u32 %r9, -1; ld.global." + type + " " + reg + ", [%rd0]; " +
                        (wide ? "" : "cvt.u64.u32 %rd9, %r9; ") + "st.global.u64 [%rd1], %rd9;",
                    {in.address(), out.address()}, threads(1));
        return out.read<uint64_t>()[0];
    };
    CHECK(loaded("u8", false) == 0x81);
    CHECK(loaded("u8", true) == 0x81);
    CHECK(loaded("b8", true) == 0x81);
    CHECK(loaded("s8", false) == 0xffffff81);
    CHECK(loaded("s8", true) == 0xffffffffffffff81);
    CHECK(loaded("u16", false) == 0x8281);
    CHECK(loaded("u16", true) == 0x8281);
    CHECK(loaded("s16", false) == 0xffff8281);
    CHECK(loaded("s16", true) == 0xffffffffffff8281);
    CHECK(loaded("u32", true) == 0xf4f38281);
    CHECK(loaded("s32", true) == 0xfffffffff4f38281);
}

TEST_CASE("ptx memory: only active lanes load and store") {
    const Buffer in(std::vector<uint32_t>(32, 5)), out(std::vector<uint32_t>(32, 7));
    run_snippet(element_address(20, 0, 4) + element_address(21, 1, 4) +
                    "mov.u32 %r1, 1; and.b32 %r2, %r62, 1; setp.eq.s32 %p0, %r2, 0; setp.lt.u32 %p1, %r62, 16; "
                    "@%p0 ld.global.u32 %r1, [%rd20]; @!%p1 st.global.u32 [%rd21], %r1;",
                {in.address(), out.address()});
    const auto values = out.read<uint32_t>();
    bool ok = true;
    for (uint32_t i = 0; i < 32; i++) ok &= values[i] == (i < 16 ? 7u : i % 2 ? 1u : 5u);
    CHECK(ok);
}

TEST_CASE("ptx memory: registers are packed and unpacked, the first element lowest") {
    const Buffer out(48);
    run_snippet(
        "mov.u32 %r1, 0x11223344; mov.u32 %r2, 0x55667788; mov.b64 %rd9, {%r1, %r2}; st.global.u64 [%rd0], %rd9; "
        "mov.b64 {%r3, %r4}, %rd9; st.global.v2.u32 [%rd0+8], {%r4, %r3}; mov.b32 {%h1, %h2}, %r1; "
        "mov.b32 %r5, {%h2, %h1}; st.global.u32 [%rd0+16], %r5; mov.b64 {%h1, %h2, %h3, %h4}, %rd9; "
        "mov.b64 %rd10, {%h4, %h3, %h2, %h1}; st.global.u64 [%rd0+24], %rd10; mov.b64 {_, %r6}, %rd9; "
        "st.global.u32 [%rd0+20], %r6; mov.f32 %f1, 0f3f800000; mov.b64 %rd11, {%f1, %r1}; "
        "st.global.u64 [%rd0+32], %rd11; mov.b32 %r7, %f1; st.global.u32 [%rd0+40], %r7; mov.b32 %f2, %r7; "
        "st.global.f32 [%rd0+44], %f2;",
        {out.address()}, threads(1));
    CHECK(out.read<uint64_t>() == std::vector<uint64_t>{0x5566778811223344, 0x1122334455667788, 0x5566778833441122,
                                                        0x3344112277885566, 0x112233443f800000, 0x3f8000003f800000});
}

TEST_CASE("ptx memory: parameters lie as in a C++ struct") {
    struct alignas(16) Block {
        uint32_t words[10];
    };
    struct Parameters {
        uint8_t a = 0x81;
        int8_t b = -2;
        uint16_t c = 0x8003;
        int16_t d = -4;
        uint32_t e = 0x80000005;
        float f = 6.5f;
        uint64_t g = 0x8000000000000007;
        uint8_t h = 8;
        double i = 9.5;
        uint8_t j[3] = {10, 11, 12};
        Block k = {{20, 21, 22, 23, 24, 25, 26, 27, 28, 29}};
        uint8_t l[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        void* out = nullptr;
    } parameters;
    const std::string text =
        kModule +
        ".visible .entry test(.param .u8 a, .param .s8 b, .param .u16 c, .param .s16 d, .param .u32 e, .param .f32 f, "
        ".param .u64 g, .param .u8 h, .param .f64 i, .param .align 1 .b8 j[3], .param .align 16 .b8 k[48], "
        ".param .align 8 .b8 l[8], .param .u64 .ptr .global .align 1 out)\n.maxntid 64, 2\n.minnctapersm 2\n{ " +
        kRegisters +
        "ld.param.u64 %rd0, [out]; cvta.to.global.u64 %rd0, %rd0; ld.param.u8 %rd1, [a]; st.global.u64 [%rd0], %rd1; "
        "ld.param.s8 %rd1, [b]; st.global.u64 [%rd0+8], %rd1; ld.param.u16 %rd1, [c]; st.global.u64 [%rd0+16], %rd1; "
        "ld.param.s16 %rd1, [d]; st.global.u64 [%rd0+24], %rd1; ld.param.u32 %r1, [e]; ld.param.f32 %f1, [f]; "
        "mov.b64 %rd1, {%r1, %f1}; st.global.u64 [%rd0+32], %rd1; ld.param.u64 %rd1, [g]; "
        "st.global.u64 [%rd0+40], %rd1; ld.param.u8 %h1, [h]; ld.param.f64 %d1, [i]; st.global.f64 [%rd0+48], %d1; "
        "ld.param.u8 %r1, [j+2]; ld.param.s8 %r2, [b]; st.global.v2.u32 [%rd0+56], {%r1, %r2}; "
        "ld.param.v4.u32 {%r1, %r2, %r3, %r4}, [k+16]; st.global.v4.u32 [%rd0+64], {%r1, %r2, %r3, %r4}; "
        "ld.param.v2.u32 {%r1, %r2}, [k+32]; st.global.v2.u32 [%rd0+80], {%r1, %r2}; "
        "ld.param.v4.u8 {%h1, %h2, %h3, %h4}, [l+4]; mov.b64 %rd1, {%h1, %h2, %h3, %h4}; "
        "st.global.u64 [%rd0+88], %rd1; ret; } ";
    const Buffer out(96);
    parameters.out = reinterpret_cast<void*>(out.address());
    const auto kernels = read_module(text);
    const Kernel& kernel = *kernels.at(0);
    CHECK(kernel.max_threads == 128);
    REQUIRE(kernel.parameters.size() == 13);
    const uint32_t offsets[] = {offsetof(Parameters, a),  offsetof(Parameters, b), offsetof(Parameters, c),
                                offsetof(Parameters, d),  offsetof(Parameters, e), offsetof(Parameters, f),
                                offsetof(Parameters, g),  offsetof(Parameters, h), offsetof(Parameters, i),
                                offsetof(Parameters, j),  offsetof(Parameters, k), offsetof(Parameters, l),
                                offsetof(Parameters, out)};
    for (size_t n = 0; n < 13; n++) CHECK_MESSAGE(kernel.parameters[n].offset == offsets[n], kernel.parameters[n].name);
    REQUIRE(kernel.parameter_bytes == offsets[12] + 8);
    std::vector<unsigned char> bytes(kernel.parameter_bytes);
    std::memcpy(bytes.data(), &parameters, bytes.size());
    run_text(text, bytes, threads(1));
    uint64_t nine_and_a_half;
    std::memcpy(&nine_and_a_half, &parameters.i, 8);
    CHECK(out.read<uint64_t>() ==
          std::vector<uint64_t>{0x81, ~uint64_t{1}, 0x8003, ~uint64_t{3}, 0x40d0000080000005, 0x8000000000000007,
                                nine_and_a_half, 0xfffffffe0000000c, 0x0000001500000014 + 0x0000000400000004,
                                0x0000001700000016 + 0x0000000400000004, 0x0000001d0000001c, 0x0008000700060005});
}

TEST_CASE("ptx memory: static shared variables, then the dynamic part") {
    const std::string declarations =
        ".shared .align 4 .b8 first[6]; .shared .align 8 .f64 second; .extern .shared .align 128 .b8 dynamic[]; ";
    const std::string body =
        ".shared .align 16 .b8 own[20]; .shared .u16 last; mov.u32 %r1, first; mov.u32 %r2, second; mov.u32 %r3, own; "
        "mov.u32 %r4, last; st.global.v4.u32 [%rd0], {%r1, %r2, %r3, %r4}; mov.u32 %r5, dynamic; "
        "st.global.u32 [%rd0+16], %r5; mov.u64 %rd9, own; cvta.shared.u64 %rd10, %rd9; st.u32 [%rd10+4], 99; "
        "ld.shared.u32 %r6, [own+4]; st.global.u32 [%rd0+20], %r6; st.shared.u16 [last], 7; ld.shared.u16 %h1, [%r4]; "
        "st.shared.u8 [dynamic+255], %h1;";
    const Buffer out(24);
    run_snippet(body, {out.address()}, {{1, 1, 1}, {1, 1, 1}, 256}, declarations);
    const auto at = out.read<uint32_t>();
    const uint32_t first = at[0];
    CHECK(first % 4 == 0);
    CHECK(at[1] == first + 8);
    CHECK(at[2] == first + 16);
    CHECK(at[3] == first + 36);
    CHECK(at[4] % 128 == 0);
    CHECK(at[4] >= first + 38);
    CHECK(at[5] == 99);
    const std::string text = module_text(body, 1, declarations);
    CHECK(read_module(text).at(0)->shared_bytes == 38);
    // Each block's shared memory is unwritten at first.
    CHECK(contains(fault_of([&] {
                       run_snippet(
                           "mov.u32 %r1, %ctaid.x; setp.eq.s32 %p0, %r1, 0; @%p0 st.shared.u32 [data], 1; "
                           "ld.shared.u32 %r2, [data];",
                           {}, threads(1, 2), ".shared .align 4 .b8 data[4]; ");
                   }),
                   "block (1,0,0), thread (0,0,0): load of 4 bytes of shared memory"));
}

// ---- atomics ----

namespace {

struct Atomic {
    const char *operation, *type;
    uint64_t before, b, c, after;
};
const Atomic kAtomics[] = {
    {"add", "u32", 0xffffffff, 3, 0, 2},
    {"add", "s32", 5, 0xfffffff0, 0, 0xfffffff5},
    {"add", "u64", 0xffffffff, 1, 0, 0x100000000},
    {"add", "f32", 0x3f800000, 0x40000000, 0, 0x40400000},  // 1 + 2
    {"add", "f64", 0x3ff0000000000000, 0x4000000000000000, 0, 0x4008000000000000},
    {"inc", "u32", 5, 7, 0, 6},
    {"inc", "u32", 7, 7, 0, 0},
    {"inc", "u32", 0xffffffff, 7, 0, 0},
    {"min", "u32", 5, 0xffffffff, 0, 5},
    {"min", "s32", 5, 0xffffffff, 0, 0xffffffff},
    {"min", "u64", 5, ~uint64_t{0}, 0, 5},
    {"min", "s64", 5, ~uint64_t{0}, 0, ~uint64_t{0}},
    {"max", "u32", 5, 0xffffffff, 0, 0xffffffff},
    {"max", "s32", 5, 0xffffffff, 0, 5},
    {"max", "u64", 5, ~uint64_t{0}, 0, ~uint64_t{0}},
    {"max", "s64", 5, ~uint64_t{0}, 0, 5},
    {"and", "b32", 12, 10, 0, 8},
    {"or", "b32", 12, 10, 0, 14},
    {"xor", "b32", 12, 10, 0, 6},
    {"and", "b64", 0xc00000000c, 0xa00000000a, 0, 0x8000000008},
    {"or", "b64", 0xc00000000c, 0xa00000000a, 0, 0xe00000000e},
    {"xor", "b64", 0xc00000000c, 0xa00000000a, 0, 0x6000000006},
    {"exch", "b32", 12, 10, 0, 10},
    {"exch", "b64", 12, 0xa00000000a, 0, 0xa00000000a},
    {"cas", "b32", 12, 12, 77, 77},
    {"cas", "b32", 12, 13, 77, 12},
    {"cas", "b64", 0xc00000000c, 0xc00000000c, 77, 77},
    {"cas", "b64", 0xc00000000c, 12, 77, 0xc00000000c},
};

}  // namespace

TEST_CASE("ptx memory: atomics return the old value and leave the result") {
    for (const Atomic& a : kAtomics) {
        const bool wide = std::string(a.type).ends_with("64"), cas = std::string(a.operation) == "cas";
        const std::string r = wide ? "%rd1" : "%r1", type = a.type,
                          operands = r + "1" + (cas ? ", " + r + "2" : "") + "; ";
        for (const std::string& space : {std::string("global"), std::string("shared"), std::string("")}) {
            const Buffer in(std::vector<uint64_t>{a.before, a.b, a.c}), out(16);
            const std::string s = space.empty() ? "" : "." + space, address = space == "shared" ? "[data]" : "[%rd0]";
            const std::string u = wide ? "u64" : "u32";
            run_snippet("ld.global." + u + " " + r + "0, [%rd0]; st.shared." + u + " [data], " + r + "0; ld.global." +
                            u + " " + r + "1, [%rd0+8]; ld.global." + u + " " + r +
                            "2, [%rd0+16]; st.global.u64 [%rd1], 0; st.global.u64 [%rd1+8], 0; atom" + s + "." +
                            a.operation + "." + type + " " + r + "3, " + address + ", " + operands + "st.global." + u +
                            " [%rd1], " + r + "3; ld" + s + "." + u + " " + r + "4, " + address + "; st.global." + u +
                            " [%rd1+8], " + r + "4;",
                        {in.address(), out.address()}, threads(1), ".shared .align 8 .b8 data[8]; ");
            const std::vector<uint64_t> expected{a.before, a.after};
            CHECK_MESSAGE(out.read<uint64_t>() == expected, a.operation, s, " ", a.type);
        }
    }
}

TEST_CASE("ptx memory: red does what atom does, lanes one after the other") {
    for (const Atomic& a : kAtomics) {
        const std::string operation = a.operation, type = a.type;
        if (operation == "cas" || operation == "exch") continue;
        const Buffer in(std::vector<uint64_t>{a.before, a.b});
        const std::string r = type.ends_with("64") ? "%rd11" : "%r11", u = type.ends_with("64") ? "u64" : "u32";
        run_snippet(
            "ld.global." + u + " " + r + ", [%rd0+8]; red.global." + operation + "." + type + " [%rd0], " + r + ";",
            {in.address()}, threads(1));
        CHECK_MESSAGE(in.read<uint64_t>()[0] == a.after, operation << " " << type);
    }
    const Buffer sum(std::vector<uint32_t>{100}), before(32 * 4);
    run_snippet(element_address(20, 1, 4) + "atom.global.add.u32 %r1, [%rd0], %r62; st.global.u32 [%rd20], %r1;",
                {sum.address(), before.address()});
    CHECK(sum.read<uint32_t>()[0] == 100 + 31 * 32 / 2);
    auto seen = before.read<uint32_t>();
    CHECK(seen[0] == 100);
    CHECK(seen[31] == 100 + 30 * 31 / 2);
}

TEST_CASE("ptx memory: atomic sums of blocks on several threads lose nothing") {
    const Buffer sums(std::vector<uint64_t>{0, 0, 0});
    run_snippet(
        "red.global.add.u32 [%rd0], 1; red.global.add.u64 [%rd0+8], 0x100000001; mov.f32 %f1, 0f3f800000; "
        "red.global.add.f32 [%rd0+16], %f1; mov.u32 %r1, %ctaid.x; red.global.max.u32 [%rd0+4], %r1;",
        {sums.address()}, threads(64, 500));
    const auto values = sums.read<uint32_t>();
    CHECK(values[0] == 32000);
    CHECK(values[1] == 499);
    CHECK(values[2] == 32000);
    CHECK(values[3] == 32000);
    float sum;
    std::memcpy(&sum, &values[4], 4);
    CHECK(sum == 32000.0f);
}

// PTX ISA, "atom": atom.add.f32 flushes subnormal numbers to zero in global memory, but not in shared memory.
TEST_CASE("ptx memory: atom.add.f32 flushes subnormal numbers only in global memory") {
    const auto sum = [](uint32_t a, uint32_t b, bool shared) {
        const Buffer in(std::vector<uint32_t>{a, b}), out(4);
        run_snippet("ld.global.f32 %f1, [%rd0]; ld.global.f32 %f2, [%rd0+4]; st.shared.f32 [data], %f1; " +
                        std::string(shared ? "red.shared.add.f32 [data], %f2; ld.shared.f32 %f3, [data]; "
                                           : "red.global.add.f32 [%rd0], %f2; ld.global.f32 %f3, [%rd0]; ") +
                        "st.global.f32 [%rd1], %f3;",
                    {in.address(), out.address()}, threads(1), ".shared .align 4 .b8 data[4]; ");
        return out.read<uint32_t>()[0];
    };
    CHECK(sum(1, 2, true) == 3);
    CHECK(sum(1, 2, false) == 0);
    CHECK(sum(0x80000001, 0x80000001, false) == 0x80000000);
    CHECK(sum(0x00c00000, 0x80800000, true) == 0x00400000);  // 1.5 2^-126 - 2^-126
    CHECK(sum(0x00c00000, 0x80800000, false) == 0);
    CHECK(sum(0x7f800000, 0xff800000, false) == 0x7fffffff);
}

// ---- asynchronous copies ----

TEST_CASE("ptx memory: cp.async copies its bytes and fills with zeros") {
    const auto data = random_bytes(512);
    const Buffer in(data);
    for (const int size : {4, 8, 16})
        for (const int wanted : {0, 1, 3, 4, 7, 8, 15, 16}) {
            if (wanted > size) continue;
            const Buffer out(static_cast<size_t>(32 * size));
            run_snippet(
                ptx("mov.u32 %r1, $2; mov.u32 %r0, %tid.x; mul.lo.s32 %r2, %r0, $1; mov.u32 %r3, data; "
                    "add.s32 %r3, %r3, %r2; cvt.u64.u32 %rd9, %r2; add.s64 %rd10, %rd0, %rd9; add.s64 %rd11, %rd1, "
                    "%rd9; "
                    "cp.async.ca.shared.global [%r3], [%rd10], $1, %r1; cp.async.wait_all; bar.sync 0; ",
                    size, wanted) +
                    (size == 4   ? "ld.shared.u32 %r4, [%r3]; st.global.u32 [%rd11], %r4;"
                     : size == 8 ? "ld.shared.u64 %rd12, [%r3]; st.global.u64 [%rd11], %rd12;"
                                 : "ld.shared.v2.u64 {%rd12, %rd13}, [%r3]; st.global.v2.u64 [%rd11], {%rd12, %rd13};"),
                {in.address(), out.address()}, threads(32), ".shared .align 16 .b8 data[512]; ");
            std::vector<uint8_t> expected(data.begin(), data.begin() + 32 * size);
            for (int i = 0; i < 32 * size; i++)
                if (i % size >= wanted) expected[static_cast<size_t>(i)] = 0;
            CHECK_MESSAGE(out.read<uint8_t>() == expected, wanted << " of " << size);
        }
    // If no bytes are requested, none are read, so the address may be arbitrary.
    CHECK(fault_of([] {
              run_snippet(
                  "mov.u64 %rd9, 64; mov.u32 %r1, 0; cp.async.cg.shared.global [data], [%rd9], 16, %r1; "
                  "cp.async.wait_all; ld.shared.u32 %r2, [data];",
                  {}, threads(1), ".shared .align 16 .b8 data[16]; ");
          }) == "");
}

// Four groups into four places. After wait_group n the first 4 - n may be read, in their order.
TEST_CASE("ptx memory: wait_group leaves the newest groups") {
    const Buffer in(std::vector<uint32_t>{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33});
    std::string copies;
    for (int g = 0; g < 4; g++)
        copies += ptx("cp.async.cg.shared.global [data+$1], [%rd0+$1], 16; cp.async.commit_group; ", 16 * g);
    for (int left = 0; left <= 5; left++)
        for (int read = 0; read < 4; read++) {
            const Buffer out(4);
            const std::string message = fault_of([&] {
                run_snippet(
                    copies + ptx("cp.async.wait_group $1; ld.shared.u32 %r1, [data+$2]; st.global.u32 [%rd1], %r1;",
                                 left, 16 * read + 4),
                    {in.address(), out.address()}, threads(1), ".shared .align 16 .b8 data[64]; ");
            });
            CHECK(contains(message, "has not been waited for") == (read >= 4 - left));
            if (message.empty()) CHECK(out.read<uint32_t>()[0] == static_cast<uint32_t>(10 * read + 1));
        }
    // Two copies to one place: the later one wins.
    const Buffer out(4);
    run_snippet(
        "cp.async.cg.shared.global [data], [%rd0], 16; cp.async.commit_group; "
        "cp.async.cg.shared.global [data], [%rd0+16], 16; cp.async.commit_group; cp.async.wait_group 0; "
        "ld.shared.u32 %r1, [data]; st.global.u32 [%rd1], %r1;",
        {in.address(), out.address()}, threads(1), ".shared .align 16 .b8 data[64]; ");
    CHECK(out.read<uint32_t>()[0] == 10);
}

}  // namespace virtual_gpu::test
