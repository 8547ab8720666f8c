// Integer instructions and conversions against arithmetic in 128 bits, on random and on extreme operands.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "dev/virtual_gpu/ptx/lanes.h"
#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

using Int = __int128;
using Unsigned = unsigned __int128;

int bits_of(const std::string& type) { return std::stoi(type.substr(1)); }
bool is_signed(const std::string& type) { return type[0] == 's'; }

// The number that the low bits represent in a type.
Int value(uint64_t bits, const std::string& type) {
    const int width = bits_of(type);
    if (width < 64) bits &= (uint64_t{1} << width) - 1;
    return is_signed(type) && bits >> (width - 1) & 1 ? Int{bits} - (Int{1} << width) : Int{bits};
}
uint64_t low_bits(Int x, int width) {
    return static_cast<uint64_t>(static_cast<Unsigned>(x) & ((Unsigned{1} << width) - 1));
}

// Bits for every width: extreme values of all widths, then random ones.
std::vector<uint64_t> samples(std::mt19937_64& random, bool shifts) {
    std::vector<uint64_t> list{0, 1, 2, 3, 0x81, 0x10000, 0x100000000, ~uint64_t{0}, ~uint64_t{1}};
    for (const int width : {8, 16, 32, 64}) {
        const uint64_t half = uint64_t{1} << (width - 1);
        for (const uint64_t extreme : {half - 1, half, half + (half - 1)}) list.push_back(extreme);
    }
    while (list.size() < 44) list.push_back(random() >> random() % 64);
    if (shifts)
        for (uint64_t n = 0; n < 70; n++) list.push_back(n);
    return list;
}

struct Split {
    std::string operation, type;  // "mul.lo", "s32"
};
Split split_opcode(const std::string& opcode) {
    const size_t dot = opcode.rfind('.');
    return {opcode.substr(0, dot), opcode.substr(dot + 1)};
}

// The result's bits before they are truncated to its width. Sets `known` to false for operations that are not tested
// here.
Int result_of(const std::string& operation, const std::string& type, uint64_t a_bits, uint64_t b_bits, uint64_t c_bits,
              bool& known) {
    const std::string wide = type.substr(0, 1) + std::to_string(2 * bits_of(type));
    const Int a = value(a_bits, type), b = value(b_bits, type);
    const Int product = static_cast<Int>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
    const int width = bits_of(type);
    known = true;
    if (operation == "add") return a + b;
    if (operation == "sub") return a - b;
    if (operation == "mul.lo" || operation == "mul.wide") return product;
    if (operation == "mul.hi")
        return is_signed(type) ? product >> width : static_cast<Int>(static_cast<Unsigned>(product) >> width);
    if (operation == "mad.lo") return product + value(c_bits, type);
    if (operation == "mad.wide") return product + value(c_bits, wide);
    if (operation == "min") return a < b ? a : b;
    if (operation == "max") return a > b ? a : b;
    if (operation == "neg") return -a;
    if (operation == "abs") return a < 0 ? -a : a;
    if (operation == "div") return b == 0 ? -1 : a / b;
    if (operation == "rem") return b == 0 ? a : a % b;
    if (operation == "and") return a & b;
    if (operation == "or") return a | b;
    if (operation == "xor") return a ^ b;
    if (operation == "not") return ~a;
    if (operation == "setp.eq") return a == b;
    if (operation == "setp.ne") return a != b;
    if (operation == "setp.lt") return a < b;
    if (operation == "setp.le") return a <= b;
    if (operation == "setp.gt") return a > b;
    if (operation == "setp.ge") return a >= b;
    const uint32_t by = static_cast<uint32_t>(b_bits);  // 32 bits for every type
    if (operation == "shl")
        return by >= static_cast<uint32_t>(width) ? 0 : static_cast<Int>(static_cast<Unsigned>(a) << by);
    if (operation == "shr") return a >> (by >= static_cast<uint32_t>(width) ? static_cast<uint32_t>(width) : by);
    known = false;
    return 0;
}

}  // namespace

bool compared_in_128_bits(const std::string& opcode) {
    const auto [operation, type] = split_opcode(opcode);
    bool known = false;
    const bool is_integer = std::string("usb").find(type[0]) != std::string::npos &&
                            type.find_first_not_of("0123456789", 1) == std::string::npos;
    if (is_integer) result_of(operation, type, 1, 1, 1, known);
    return known;
}

