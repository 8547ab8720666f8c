// Lane-by-lane instructions with known results, worked out by hand: edge cases that the PTX ISA documents. Integers are
// decimal or hexadecimal. Floats are decimal, 0x1.8p3, inf, nan (the canonical one), or 0f and 0d with their bits, as
// in PTX. An opcode of the machine that has no case here and is not in ptx_integers.cpp fails the test.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/lanes.h"
#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

struct Row {
    const char* opcodes;  // {a,b} stands for both
    const char* cases;    // "operands = result; operands = result"
};

const Row kTable[] = {
    // ---- selection, predicates, bits ----
    {"selp.{u16,s16,u32,s32,u64,s64,b16,b32,b64,f32,f64}", "3 4 1 = 3; 3 4 0 = 4"},
    {"mov.{u16,s16,u32,s32,u64,s64,b16,b32,b64,f32,f64}", "5 = 5; -1 = -1"},
    {"mov.f32", "0f7fc00001 = 0f7fc00001; -0 = -0"},
    {"mov.f64", "0d7ff8000000000001 = 0d7ff8000000000001"},
    {"and.pred", "1 1 = 1; 1 0 = 0; 0 1 = 0; 0 0 = 0"},
    {"or.pred", "1 1 = 1; 1 0 = 1; 0 1 = 1; 0 0 = 0"},
    {"xor.pred", "1 1 = 0; 1 0 = 1; 0 1 = 1; 0 0 = 0"},
    {"not.pred", "1 = 0; 0 = 1"},
    {"mov.pred", "1 = 1; 0 = 0"},
    {"bfi.b32",
     "0xff 0 8 4 = 0xf00; 0 0xffffffff 4 8 = 0xfffff00f; 5 9 0 0 = 9; 5 9 32 4 = 9; 5 9 0 32 = 5; 5 9 0 255 = 5; "
     "0xff 0 28 8 = 0xf0000000; 0xf 0 256 260 = 0xf; 1 0 31 32 = 0x80000000"},
    {"bfi.b64",
     "0xff 0 40 4 = 0xf0000000000; 7 9 64 4 = 9; 5 9 0 64 = 5; 5 9 0 255 = 5; 3 0xffffffff 32 32 = 0x3ffffffff; "
     "0xff 0 60 8 = 0xf000000000000000; 0xf 0 256 260 = 0xf; 0 0xffffffffffffffff 4 56 = 0xf00000000000000f"},
    {"bfe.u32",
     "0x12345678 8 8 = 0x56; 0x12345678 0 0 = 0; 0x12345678 0 32 = 0x12345678; 0x12345678 28 8 = 1; "
     "0xffffffff 32 4 = 0; 0xffffffff 31 255 = 1; 0xffffffff 256 264 = 0xff; 0xffffffff 255 1 = 0"},
    {"prmt.b32",
     "0x33221100 0x77665544 0x3210 = 0x33221100; 0x33221100 0x77665544 0x7654 = 0x77665544; "
     "0x33221100 0x77665544 0x0415 = 0x00441155; 0x80ff7f00 0 0xba98 = 0xffff0000; "
     "0x33221100 0x77665544 0xffff0123 = 0x00112233; 0 0x80000000 0xffff = 0xffffffff"},
    {"shf.l.wrap.b32", "0x80000000 1 1 = 3; 5 9 0 = 9; 5 9 32 = 9; 0xf0000000 0 36 = 0xf; 1 0 31 = 0"},
    {"shf.r.wrap.b32", "0x80000000 1 1 = 0xc0000000; 5 9 0 = 5; 5 9 32 = 5; 0 0xf 36 = 0xf0000000; 0 1 31 = 2"},
    {"popc.b32", "0 = 0; 0xffffffff = 32; 0x80000001 = 2"},
    {"clz.b32", "0 = 32; 1 = 31; 0xffffffff = 0; 0x00800000 = 8"},
    {"lop3.b32",
     "0xf0 0xcc 0xaa 0x80 = 0x80; 0xf0 0xcc 0xaa 0xfe = 0xfe; 0xf0 0xcc 0xaa 0xca = 0xca; 0xf0 0xcc 0xaa 0x96 = 0x96; "
     "1 2 3 0 = 0; 1 2 3 0xff = 0xffffffff; 0xff 0xf 0 0xf0 = 0xff; 0xff 0xf 0 0xcc = 0xf; 0xff 0xf 3 0xaa = 3"},
    {"cvta.to.global.u64 cvta.global.u64", "0x123456789abc = 0x123456789abc"},
    {"cvta.shared.u64", "0x410 = 0x5100000000000410"},
    {"cvta.to.shared.u64", "0x5100000000000410 = 0x410"},
    // ---- floats ----
    {"add.{,rn.}{f32,f64}",
     "1.5 2.25 = 3.75; inf -inf = nan; nan 1 = nan; 1 nan = nan; -0 -0 = -0; 1 -1 = 0; -0 0 = 0"},
    {"add.{,rn.}f32",
     "16777216 1 = 16777216; 16777216 3 = 16777220; 0f00000001 0f00000001 = 0f00000002; 0x1.fffffep127 0x1p103 = inf; "
     "0f7f800001 1 = nan; 0fffc00000 1 = nan"},
    {"add.{,rn.}f64", "9007199254740992 1 = 9007199254740992; 0dfff8000000000000 1 = nan"},
    {"sub.{,rn.}{f32,f64}", "1.5 2.25 = -0.75; inf inf = nan; 0 0 = 0; -0 0 = -0; nan 1 = nan"},
    {"mul.{,rn.}{f32,f64}", "1.5 -2 = -3; 0 inf = nan; -0 5 = -0; nan 0 = nan"},
    {"mul.{,rn.}f32",
     "0x1p-100 0x1p-49 = 0f00000001; 0x1p-100 0x1p-50 = 0; 0x1.8p-100 0x1p-50 = 0f00000001; 0x1p100 0x1p28 = inf"},
    {"fma.rn.{f32,f64}", "2 3 4 = 10; inf 0 1 = nan; 1 -0 -0 = -0; 1 0 -0 = 0; nan 1 1 = nan"},
    // (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24: rounding the product first would give 0.
    {"fma.rn.f32", "0x1.001p0 0x1.001p0 -0x1.002p0 = 0x1p-24; 0x1p-100 0x1p-49 0 = 0f00000001"},
    {"fma.rn.f64", "0x1.0000001p0 0x1.0000001p0 -0x1.0000002p0 = 0x1p-56"},
    {"div.rn.{f32,f64}", "1 4 = 0.25; 1 0 = inf; -1 0 = -inf; 0 0 = nan; inf inf = nan; 1 inf = 0; nan 1 = nan"},
    {"div.rn.f32", "1 3 = 0f3eaaaaab; 1 0x1p127 = 0x1p-127; 0x1p-126 4 = 0x1p-128"},
    {"rcp.rn.{f32,f64}", "4 = 0.25; 0 = inf; -0 = -inf; -inf = -0; nan = nan"},
    {"rcp.rn.f32", "3 = 0f3eaaaaab; 0x1p127 = 0x1p-127"},
    {"sqrt.rn.{f32,f64}", "9 = 3; -0 = -0; -1 = nan; inf = inf; nan = nan"},
    {"sqrt.rn.f32", "2 = 0f3fb504f3"},
    {"min.{f32,f64}",
     "1 2 = 1; nan 2 = 2; 2 nan = 2; nan nan = nan; 0 -0 = -0; -0 0 = -0; -inf 1 = -inf; inf nan = inf"},
    {"max.{f32,f64}", "1 2 = 2; nan 2 = 2; 2 nan = 2; nan nan = nan; 0 -0 = 0; -0 0 = 0; inf 1 = inf; -inf nan = -inf"},
    {"min.NaN.f32",
     "1 2 = 1; nan 2 = nan; 2 nan = nan; nan nan = nan; 0 -0 = -0; -0 0 = -0; -inf nan = nan; 0fffc00001 1 = nan"},
    {"max.NaN.f32",
     "1 2 = 2; nan 2 = nan; 2 nan = nan; nan nan = nan; 0 -0 = 0; -0 0 = 0; inf nan = nan; 1 0fff800001 = nan"},
    {"neg.{f32,f64}", "1 = -1; 0 = -0; -inf = inf"},
    {"abs.{f32,f64}", "-1 = 1; -0 = 0; -inf = inf; 2 = 2"},
    {"copysign.{f32,f64}", "-1 3 = -3; 1 -3 = 3; -0 inf = -inf"},
    {"setp.{eq,equ}.{f32,f64}", "1 1 = 1; 1 2 = 0; 2 1 = 0; 0 -0 = 1; inf inf = 1"},
    {"setp.{ne,neu}.{f32,f64}", "1 1 = 0; 1 2 = 1; 2 1 = 1; 0 -0 = 0; inf inf = 0"},
    {"setp.{lt,ltu}.{f32,f64}", "1 1 = 0; 1 2 = 1; 2 1 = 0; -0 0 = 0; -inf inf = 1"},
    {"setp.{le,leu}.{f32,f64}", "1 1 = 1; 1 2 = 1; 2 1 = 0; 0 -0 = 1; -inf inf = 1"},
    {"setp.{gt,gtu}.{f32,f64}", "1 1 = 0; 1 2 = 0; 2 1 = 1; 0 -0 = 0; -inf inf = 0"},
    {"setp.{ge,geu}.{f32,f64}", "1 1 = 1; 1 2 = 0; 2 1 = 1; -0 0 = 1; -inf inf = 0"},
    {"setp.num.{f32,f64}", "1 2 = 1; inf -inf = 1"},
    {"setp.nan.{f32,f64}", "1 2 = 0; inf -inf = 0"},
    {"setp.{eq,ne,lt,le,gt,ge,num}.{f32,f64}", "nan 1 = 0; 1 nan = 0; nan nan = 0"},
    {"setp.{equ,neu,ltu,leu,gtu,geu,nan}.{f32,f64}", "nan 1 = 1; 1 nan = 1; nan nan = 1"},
    // ---- approximations: exact for the special inputs in the PTX ISA's tables; ftz takes subnormals as zero ----
    {"ex2.approx.{,ftz.}f32",
     "0 = 1; -0 = 1; 3 = 8; -1 = 0.5; inf = inf; -inf = 0; nan = nan; 128 = inf; -126 = 0x1p-126; 0f00000001 = 1; "
     "-200 = 0; 1000 = inf; 127 = 0x1p127"},
    {"ex2.approx.f32", "-127 = 0x1p-127; -149 = 0x1p-149"},
    {"ex2.approx.ftz.f32", "-127 = 0; -149 = 0"},
    {"lg2.approx.{,ftz.}f32",
     "1 = 0; 8 = 3; 0.25 = -2; 0 = -inf; -0 = -inf; -1 = nan; inf = inf; nan = nan; -inf = nan"},
    {"lg2.approx.f32", "0x1p-149 = -149; -0x1p-149 = nan"},
    {"lg2.approx.ftz.f32", "0x1p-149 = -inf; -0x1p-149 = -inf"},
    {"rsqrt.approx.{,ftz.}f32", "4 = 0.5; 0 = inf; -0 = -inf; -1 = nan; inf = 0; nan = nan; 0x1p-126 = 0x1p63"},
    {"rsqrt.approx.f32", "0x1p-148 = 0x1p74"},
    {"rsqrt.approx.ftz.f32", "0x1p-148 = inf; -0x1p-148 = -inf"},
    {"sqrt.approx.f32", "9 = 3; 0 = 0; -0 = -0; -1 = nan; inf = inf; nan = nan"},
    {"rcp.approx.{,ftz.}f32", "4 = 0.25; 0 = inf; -0 = -inf; inf = 0; -inf = -0; nan = nan"},
    {"rcp.approx.f32", "0x1p127 = 0x1p-127; 0x1p-128 = inf"},
    {"rcp.approx.ftz.f32", "0x1p127 = 0; -0x1p127 = -0; 0x1p-127 = inf; -0x1p-127 = -inf"},
    {"div.{approx,full}.f32",
     "1 4 = 0.25; -3 2 = -1.5; 1 0 = inf; 0 0 = nan; inf inf = nan; 5 inf = 0; nan 1 = nan; 1 nan = nan; "
     "0x1p126 0x1p126 = 1; inf 1 = inf"},
    // For 2^126 < |b| < 2^128 the quotient is 0, or NaN if a is infinite; div.full has no such range.
    {"div.approx.f32",
     "0x1p127 0x1p127 = 0; 1 -0x1p127 = -0; inf 0x1p127 = nan; -inf 0x1.8p126 = nan; nan 0x1p127 = nan; "
     "0x1p127 0x1.fffffep127 = 0; 0x1p127 0x1.000002p126 = 0"},
    {"div.full.f32", "0x1p127 0x1p127 = 1; 0x1p127 -0x1p126 = -2; inf 0x1p127 = inf"},
    {"sin.approx.f32", "0 = 0; -0 = -0; inf = nan; nan = nan"},
    {"cos.approx.f32", "0 = 1; inf = nan; nan = nan"},
    {"tanh.approx.f32", "0 = 0; -0 = -0; inf = 1; -inf = -1; nan = nan; 20 = 1"},
    // ---- conversions; those between integers and floats of 32 and 64 bits are also in ptx_integers.cpp ----
    {"cvt.{u8,s8,u16,s16,u32,s32,u64,s64}.{u8,s8,u16,s16,u32,s32,u64,s64}", "0 = 0; 100 = 100"},
    {"cvt.rn.{f32,f64}.{u8,s8,u16,s16,u32,s32,u64,s64}", "0 = 0; 100 = 100"},
    {"cvt.rn.{f32,f64}.{s8,s16,s32,s64}", "-1 = -1"},
    {"cvt.rn.{f32,f64}.u8", "255 = 255"},
    {"cvt.rn.{f32,f64}.u16", "65535 = 65535"},
    {"cvt.rzi.{u32,s32,u64,s64}.{f32,f64}", "2.9 = 2; 0.5 = 0; -0.5 = 0; -0 = 0"},
    {"cvt.rni.{u32,s32,u64,s64}.{f32,f64}", "2.5 = 2; 3.5 = 4; 0.5 = 0; -0.5 = 0; 2.75 = 3"},
    {"cvt.rmi.{u32,s32,u64,s64}.{f32,f64}", "2.9 = 2; 3 = 3"},
    {"cvt.rpi.{u32,s32,u64,s64}.{f32,f64}", "2.1 = 3; -0.5 = 0; 3 = 3"},
    // NaN becomes 0 from f32 to 32 bits, otherwise only the most significant bit is set. Infinities saturate.
    {"cvt.{rzi,rni,rmi,rpi}.{u32,u64}.{f32,f64}", "-inf = 0; inf = -1"},
    {"cvt.{rzi,rni,rmi,rpi}.s32.{f32,f64}", "-inf = -2147483648; inf = 2147483647"},
    {"cvt.{rzi,rni,rmi,rpi}.s64.{f32,f64}", "-inf = 0x8000000000000000; inf = 0x7fffffffffffffff"},
    {"cvt.{rzi,rni,rmi,rpi}.{u32,s32}.f32", "nan = 0"},
    {"cvt.{rzi,rni,rmi,rpi}.{u32,s32}.f64", "nan = 0x80000000"},
    {"cvt.{rzi,rni,rmi,rpi}.{u64,s64}.{f32,f64}", "nan = 0x8000000000000000"},
    {"cvt.rzi.{f32.f32,f64.f64}", "2.9 = 2; -2.9 = -2; -0.5 = -0; inf = inf; nan = nan; 0x1p60 = 0x1p60"},
    {"cvt.rni.{f32.f32,f64.f64}", "2.5 = 2; 3.5 = 4; -2.5 = -2; -0.5 = -0; nan = nan; -inf = -inf"},
    {"cvt.rmi.{f32.f32,f64.f64}", "2.9 = 2; -2.1 = -3; -0.5 = -1; -0 = -0; nan = nan"},
    {"cvt.rpi.{f32.f32,f64.f64}", "2.1 = 3; -2.9 = -2; -0.5 = -0; nan = nan"},
    {"cvt.f64.f32", "1.5 = 1.5; 0x1p-149 = 0x1p-149; nan = nan; -inf = -inf; -0 = -0"},
    {"cvt.rn.f32.f64",
     "1.5 = 1.5; 0x1.000001p0 = 1; 0x1.000003p0 = 0x1.000004p0; 0x1.0000010000001p0 = 0x1.000002p0; 0x1p-150 = 0; "
     "0x1.8p-150 = 0x1p-149; 1e300 = inf; nan = nan; -1e-300 = -0"},
    {"cvt.f32.bf16", "0x3f80 = 1; 0xbf80 = -1; 0x0001 = 0x1p-133; 0x8000 = -0; 0x7f80 = inf"},
    {"cvt.rn.bf16.f32",
     "1 = 0x3f80; 0x1.01p0 = 0x3f80; 0x1.03p0 = 0x3f82; 0x1.010002p0 = 0x3f81; nan = 0x7fff; -inf = 0xff80; "
     "0x1.fffffep127 = 0x7f80; 0fffc00000 = 0x7fff; -0 = 0x8000; 0x1p-134 = 0; 0x1.8p-134 = 1"},
    {"cvt.rn.bf16x2.f32", "1 -2 = 0x3f80c000; nan 0 = 0x7fff0000"},
    {"cvt.rn.satfinite.e4m3x2.f32",
     "1 -2 = 0x38c0; 1000 -1000 = 0x7efe; nan inf = 0x7f7e; 0x1p-9 0x1p-10 = 0x0100; 0x1.8p-9 0x1p-7 = 0x0204; "
     "464 17 = 0x7e58; -0 0x1.1p4 = 0x8058; 19 0 = 0x5a00"},
    {"cvt.rn.satfinite.e5m2x2.f32",
     "1 -2 = 0x3cc0; 1e6 -inf = 0x7bfb; nan 0 = 0x7f00; 0x1p-16 0x1p-17 = 0x0100; 0x1.2p0 0x1.6p0 = 0x3c3e"},
    {"cvt.rp.satfinite.ue8m0x2.f32",
     "1 1.5 = 0x7f80; 0 -4 = 0x0081; nan inf = 0xfffe; 0x1p-127 0x1.000004p-127 = 0x0001"},
    {"cvt.rz.satfinite.ue8m0x2.f32",
     "1 1.5 = 0x7f7f; 0 -7 = 0x0081; nan inf = 0xfffe; 0x1p-126 0x1.fffffep127 = 0x01fe"},
    {"cvt.rna.tf32.f32",
     "1 = 1; 0x1.002p0 = 0x1.004p0; 0x1.001ffep0 = 1; -0x1.002p0 = -0x1.004p0; inf = inf; nan = nan; 0x1.fffp127 = "
     "inf"},
};

