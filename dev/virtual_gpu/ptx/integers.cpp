// Integers, bits, predicates and addresses: PTX ISA, "Integer Arithmetic Instructions", "Logic and Shift Instructions",
// "Comparison and Selection Instructions".
#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "dev/virtual_gpu/ptx/lanes.h"

namespace virtual_gpu {
namespace {

template <class T>
void define_comparisons(const std::string& t) {
    define<[](T a, T b) { return a == b; }>("setp.eq." + t, Kind::integer);
    define<[](T a, T b) { return a != b; }>("setp.ne." + t, Kind::integer);
    define<[](T a, T b) { return a < b; }>("setp.lt." + t, Kind::integer);
    define<[](T a, T b) { return a <= b; }>("setp.le." + t, Kind::integer);
    define<[](T a, T b) { return b < a; }>("setp.gt." + t, Kind::integer);
    define<[](T a, T b) { return b <= a; }>("setp.ge." + t, Kind::integer);
}

// Sums and products wrap around. They are computed in U, the unsigned type, or in 64 bits.
template <class T>
void define_arithmetic(const std::string& t) {
    using U = std::make_unsigned_t<T>;
    using Wide = uint64_t;
    define<[](T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }>("add." + t, Kind::integer);
    define<[](T a, T b) { return static_cast<T>(static_cast<U>(a) - static_cast<U>(b)); }>("sub." + t, Kind::integer);
    define<[](T a, T b) { return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b)); }>("mul.lo." + t,
                                                                                                 Kind::integer);
    define<[](T a, T b, T c) {
        return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) + static_cast<Wide>(c));
    }>("mad.lo." + t, Kind::integer);
    define<[](T a, T b) { return a < b ? a : b; }>("min." + t, Kind::integer);
    define<[](T a, T b) { return a < b ? b : a; }>("max." + t, Kind::integer);
    define<[](T a, T b, bool first) { return choose(a, b, first); }>("selp." + t, Kind::move);
    define<[](T a) { return a; }>("mov." + t, Kind::move);
    define_comparisons<T>(t);
    if constexpr (std::is_signed_v<T>) {
        define<[](T a) { return static_cast<T>(U{0} - static_cast<U>(a)); }>("neg." + t, Kind::integer);
        define<[](T a) { return a < 0 ? static_cast<T>(U{0} - static_cast<U>(a)) : a; }>("abs." + t, Kind::integer);
    }
}

// Shifts by more than the width count as shifts by the width.
template <class U>
void define_bits(const std::string& t) {
    constexpr uint32_t kBits = sizeof(U) * 8;
    define<[](U a, U b) { return static_cast<U>(a & b); }>("and." + t, Kind::integer);
    define<[](U a, U b) { return static_cast<U>(a | b); }>("or." + t, Kind::integer);
    define<[](U a, U b) { return static_cast<U>(a ^ b); }>("xor." + t, Kind::integer);
    define<[](U a) { return static_cast<U>(~a); }>("not." + t, Kind::integer);
    define<[](U a, uint32_t b) { return b < kBits ? static_cast<U>(a << (b % kBits)) : U{0}; }>("shl." + t,
                                                                                                Kind::integer);
    define<[](U a, U b, bool first) { return choose(a, b, first); }>("selp." + t, Kind::move);
    define<[](U a) { return a; }>("mov." + t, Kind::move);
    define<[](U a, U b) { return a == b; }>("setp.eq." + t, Kind::integer);
    define<[](U a, U b) { return a != b; }>("setp.ne." + t, Kind::integer);
}

template <class T>
void define_right_shift(const std::string& opcode) {
    constexpr uint32_t kBits = sizeof(T) * 8;
    define<[](T a, uint32_t b) {
        if constexpr (std::is_signed_v<T>)
            return static_cast<T>((a >> (b < kBits ? b : kBits - 1)));
        else
            return static_cast<T>((b < kBits ? a >> (b % kBits) : T{0}));
    }>(opcode, Kind::integer);
}

// Division by zero has no defined result; here all bits are ones.
template <class T>
void define_division(const std::string& t) {
    constexpr T kLeast = std::numeric_limits<T>::min();
    define<[](T a, T b) {
        if (b == 0) return static_cast<T>(-1);
        if constexpr (std::is_signed_v<T>)
            if (a == kLeast && b == -1) return kLeast;
        return static_cast<T>(a / b);
    }>("div." + t, Kind::integer);
    define<[](T a, T b) {
        if (b == 0) return a;
        if constexpr (std::is_signed_v<T>)
            if (b == -1) return T{0};
        return static_cast<T>(a % b);
    }>("rem." + t, Kind::integer);
}

template <class T, class Wide>
void define_high_products(const std::string& t) {
    define<[](T a, T b) { return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b) >> (sizeof(T) * 8))); }>(
        "mul.hi." + t, Kind::integer);
    if constexpr (sizeof(Wide) <= 8) {
        using UWide = std::make_unsigned_t<Wide>;
        define<[](T a, T b) { return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b)); }>("mul.wide." + t,
                                                                                                        Kind::integer);
        define<[](T a, T b, Wide c) {
            return static_cast<Wide>(static_cast<UWide>(static_cast<Wide>(a) * static_cast<Wide>(b)) +
                                     static_cast<UWide>(c));
        }>("mad.wide." + t, Kind::integer);
    }
}