TEST_CASE("ptx: integer instructions agree with arithmetic in 128 bits") {
    std::mt19937_64 random(1);
    size_t looked_at = 0;
    for (const std::string& opcode : lane_opcodes()) {
        if (!compared_in_128_bits(opcode)) continue;
        const auto [operation, type] = split_opcode(opcode);
        looked_at++;
        const auto list = samples(random, operation[0] == 's' && operation[1] == 'h');
        std::vector<std::vector<uint64_t>> operands(find_lane_op(opcode)->operands.size() - 1);
        for (size_t i = 0; i < list.size() * list.size(); i++) {
            const uint64_t each[] = {list[i % list.size()], list[i / list.size()], random()};
            for (size_t n = 0; n < operands.size(); n++) operands[n].push_back(each[n]);
        }
        const std::string& kinds = find_lane_op(opcode)->operands;
        const auto results = run_lane_op(opcode, kinds, operands);
        const int width = kinds[0] == 'l' ? 64 : kinds[0] == 'w' ? 32 : kinds[0] == 'h' ? 16 : 1;
        size_t wrong = 0;
        bool known = false;
        for (size_t i = 0; i < results.size(); i++) {
            const uint64_t b = operands.size() > 1 ? operands[1][i] : 0, c = operands.size() > 2 ? operands[2][i] : 0;
            wrong += results[i] != low_bits(result_of(operation, type, operands[0][i], b, c, known), width);
        }
        CHECK_MESSAGE(wrong == 0, opcode);
    }
    CHECK(looked_at == 6 * (9 + 6) + 3 * 2 + 4 * 2 + 3 * (5 + 2) + 9);
}

TEST_CASE("ptx: conversions between integers keep the number, or its low bits") {
    std::mt19937_64 random(2);
    const auto list = samples(random, false);
    const char* const types[] = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"};
    for (const std::string from : types)
        for (const std::string to : types) {
            const std::string opcode = "cvt." + to + "." + from, &kinds = find_lane_op(opcode)->operands;
            const auto results = run_lane_op(opcode, kinds, {list});
            bool ok = true;
            // If the destination is wider than its type, it is extended by the type's sign: 8 bits in a register of 16.
            for (size_t i = 0; i < list.size(); i++)
                ok &= results[i] == low_bits(value(low_bits(value(list[i], from), 64), to), std::max(bits_of(to), 16));
            CHECK_MESSAGE(ok, opcode);
        }
}

// cvt reads the low half of a register of 64 bits.
TEST_CASE("ptx: cvt takes the low half of a wider register") {
    const Buffer out(16);
    run_snippet(
        "mov.u64 %rd9, 0x1234567880000081; cvt.s32.s8 %r1, %rd9; cvt.rn.f32.s32 %f1, %rd9; cvt.u64.u16 %rd10, %rd9; "
        "st.global.u32 [%rd0], %r1; st.global.f32 [%rd0+4], %f1; st.global.u64 [%rd0+8], %rd10;",
        {out.address()}, threads(1));
    CHECK(out.read<uint32_t>() == std::vector<uint32_t>{0xffffff81, std::bit_cast<uint32_t>(-2147483520.0f), 0x81, 0});
}

namespace {

// A finite float as mantissa * 2^exponent.
struct Exact {
    Int mantissa;
    int exponent;
};
Exact exact(uint64_t bits, bool is_double) {
    const int fraction = is_double ? 52 : 23, bias = is_double ? 1075 : 150,
              field = static_cast<int>(bits >> fraction) & (is_double ? 2047 : 255);
    const Int mantissa = Int{bits & ((uint64_t{1} << fraction) - 1)} + (field ? Int{1} << fraction : 0);
    return {bits >> (is_double ? 63 : 31) & 1 ? -mantissa : mantissa, (field ? field : 1) - bias};
}

// Rounds to an integer: 'z' to zero, 'n' nearest even, 'm' down, 'p' up. Limited to 2^100.
Int rounded(const Exact& x, char how) {
    if (x.mantissa == 0) return 0;
    if (x.exponent >= 0)
        return x.exponent > 60 ? (x.mantissa < 0 ? -(Int{1} << 100) : Int{1} << 100)
                               : x.mantissa * (Int{1} << x.exponent);
    const int shift = std::min(-x.exponent, 100);
    const Int down = x.mantissa >> shift, rest = x.mantissa - (down << shift), half = Int{1} << (shift - 1);
    if (rest == 0) return down;
    if (how == 'm') return down;
    if (how == 'p') return down + 1;
    if (how == 'z') return down + (x.mantissa < 0 ? 1 : 0);
    return down + (rest > half || (rest == half && (down & 1)) ? 1 : 0);
}

}  // namespace