// "a.{b,c}" means a.b and a.c; spaces separate opcodes.
std::vector<std::string> expanded(const std::string& pattern) {
    std::vector<std::string> result;
    const size_t open = pattern.find('{'), close = pattern.find('}', open);
    if (open == std::string::npos) {
        std::istringstream words(pattern);
        for (std::string word; words >> word;) result.push_back(word);
        return result;
    }
    std::istringstream choices(pattern.substr(open + 1, close - open - 1) + ",");
    for (std::string choice; std::getline(choices, choice, ',');)
        for (const std::string& s : expanded(pattern.substr(0, open) + choice + pattern.substr(close + 1)))
            result.push_back(s);
    return result;
}

uint64_t mask_of(char kind) { return kind == 'h' ? 0xffffu : kind == 'w' || kind == 'f' ? 0xffffffffu : ~uint64_t{0}; }

uint64_t bits_of(const std::string& text, char kind) {
    if (text.starts_with("0f") || text.starts_with("0d")) return std::strtoull(text.c_str() + 2, nullptr, 16);
    if (kind == 'f') {
        const float value = std::strtof(text.c_str(), nullptr);
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return text == "nan" ? 0x7fffffffu : bits;
    }
    if (kind == 'd') {
        const double value = std::strtod(text.c_str(), nullptr);
        uint64_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return text == "nan" ? 0x7fffffffffffffffu : bits;
    }
    const uint64_t bits = text[0] == '-' ? static_cast<uint64_t>(std::strtoll(text.c_str(), nullptr, 0))
                                         : std::strtoull(text.c_str(), nullptr, 0);
    return bits & mask_of(kind);
}