// prmt: each of the result's four bytes is one of the eight bytes of a and b, or its sign. Branch-free, so that it
// vectorises.
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = selector >> (4 * i);
        const uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (s & 7))) & 0xff;
        const uint32_t only_sign = 0 - (s >> 3 & 1), sign = (0 - (byte >> 7)) & 0xff;
        result |= ((byte & ~only_sign) | (sign & only_sign)) << (8 * i);
    }
    return result;
}

uint32_t ones(uint32_t count) { return count > 31 ? ~0u : (1u << count) - 1; }

// bfi: the lowest bits of a replace those of b from position `at` on. Wide: an integer of twice the size.
template <class T, class Wide>
void define_insertion(const std::string& opcode) {
    define<[](T a, T b, uint32_t at, uint32_t length) {
        constexpr uint32_t kBits = 8 * sizeof(T);
        at = std::min(at & 255, kBits), length = std::min(length & 255, kBits);
        const Wide field = ((Wide{1} << length) - 1) << at;
        return static_cast<T>((b & ~field) | (Wide{a} << at & field));
    }>(opcode, Kind::integer);
}

void define_words() {
    define_insertion<uint32_t, uint64_t>("bfi.b32");
    define_insertion<uint64_t, unsigned __int128>("bfi.b64");
    define<[](uint32_t a, uint32_t at, uint32_t length) {
        return (at & 255) < 32 ? (a >> (at & 31)) & ones(length & 255) : 0u;
    }>("bfe.u32", Kind::integer);
    define<[](uint32_t a, uint32_t b, uint32_t selector) { return permute(a, b, selector); }>("prmt.b32",
                                                                                              Kind::integer);
    define<[](uint32_t a, uint32_t b, uint32_t by) {
        return static_cast<uint32_t>(((static_cast<uint64_t>(b) << 32 | a) << (by & 31)) >> 32);
    }>("shf.l.wrap.b32", Kind::integer);
    define<[](uint32_t a, uint32_t b, uint32_t by) {
        return static_cast<uint32_t>((static_cast<uint64_t>(b) << 32 | a) >> (by & 31));
    }>("shf.r.wrap.b32", Kind::integer);
    define<[](uint32_t a) { return static_cast<uint32_t>(std::popcount(a)); }>("popc.b32", Kind::integer);
    define<[](uint32_t a) { return static_cast<uint32_t>(std::countl_zero(a)); }>("clz.b32", Kind::integer);
    define<[](uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
        uint32_t result = 0;
        for (uint32_t n = 0; n < 8; n++)
            if ((table >> n & 1) != 0) result |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
        return result;
    }>("lop3.b32", Kind::integer);
}

void define_predicates() {
    define<[](bool a, bool b) { return a && b; }>("and.pred", Kind::integer);
    define<[](bool a, bool b) { return a || b; }>("or.pred", Kind::integer);
    define<[](bool a, bool b) { return a != b; }>("xor.pred", Kind::integer);
    define<[](bool a) { return !a; }>("not.pred", Kind::integer);
    define<[](bool a) { return a; }>("mov.pred", Kind::move);
}

void define_addresses() {
    define<[](uint64_t a) { return a; }>("cvta.to.global.u64", Kind::move);
    define<[](uint64_t a) { return a; }>("cvta.global.u64", Kind::move);
    define<[](uint64_t a) { return a - kSharedWindow; }>("cvta.to.shared.u64", Kind::move);
    define<[](uint64_t a) { return a + kSharedWindow; }>("cvta.shared.u64", Kind::move);
}

}  // namespace

void define_integers() {
    define_arithmetic<uint16_t>("u16");
    define_arithmetic<int16_t>("s16");
    define_arithmetic<uint32_t>("u32");
    define_arithmetic<int32_t>("s32");
    define_arithmetic<uint64_t>("u64");
    define_arithmetic<int64_t>("s64");
    define_bits<uint16_t>("b16");
    define_bits<uint32_t>("b32");
    define_bits<uint64_t>("b64");
    define_right_shift<uint16_t>("shr.u16");
    define_right_shift<uint16_t>("shr.b16");
    define_right_shift<int16_t>("shr.s16");
    define_right_shift<uint32_t>("shr.u32");
    define_right_shift<uint32_t>("shr.b32");
    define_right_shift<int32_t>("shr.s32");
    define_right_shift<uint64_t>("shr.u64");
    define_right_shift<uint64_t>("shr.b64");
    define_right_shift<int64_t>("shr.s64");
    define_division<uint16_t>("u16");
    define_division<int16_t>("s16");
    define_division<uint32_t>("u32");
    define_division<int32_t>("s32");
    define_division<uint64_t>("u64");
    define_division<int64_t>("s64");
    define_high_products<uint16_t, uint32_t>("u16");
    define_high_products<int16_t, int32_t>("s16");
    define_high_products<uint32_t, uint64_t>("u32");
    define_high_products<int32_t, int64_t>("s32");
    define_high_products<uint64_t, unsigned __int128>("u64");
    define_high_products<int64_t, __int128>("s64");
    define_words();
    define_predicates();
    define_addresses();
}

}  // namespace virtual_gpu
