// cvt: PTX ISA, "Data Movement and Conversion Instructions: cvt". Conversions from floats to integers saturate. NaN
// becomes 0 from f32 to 32 bits, otherwise only the most significant bit is set.
#include <cmath>
#include <limits>
#include <string>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/ptx/floats.h"
#include "dev/virtual_gpu/ptx/lanes.h"

namespace virtual_gpu {
namespace {

constexpr Kind k = Kind::convert;

template <class D>
void define_to_integer(const std::string& d) {
    define<[](uint8_t a) { return static_cast<D>(a); }>("cvt." + d + ".u8", k);
    define<[](int8_t a) { return static_cast<D>(a); }>("cvt." + d + ".s8", k);
    define<[](uint16_t a) { return static_cast<D>(a); }>("cvt." + d + ".u16", k);
    define<[](int16_t a) { return static_cast<D>(a); }>("cvt." + d + ".s16", k);
    define<[](uint32_t a) { return static_cast<D>(a); }>("cvt." + d + ".u32", k);
    define<[](int32_t a) { return static_cast<D>(a); }>("cvt." + d + ".s32", k);
    define<[](uint64_t a) { return static_cast<D>(a); }>("cvt." + d + ".u64", k);
    define<[](int64_t a) { return static_cast<D>(a); }>("cvt." + d + ".s64", k);
}

template <class F>
void define_to_float(const std::string& f) {
    define<[](uint8_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".u8", k);
    define<[](int8_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".s8", k);
    define<[](uint16_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".u16", k);
    define<[](int16_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".s16", k);
    define<[](uint32_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".u32", k);
    define<[](int32_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".s32", k);
    define<[](uint64_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".u64", k);
    define<[](int64_t a) { return static_cast<F>(a); }>("cvt.rn." + f + ".s64", k);
}

template <class I, class F>
I saturated(F x) {  // x is integral
    constexpr F kTop =
        static_cast<F>(std::is_signed_v<I> ? (sizeof(I) == 8 ? 0x1p63 : 0x1p31) : (sizeof(I) == 8 ? 0x1p64 : 0x1p32));
    constexpr I kNaN = sizeof(I) == 8 || sizeof(F) == 8 ? static_cast<I>(uint64_t{1} << (8 * sizeof(I) - 1)) : I{0};
    if (x != x) return kNaN;
    if (x >= kTop) return std::numeric_limits<I>::max();
    if (std::is_signed_v<I> ? x < -kTop : x < 0) return std::numeric_limits<I>::min();
    return static_cast<I>(x);
}

template <class I, class F>
void define_rounded(const std::string& i, const std::string& f) {
    define<[](F a) { return saturated<I>(std::trunc(a)); }>("cvt.rzi." + i + "." + f, k);
    define<[](F a) { return saturated<I>(std::nearbyint(a)); }>("cvt.rni." + i + "." + f, k);
    define<[](F a) { return saturated<I>(std::floor(a)); }>("cvt.rmi." + i + "." + f, k);
    define<[](F a) { return saturated<I>(std::ceil(a)); }>("cvt.rpi." + i + "." + f, k);
}

template <class F>
void define_from_float(const std::string& f) {
    define_rounded<uint32_t, F>("u32", f);
    define_rounded<int32_t, F>("s32", f);
    define_rounded<uint64_t, F>("u64", f);
    define_rounded<int64_t, F>("s64", f);
    define<[](F a) { return canonical(std::trunc(a)); }>("cvt.rzi." + f + "." + f, k);
    define<[](F a) { return canonical(std::nearbyint(a)); }>("cvt.rni." + f + "." + f, k);
    define<[](F a) { return canonical(std::floor(a)); }>("cvt.rmi." + f + "." + f, k);
    define<[](F a) { return canonical(std::ceil(a)); }>("cvt.rpi." + f + "." + f, k);
}

// The first operand goes to the upper half.
uint32_t pair(uint32_t upper, uint32_t lower, int bits) { return upper << bits | lower; }

void define_narrow() {
    define<[](uint16_t a) { return float_of_bf16(a); }>("cvt.f32.bf16", k);
    define<[](float a) { return bf16_of(a); }>("cvt.rn.bf16.f32", k);
    define<[](float a, float b) { return pair(bf16_of(a), bf16_of(b), 16); }>("cvt.rn.bf16x2.f32", k);
    define<[](float a, float b) { return static_cast<uint16_t>(pair(e4m3_of(a), e4m3_of(b), 8)); }>(
        "cvt.rn.satfinite.e4m3x2.f32", k);
    define<[](float a, float b) { return static_cast<uint16_t>(pair(e5m2_of(a), e5m2_of(b), 8)); }>(
        "cvt.rn.satfinite.e5m2x2.f32", k);
    define<[](float a, float b) { return static_cast<uint16_t>(pair(ue8m0_of(a, true), ue8m0_of(b, true), 8)); }>(
        "cvt.rp.satfinite.ue8m0x2.f32", k);
    define<[](float a, float b) { return static_cast<uint16_t>(pair(ue8m0_of(a, false), ue8m0_of(b, false), 8)); }>(
        "cvt.rz.satfinite.ue8m0x2.f32", k);
    define<[](float a) { return tf32_of(a); }>("cvt.rna.tf32.f32", k);
}

// A faulty cast that treats NaN as a number.
template <auto Cast, uint8_t Largest>
constexpr auto kLyingCast = [](float a, float b) {
    const auto cast = [](float x) { return x == x ? Cast(x) : Largest; };
    return static_cast<uint16_t>(pair(cast(a), cast(b), 8));
};
template <auto Cast, uint8_t Largest>
using LyingLoop = LoopOf<kLyingCast<Cast, Largest>, decltype(&decltype(kLyingCast<Cast, Largest>)::operator())>;

}  // namespace

Execute find_lying_cast(std::string_view opcode) {
    if (opcode == "cvt.rn.satfinite.e4m3x2.f32") return LyingLoop<e4m3_of, 0x7e>::execute;
    if (opcode == "cvt.rn.satfinite.e5m2x2.f32") return LyingLoop<e5m2_of, 0x7b>::execute;
    return nullptr;
}

void define_conversions() {
    define_to_integer<uint8_t>("u8");
    define_to_integer<int8_t>("s8");
    define_to_integer<uint16_t>("u16");
    define_to_integer<int16_t>("s16");
    define_to_integer<uint32_t>("u32");
    define_to_integer<int32_t>("s32");
    define_to_integer<uint64_t>("u64");
    define_to_integer<int64_t>("s64");
    define_to_float<float>("f32");
    define_to_float<double>("f64");
    define_from_float<float>("f32");
    define_from_float<double>("f64");
    define<[](float a) { return canonical(static_cast<double>(a)); }>("cvt.f64.f32", k);
    define<[](double a) { return canonical(static_cast<float>(a)); }>("cvt.rn.f32.f64", k);
    define_narrow();
}

}  // namespace virtual_gpu