struct Cases {
    std::vector<std::vector<uint64_t>> operands;
    std::vector<uint64_t> expected;
    std::vector<std::string> texts;
};

void add_cases(const std::string& text, const std::string& kinds, Cases& to) {
    to.operands.resize(kinds.size() - 1);
    std::istringstream cases(text);
    for (std::string one; std::getline(cases, one, ';');) {
        std::istringstream words(one);
        std::string word;
        for (size_t n = 0; n + 1 < kinds.size(); n++) {
            words >> word;
            to.operands[n].push_back(bits_of(word, kinds[n + 1]));
        }
        words >> word;
        REQUIRE_MESSAGE(word == "=", one);
        words >> word;
        to.expected.push_back(bits_of(word, kinds[0]));
        REQUIRE_MESSAGE(!(words >> word), one);
        to.texts.push_back(one);
    }
}

}  // namespace

TEST_CASE("ptx: lane-by-lane instructions give their known results") {
    std::map<std::string, Cases> cases;
    for (const Row& row : kTable)
        for (const std::string& opcode : expanded(row.opcodes)) {
            const LaneOp* const op = find_lane_op(opcode);
            REQUIRE_MESSAGE(op != nullptr, opcode);
            add_cases(row.cases, op->operands, cases[opcode]);
        }
    for (const std::string& opcode : lane_opcodes()) {
        CHECK_MESSAGE(cases.contains(opcode) != compared_in_128_bits(opcode), opcode << " has no case, or two");
        if (!cases.contains(opcode)) continue;
        if (options().approximate && find_lane_op(opcode)->kind == Kind::special) continue;
        const Cases& c = cases[opcode];
        const std::string& kinds = find_lane_op(opcode)->operands;
        const std::vector<uint64_t> results = run_lane_op(opcode, kinds, c.operands);
        for (size_t n = 0; n < results.size(); n++)
            CHECK_MESSAGE(results[n] == c.expected[n], opcode << " " << c.texts[n] << ": got " << results[n]);
    }
}

}  // namespace virtual_gpu::test
