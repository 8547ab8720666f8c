// Floating point: PTX ISA, "Floating Point Instructions". Rounding follows IEEE; NaN is 0x7fffffff. min and max prefer
// numbers over NaN, except with .NaN. Approximate instructions return the nearest float, where a GPU may be off by a
// few units in the last place. With VIRTUAL_GPU_APPROXIMATE=1 they are off by as much as the PTX ISA allows.
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/floats.h"
#include "dev/virtual_gpu/ptx/lanes.h"

namespace virtual_gpu {
namespace {

bool is_approximate = false;

// Changes x by up to `ulp` units in the last place in either direction, depending on a hash of its bits. 1 stays 1, as
// on a GPU when a power of two is raised or divided by one.
inline float approximate(float x, uint32_t ulp) {
    const uint32_t b = std::bit_cast<uint32_t>(x);
    const bool ordinary = (b & 0x7f800000u) != 0x7f800000u && (b & 0x7fffffffu) >= 0x00800010u && x != 1.0f;
    if (!is_approximate || !ordinary) return x;
    return std::bit_cast<float>(b + (b * 0x9E3779B1u >> 16) % (2 * ulp + 1) - ulp);
}

// 2^x: a polynomial in double, rounded once. Written out, so that the loop over the lanes is vectorised.
inline float exp2_nearest(float x) {
    constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer, which is then in the low bits
    double d = x;
    d = d < -300.0 ? -300.0 : d;
    d = d > 300.0 ? 300.0 : d;
    const double shifted = d + kShift;
    const double f = (d - (shifted - kShift)) * 0.69314718055994530942;
    double p = 1.0 / 39916800;  // 1/11!
    p = p * f + 1.0 / 3628800;
    p = p * f + 1.0 / 362880;
    p = p * f + 1.0 / 40320;
    p = p * f + 1.0 / 5040;
    p = p * f + 1.0 / 720;
    p = p * f + 1.0 / 120;
    p = p * f + 1.0 / 24;
    p = p * f + 1.0 / 6;
    p = p * f + 0.5;
    p = p * f + 1.0;
    p = p * f + 1.0;
    const uint64_t exponent = std::bit_cast<uint64_t>(shifted) << 52;
    return canonical(static_cast<float>(x == x ? std::bit_cast<double>(std::bit_cast<uint64_t>(p) + exponent) : d + x));
}

// a / b as a times an approximate reciprocal, which is 0 for 2^126 < |b| < 2^128 ("Floating Point Instructions: div").
inline float divide_approximately(float a, float b) {
    const float magnitude = std::fabs(b);
    const float zero = std::bit_cast<float>((std::bit_cast<uint32_t>(a) ^ std::bit_cast<uint32_t>(b)) & 0x80000000u);
    const float far = std::fabs(a) == INFINITY ? NAN : zero;
    const float quotient = a / b;
    return canonical(magnitude > 0x1p126f && magnitude < INFINITY ? (a == a ? far : a) : quotient);
}

template <class F>
inline F maximum(F a, F b) {
    return canonical(b < a ? a : a < b ? b : (a == b ? (std::signbit(a) ? b : a) : (a != a ? b : a)));
}
template <class F>
inline F minimum(F a, F b) {
    return canonical(a < b ? a : b < a ? b : (a == b ? (std::signbit(a) ? a : b) : (a != a ? b : a)));
}

// If an operand is NaN, ordered comparisons are false and those ending in u are true.
template <class F>
void define_float_comparisons(const std::string& t, Kind k) {
    define<[](F a, F b) { return a == b; }>("setp.eq." + t, k);
    define<[](F a, F b) { return a < b || b < a; }>("setp.ne." + t, k);
    define<[](F a, F b) { return a < b; }>("setp.lt." + t, k);
    define<[](F a, F b) { return a <= b; }>("setp.le." + t, k);
    define<[](F a, F b) { return b < a; }>("setp.gt." + t, k);
    define<[](F a, F b) { return b <= a; }>("setp.ge." + t, k);
    define<[](F a, F b) { return !(a < b || b < a); }>("setp.equ." + t, k);
    define<[](F a, F b) { return a != b; }>("setp.neu." + t, k);
    define<[](F a, F b) { return !(b <= a); }>("setp.ltu." + t, k);
    define<[](F a, F b) { return !(b < a); }>("setp.leu." + t, k);
    define<[](F a, F b) { return !(a <= b); }>("setp.gtu." + t, k);
    define<[](F a, F b) { return !(a < b); }>("setp.geu." + t, k);
    define<[](F a, F b) { return a == a && b == b; }>("setp.num." + t, k);
    define<[](F a, F b) { return a != a || b != b; }>("setp.nan." + t, k);
}

template <class F>
void define_arithmetic(const std::string& t, Kind k) {
    for (const char* rounding : {"", "rn."}) {
        define<[](F a, F b) { return canonical(a + b); }>(std::string("add.") + rounding + t, k);
        define<[](F a, F b) { return canonical(a - b); }>(std::string("sub.") + rounding + t, k);
        define<[](F a, F b) { return canonical(a * b); }>(std::string("mul.") + rounding + t, k);
    }
    define<[](F a, F b, F c) { return canonical(std::fma(a, b, c)); }>("fma.rn." + t, k);
    define<[](F a, F b) { return canonical(a / b); }>("div.rn." + t, k);
    define<[](F a) { return canonical(F{1} / a); }>("rcp.rn." + t, k);
    define<[](F a) { return canonical(std::sqrt(a)); }>("sqrt.rn." + t, k);
    define<[](F a, F b) { return maximum(a, b); }>("max." + t, k);
    define<[](F a, F b) { return minimum(a, b); }>("min." + t, k);
    define<[](F a) { return -a; }>("neg." + t, k);
    define<[](F a) { return std::fabs(a); }>("abs." + t, k);
    define<[](F a, F b) { return std::copysign(b, a); }>("copysign." + t, k);
    define<[](F a, F b, bool first) { return choose(a, b, first); }>("selp." + t, Kind::move);
    define<[](F a) { return a; }>("mov." + t, Kind::move);
    define_float_comparisons<F>(t, k);
}

// The errors that the PTX ISA allows: ex2 and rsqrt 2 ulp, div.approx and div.full 2 ulp, rcp 1 ulp.
void define_approximations() {
    constexpr Kind k = Kind::special;
    define<[](float a) { return approximate(exp2_nearest(a), 2); }>("ex2.approx.f32", k);
    define<[](float a) { return approximate(flush(exp2_nearest(flush(a))), 2); }>("ex2.approx.ftz.f32", k);
    define<[](float a) { return canonical(static_cast<float>(std::log2(static_cast<double>(a)))); }>("lg2.approx.f32",
                                                                                                     k);
    define<[](float a) { return canonical(static_cast<float>(std::log2(static_cast<double>(flush(a))))); }>(
        "lg2.approx.ftz.f32", k);
    define<[](float a) {
        return approximate(canonical(static_cast<float>(1.0 / std::sqrt(static_cast<double>(a)))), 2);
    }>("rsqrt.approx.f32", k);
    define<[](float a) {
        return approximate(canonical(static_cast<float>(1.0 / std::sqrt(static_cast<double>(flush(a))))), 2);
    }>("rsqrt.approx.ftz.f32", k);
    define<[](float a) { return approximate(canonical(std::sqrt(a)), 1); }>("sqrt.approx.f32", k);
    define<[](float a) { return approximate(canonical(1.0f / a), 1); }>("rcp.approx.f32", k);
    define<[](float a) { return approximate(flush(canonical(1.0f / flush(a))), 1); }>("rcp.approx.ftz.f32", k);
    define<[](float a, float b) { return approximate(divide_approximately(a, b), 2); }>("div.approx.f32", k);
    define<[](float a, float b) { return approximate(canonical(a / b), 2); }>("div.full.f32", k);
    define<[](float a) { return canonical(static_cast<float>(std::sin(static_cast<double>(a)))); }>("sin.approx.f32",
                                                                                                    k);
    define<[](float a) { return canonical(static_cast<float>(std::cos(static_cast<double>(a)))); }>("cos.approx.f32",
                                                                                                    k);
    define<[](float a) { return canonical(static_cast<float>(std::tanh(static_cast<double>(a)))); }>("tanh.approx.f32",
                                                                                                     k);
}

}  // namespace

void define_floats() {
    is_approximate = options().approximate;
    define_arithmetic<float>("f32", Kind::float32);
    define_arithmetic<double>("f64", Kind::float64);
    define<[](float a) { return std::bit_cast<float>(std::bit_cast<uint32_t>(a) ^ 0x80000000u); }>("neg.f32",
                                                                                                   Kind::float32);
    define<[](float a, float b) { return a == a && b == b ? maximum(a, b) : canonical(a + b); }>("max.NaN.f32",
                                                                                                 Kind::float32);
    define<[](float a, float b) { return a == a && b == b ? minimum(a, b) : canonical(a + b); }>("min.NaN.f32",
                                                                                                 Kind::float32);
    define_approximations();
}

}  // namespace virtual_gpu