TEST_CASE("ptx: conversions from floats to integers round and saturate") {
    std::mt19937_64 random(3);
    for (const bool is_double : {false, true}) {
        std::vector<uint64_t> list;
        for (int n = 0; n < 4000; n++) {  // magnitudes from below 1/2 to above 2^64, including halves
            const double x = std::ldexp(static_cast<double>(random() >> 40), static_cast<int>(random() % 70) - 26) *
                             (random() & 1 ? 1 : -1);
            const double half =
                (n % 3 == 0) ? static_cast<double>(static_cast<int64_t>(random() % 4000) - 2000) + 0.5 : x;
            list.push_back(is_double ? std::bit_cast<uint64_t>(half)
                                     : std::bit_cast<uint32_t>(static_cast<float>(half)));
            list.push_back(is_double ? random() & ~(uint64_t{1} << 62) : random() & 0xbfffffff);  // no NaN
        }
        for (const std::string type : {"u32", "s32", "u64", "s64"})
            for (const char how : {'z', 'n', 'm', 'p'}) {
                const std::string opcode = std::string("cvt.r") + how + "i." + type + (is_double ? ".f64" : ".f32");
                const auto results = run_lane_op(opcode, find_lane_op(opcode)->operands, {list});
                const int width = bits_of(type);
                const Int least = is_signed(type) ? -(Int{1} << (width - 1)) : 0,
                          most = (Int{1} << (is_signed(type) ? width - 1 : width)) - 1;
                size_t wrong = 0;
                for (size_t i = 0; i < list.size(); i++) {
                    const Int x = rounded(exact(list[i], is_double), how);
                    wrong += results[i] != low_bits(x < least ? least : x > most ? most : x, width);
                }
                CHECK_MESSAGE(wrong == 0, opcode);
            }
    }
}

TEST_CASE("ptx: conversions from integers to floats take the nearest, of two the even one") {
    std::mt19937_64 random(4);
    std::vector<uint64_t> list = samples(random, true);
    for (int n = 0; n < 4000; n++) {
        const uint64_t x = random() >> random() % 64;
        list.push_back(x);
        // Halfway between neighbours, and next to that.
        const int drop = std::max(0, 64 - std::countl_zero(x) - (n & 1 ? 24 : 53));
        if (drop > 0) list.push_back((x >> drop << drop | uint64_t{1} << (drop - 1)) + random() % 3 - 1);
    }
    for (const std::string type : {"u32", "s32", "u64", "s64"})
        for (const bool is_double : {false, true}) {
            const std::string opcode = std::string("cvt.rn.") + (is_double ? "f64." : "f32.") + type;
            const auto results = run_lane_op(opcode, find_lane_op(opcode)->operands, {list});
            size_t wrong = 0;
            for (size_t i = 0; i < list.size(); i++) {
                const Int x = value(list[i], type);
                // Distances to the result and its neighbours, in units that make all of them integers.
                const auto distance = [&](uint64_t bits) {
                    const Exact e = exact(bits, is_double);
                    const Int scaled =
                        e.exponent >= 0 ? e.mantissa * (Int{1} << (e.exponent + 1)) : e.mantissa * 2 >> -e.exponent;
                    return scaled > 2 * x ? scaled - 2 * x : 2 * x - scaled;
                };
                if (x == 0) {
                    wrong += results[i] != 0;
                    continue;
                }
                const Int here = distance(results[i]), up = distance(results[i] + 1), down = distance(results[i] - 1);
                wrong += here > up || here > down || ((here == up || here == down) && (results[i] & 1) && here != 0);
                wrong += (x < 0) != (results[i] >> (is_double ? 63 : 31) == 1);
            }
            CHECK_MESSAGE(wrong == 0, opcode);
        }
}

}  // namespace virtual_gpu::test
