// Number formats against their definition: a table of the values of codes, and "nearest, ties to the even code". From
// these follow the floats at which the code changes. The host converts floats on both sides of these, and a kernel
// converts every 4099th piece of 2^14; `make soak` and GPUs convert every one of the 2^32.
// build: optimized
#include "llmc/device/formats.cuh"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kSign = 0x80000000u;

double value_of(uint32_t float_pattern) { return static_cast<double>(float_from_bits(float_pattern)); }

// ---- definitions ----------------------------------------------------------------------------------------------------

// The magnitude of an IEEE-like code. Exponent 0 holds the subnormals.
double magnitude_of(uint32_t code, int mantissa_bits, int bias) {
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const int mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
    const int whole = 1 << mantissa_bits;
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(whole + mantissa, exponent - bias - mantissa_bits);
}

struct Definition {
    const char* name;
    int mantissa_bits, bias;
    uint32_t largest;  // code of the largest finite magnitude
    bool overflows;    // larger values go to the next code, infinity, instead of saturating
    uint32_t sign_bit, nan;
    std::vector<uint32_t> first;  // first[k]: the smallest non-negative float, as bits, with code k

    Definition(const char* name_, int mantissa_bits_, int bias_, uint32_t largest_, bool overflows_, uint32_t sign_bit_,
               uint32_t nan_)
        : name(name_),
          mantissa_bits(mantissa_bits_),
          bias(bias_),
          largest(largest_),
          overflows(overflows_),
          sign_bit(sign_bit_),
          nan(nan_) {
        first.push_back(0);
        const uint32_t last = overflows ? largest + 1 : largest;
        for (uint32_t code = 1; code <= last; code++)
            first.push_back(first_float((magnitude(code - 1) + magnitude(code)) / 2, code % 2 == 0));
    }
    double magnitude(uint32_t code) const { return magnitude_of(code, mantissa_bits, bias); }

    // The smallest float above the midpoint, or at it if the tie goes up to an even code.
    static uint32_t first_float(double midpoint, bool tie_goes_up) {
        uint32_t bits = float_bits(static_cast<float>(midpoint));
        const auto rounds_up = [&](uint32_t b) {
            return value_of(b) > midpoint || (tie_goes_up && value_of(b) == midpoint);
        };
        while (bits > 0 && rounds_up(bits - 1)) bits--;
        while (!rounds_up(bits)) bits++;
        return bits;
    }
    // Finds the code of one float by search.
    uint32_t code(uint32_t float_pattern) const {
        const uint32_t magnitude_bits = float_pattern & ~kSign;
        if (magnitude_bits > kInfinity) return nan;
        const auto after = std::upper_bound(first.begin(), first.end(), magnitude_bits);
        return static_cast<uint32_t>(after - first.begin() - 1) | (float_pattern & kSign ? sign_bit : 0);
    }
};

const Definition& bf16_definition() {
    static const Definition d("bf16", 7, 127, 0x7f7f, true, 0x8000, 0x7fff);
    return d;
}
const Definition& e4m3_definition() {
    static const Definition d("e4m3", 3, 7, 0x7e, false, 0x80, 0x7f);
    return d;
}
const Definition& e5m2_definition() {
    static const Definition d("e5m2", 2, 15, 0x7b, false, 0x80, 0x7f);
    return d;
}

// Counts the floats first_pattern .. first_pattern + count - 1 (all of one sign) whose code differs from
// code_at(pattern). It goes through ranges with one expected code, so that the inner loop is vectorised.
template <class CodeAt>
long wrong_codes(const Definition& d, uint32_t first_pattern, uint32_t count, CodeAt code_at) {
    const uint32_t sign = first_pattern & kSign, begin = first_pattern & ~kSign, end = begin + count;
    long wrong = 0;
    for (uint32_t at = begin; at < end;) {
        uint32_t until = end;
        const uint32_t expected = d.code(at | sign);
        if (at <= kInfinity) {
            const auto next = std::upper_bound(d.first.begin(), d.first.end(), at);
            until = std::min(until, next == d.first.end() ? kInfinity + 1 : *next);
        }
        uint32_t different = 0;
        for (uint32_t b = at; b < until; b++) different += code_at(b | sign) != expected;
        wrong += different;
        at = until;
    }
    return wrong;
}

template <class Convert>
auto code_by(Convert convert) {
    return [=](uint32_t pattern) -> uint32_t { return convert(float_from_bits(pattern)).bits; };
}

// Checks the two floats before and the two after every change of the code, and every 4093rd float.
template <class Convert>
long wrong_at_changes(const Definition& d, Convert convert) {
    long wrong = 0;
    const auto code_at = code_by(convert);
    const auto check = [&](uint32_t pattern) { wrong += code_at(pattern) != d.code(pattern); };
    for (const uint32_t sign : {0u, kSign}) {
        for (const uint32_t change : d.first)
            for (uint32_t b = std::max(change, 2u) - 2; b < change + 2; b++) check(b | sign);
        for (uint32_t b = 0; b <= ~kSign; b += 4093) check(b | sign);
    }
    return wrong;
}

template <class Convert>
long wrong_conversions(const Definition& d, Convert convert) {
    long wrong = 0;
    constexpr uint32_t kChunk = 1u << 20;
#pragma omp parallel for reduction(+ : wrong) schedule(dynamic, 8)
    for (uint32_t chunk = 0; chunk < 4096; chunk++) wrong += wrong_codes(d, chunk * kChunk, kChunk, code_by(convert));
    return wrong;
}

// Checks every code's decoded value against the table of its format.
template <class T>
int wrong_decodings(const Definition& d) {
    int wrong = 0;
    for (uint32_t code = 0; code < d.sign_bit; code++)
        for (const bool negative : {false, true}) {
            T value;
            value.bits = static_cast<decltype(value.bits)>(code | (negative ? d.sign_bit : 0));
            const float decoded = to_float(value);
            const bool infinite = code == d.largest + 1 && d.mantissa_bits != 3;  // E4M3 has no infinity
            if (code > d.largest && !infinite) {
                wrong += decoded == decoded;
                continue;
            }
            const double expected = infinite ? HUGE_VAL : d.magnitude(code);
            wrong +=
                static_cast<double>(decoded) != (negative ? -expected : expected) || std::signbit(decoded) != negative;
        }
    return wrong;
}

}  // namespace

// ---- decoding and rounding on the host ------------------------------------------------------------------------------

TEST_CASE("formats: the definitions agree with the specification's table") {
    // OCP "8-bit Floating Point Specification", table 1.
    CHECK(e4m3_definition().magnitude(0x7e) == 448);
    CHECK(e4m3_definition().magnitude(0x08) == std::ldexp(1, -6));
    CHECK(e4m3_definition().magnitude(0x07) == std::ldexp(7, -9));
    CHECK(e4m3_definition().magnitude(0x01) == std::ldexp(1, -9));
    CHECK(e5m2_definition().magnitude(0x7b) == 57344);
    CHECK(e5m2_definition().magnitude(0x04) == std::ldexp(1, -14));
    CHECK(e5m2_definition().magnitude(0x03) == std::ldexp(3, -16));
    CHECK(e5m2_definition().magnitude(0x01) == std::ldexp(1, -16));
    CHECK(bf16_definition().magnitude(0x3f80) == 1);
    CHECK(kE4M3Max == 448);
    CHECK(kE5M2Max == 57344);
}

TEST_CASE("formats: every code decodes to its value") {
    CHECK(wrong_decodings<e4m3>(e4m3_definition()) == 0);
    CHECK(wrong_decodings<e5m2>(e5m2_definition()) == 0);
    CHECK(wrong_decodings<bf16>(bf16_definition()) == 0);
    CHECK(to_float(1.5f) == 1.5f);
}

TEST_CASE("formats: floats at every change of the code, and every 4093rd, to bf16, E4M3 and E5M2") {
    CHECK(wrong_at_changes(bf16_definition(), [](float v) { return to_bf16(v); }) == 0);
    CHECK(wrong_at_changes(e4m3_definition(), [](float v) { return to_e4m3_portable(v); }) == 0);
    CHECK(wrong_at_changes(e5m2_definition(), [](float v) { return to_e5m2_portable(v); }) == 0);
}

TEST_CASE("formats: all 2^32 floats to bf16, E4M3 and E5M2" * doctest::test_suite(kSoak) * doctest::skip(kSanitized)) {
    CHECK(wrong_conversions(bf16_definition(), [](float v) { return to_bf16(v); }) == 0);
    CHECK(wrong_conversions(e4m3_definition(), [](float v) { return to_e4m3_portable(v); }) == 0);
    CHECK(wrong_conversions(e5m2_definition(), [](float v) { return to_e5m2_portable(v); }) == 0);
}

// ---- stochastic rounding --------------------------------------------------------------------------------------------

namespace {

// 65536 random words whose low 16, low 20, low 21 and high 24 bits are each evenly distributed.
constexpr uint32_t kGrid = 65536;
uint32_t grid_word(uint32_t i) { return i * 0x10001u; }

// Checks that the frequency of rounding away from zero is the dropped fraction, and that only the two neighbours occur.
template <class Convert>
bool rounds_in_proportion(const Definition& d, float value, Convert convert) {
    const double magnitude = std::fabs(static_cast<double>(value));
    const uint32_t sign = std::signbit(value) ? d.sign_bit : 0;
    const uint32_t last = d.overflows ? d.largest + 1 : d.largest;
    uint32_t below = static_cast<uint32_t>(
        std::upper_bound(d.first.begin(), d.first.end(), float_bits(value) & ~kSign) - d.first.begin() - 1);
    if (d.magnitude(below) > magnitude) below--;
    const uint32_t above = std::min(below + 1, last);
    const double step = d.magnitude(below + 1) - d.magnitude(below);
    const double up_expected = above == below ? 0 : (magnitude - d.magnitude(below)) / step * kGrid;
    long ups = 0, others = 0;
    for (uint32_t i = 0; i < kGrid; i++) {
        const uint32_t code = convert(value, grid_word(i)).bits;
        ups += code == (above | sign);
        others += code != (above | sign) && code != (below | sign);
    }
    if (above == below) ups = 0;
    return others == 0 && std::fabs(static_cast<double>(ups) - up_expected) <= 1.0;
}

// Random values of both signs with exponents from well below the format's subnormals to above its largest.
template <class Convert>
int wrong_proportions(const Definition& d, int least_exponent, int largest_exponent, uint32_t seed, Convert convert) {
    std::mt19937 engine(seed);
    int wrong = 0;
    for (int i = 0; i < (kSanitized ? 8 : 1000); i++) {
        const int range = largest_exponent - least_exponent + 1;
        const int exponent = least_exponent + static_cast<int>(engine() % static_cast<uint32_t>(range));
        const uint32_t bits = (engine() & 0x807fffffu) | static_cast<uint32_t>(exponent + 127) << 23;
        wrong += !rounds_in_proportion(d, float_from_bits(bits), convert);
    }
    for (uint32_t code = 1; code <= d.largest; code += d.largest > 1000 ? 331 : 3)  // exact values never change
        wrong += !rounds_in_proportion(d, static_cast<float>(d.magnitude(code)), convert);
    return wrong;
}

}  // namespace

namespace {

e4m3 dithered_e4m3(float value, uint32_t random) { return to_e4m3_portable(dither<E4M3Format>(value, random)); }
e5m2 dithered_e5m2(float value, uint32_t random) { return to_e5m2_portable(dither<E5M2Format>(value, random)); }

}  // namespace

TEST_CASE("formats: stochastic rounding goes up with the probability of the dropped fraction") {
    CHECK(wrong_proportions(e4m3_definition(), -12, 10, 1, to_e4m3_stochastic) == 0);
    CHECK(wrong_proportions(bf16_definition(), -120, 127, 3, to_bf16_stochastic) == 0);
    CHECK(wrong_proportions(e4m3_definition(), -6, 10, 4, dithered_e4m3) == 0);  // subnormals are not in proportion
    CHECK(wrong_proportions(e5m2_definition(), -14, 17, 5, dithered_e5m2) == 0);
}

TEST_CASE_TEMPLATE("formats: dither() leaves a multiple of the last kept bit, at every exponent", Format, E4M3Format,
                   E5M2Format) {
    std::mt19937 engine(6);
    int wrong = 0;
    for (int exponent = 0; exponent < 255; exponent++)
        for (int i = 0; i < 100; i++) {
            const uint32_t random = i % 10 == 0 ? ~0u : engine();
            const uint32_t mantissa = i % 7 == 0 ? 0x7fffff : engine() & 0x7fffff;
            const float value = float_from_bits((engine() & kSign) | static_cast<uint32_t>(exponent) << 23 | mantissa);
            const double unit = std::ldexp(1.0, std::max(exponent, 1) - 127 - Format::mantissa_bits);
            const double fraction = std::ldexp(random % (1u << Format::dropped_bits), -Format::dropped_bits);
            double units = std::floor(std::fabs(double{value}) / unit + fraction);
            if (exponent == 254 && units == 2 << Format::mantissa_bits) units = HUGE_VAL;
            wrong += double{dither<Format>(value, random)} != std::copysign(units * unit, double{value});
        }
    CHECK(wrong == 0);
}

TEST_CASE("formats: stochastic rounding saturates, and keeps zeros, infinities and NaN") {
    for (const uint32_t random : {0u, 1u, 0x12345678u, 0x7fffffffu, 0xffffffffu}) {
        for (const float value : {448.0f, 449.0f, 479.9f, 1e9f, 3.4e38f, INFINITY}) {
            CHECK(to_e4m3_stochastic(value, random).bits == 0x7e);
            CHECK(to_e4m3_stochastic(-value, random).bits == 0xfe);
        }
        for (const float value : {57344.0f, 61440.0f, 1e9f, 3.4028235e38f, INFINITY}) {
            CHECK(dithered_e4m3(value, random).bits == 0x7e);
            CHECK(dithered_e5m2(value, random).bits == 0x7b);
            CHECK(dithered_e5m2(-value, random).bits == 0xfb);
        }
        for (const uint32_t special : {0u, 0x7f800000u, 0x7f800001u, 0x7fffffffu})
            for (const uint32_t sign : {0u, kSign}) {
                CHECK(float_bits(dither<E4M3Format>(float_from_bits(special | sign), random)) == (special | sign));
                CHECK(float_bits(dither<E5M2Format>(float_from_bits(special | sign), random)) == (special | sign));
            }
        CHECK(to_bf16_stochastic(INFINITY, random).bits == 0x7f80);
        CHECK(to_bf16_stochastic(-INFINITY, random).bits == 0xff80);
        for (const float nan : {NAN, -NAN, float_from_bits(0x7f800001u)}) {
            CHECK(to_e4m3_stochastic(nan, random).bits == 0x7f);
            CHECK(to_bf16_stochastic(nan, random).bits == 0x7fff);
        }
        CHECK(to_e4m3_stochastic(-0.0f, random).bits == 0x80);
        CHECK(to_bf16_stochastic(-0.0f, random).bits == 0x8000);
    }
}

// ---- the device's conversions ---------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kFloatsPerThread = 16;

__global__ void convert_kernel(bf16* to_16, e4m3* to_4, e5m2* to_5, uint32_t first_pattern) {
    const uint32_t begin = (blockIdx.x * blockDim.x + threadIdx.x) * kFloatsPerThread;
    for (uint32_t i = begin; i < begin + kFloatsPerThread; i++) {
        const float value = float_from_bits(first_pattern + i);
        to_16[i] = to_bf16(value);
        to_4[i] = to_e4m3(value);
        to_5[i] = to_e5m2(value);
    }
}

LLMC_HD uint32_t random_word(int i) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(i) * kGolden64)); }

__global__ void convert_stochastic_kernel(uint32_t* out, const float* values, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    const uint32_t random = random_word(i);
    out[i] = to_bf16_stochastic(values[i], random).bits |
             static_cast<uint32_t>(to_e4m3_stochastic(values[i], random).bits) << 16 |
             static_cast<uint32_t>(to_e5m2(dither<E5M2Format>(values[i], random)).bits) << 24;
}

__global__ void decode_kernel(float* out) {  // all codes of E4M3, then of E5M2; then pack and unpack
    const uint32_t code = threadIdx.x;
    out[code] = to_float(e4m3{static_cast<uint8_t>(code)});
    out[256 + code] = to_float(e5m2{static_cast<uint8_t>(code)});
    const uint32_t packed = pack_bf16x2(out[code], 1.0f + static_cast<float>(code));
    out[512 + code] = bf16x2_low(packed);
    out[768 + code] = bf16x2_high(packed);
}

template <class T>
struct Codes {
    DeviceArray<T> device;
    T* host;
    explicit Codes(size_t n) : device(n), host(static_cast<T*>(pinned_malloc(n * sizeof(T)))) {}
    ~Codes() { pinned_free(host); }
    void fetch() { copy_to_host(host, device.get(), device.size() * sizeof(T), test_stream()); }
};

}  // namespace

// On a GPU all 2^32 floats; on the host device, whose kernel runs the functions tested above, only some.
TEST_CASE("formats: a kernel's conversions of floats to bf16, E4M3 and E5M2") {
    constexpr uint32_t kChunk = LLMC_ON_GPU ? 1u << 24 : 1u << 14;
    constexpr uint32_t kStep = LLMC_ON_GPU ? 1 : kSanitized ? 32771 : 4099;  // stride of the chunks
    Codes<bf16> to_16(kChunk);
    Codes<e4m3> to_4(kChunk);
    Codes<e5m2> to_5(kChunk);
    long wrong[3] = {};
    for (uint64_t chunk = 0; chunk * kChunk < uint64_t{1} << 32; chunk += kStep) {
        const uint32_t first = static_cast<uint32_t>(chunk * kChunk);
        launch<convert_kernel>({kChunk / kFloatsPerThread / 256, 256, 0, test_stream()}, out(to_16.device),
                               out(to_4.device), out(to_5.device), first);
        to_16.fetch();
        to_4.fetch();
        to_5.fetch();
        synchronize(test_stream());
        constexpr uint32_t kPart = kChunk / 64;
        long w16 = 0, w4 = 0, w5 = 0;
#pragma omp parallel for reduction(+ : w16, w4, w5)
        for (uint32_t part = 0; part < 64; part++) {
            const uint32_t begin = first + part * kPart;
            w16 += wrong_codes(bf16_definition(), begin, kPart,
                               [&](uint32_t b) -> uint32_t { return to_16.host[b - first].bits; });
            w4 += wrong_codes(e4m3_definition(), begin, kPart,
                              [&](uint32_t b) -> uint32_t { return to_4.host[b - first].bits; });
            w5 += wrong_codes(e5m2_definition(), begin, kPart,
                              [&](uint32_t b) -> uint32_t { return to_5.host[b - first].bits; });
        }
        wrong[0] += w16;
        wrong[1] += w4;
        wrong[2] += w5;
    }
    CHECK(wrong[0] == 0);
    CHECK(wrong[1] == 0);
    CHECK(wrong[2] == 0);
}

TEST_CASE("formats: a kernel's stochastic conversions and decodings equal the host's") {
    constexpr int n = kSanitized ? 2048 : 65536;
    std::mt19937 engine(5);
    std::vector<float> values(n);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = i % 4 == 0 ? float_from_bits(static_cast<uint32_t>(engine()))
                               : std::ldexp(1.0f + static_cast<float>(engine() % 9973) / 9973,
                                            static_cast<int>(engine() % 40) - 22);
    DeviceArray<float> input(values);
    DeviceArray<uint32_t> output(n);
    launch<convert_stochastic_kernel>({static_cast<unsigned>(n / 256), 256, 0, test_stream()}, out(output), in(input),
                                      n);
    const std::vector<uint32_t> actual = output.download();
    int wrong = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const uint32_t random = random_word(static_cast<int>(i));
        wrong += (actual[i] & 0xffff) != to_bf16_stochastic(values[i], random).bits;
        wrong += (actual[i] >> 16 & 0xff) != to_e4m3_stochastic(values[i], random).bits;
        wrong += actual[i] >> 24 != dithered_e5m2(values[i], random).bits;
    }
    CHECK(wrong == 0);

    DeviceArray<float> decoded(1024);
    launch<decode_kernel>({1, 256, 0, test_stream()}, inout(decoded));
    const std::vector<float> floats = decoded.download();
    for (uint32_t code = 0; code < 256; code++) {
        const float four = to_float(e4m3{static_cast<uint8_t>(code)}),
                    five = to_float(e5m2{static_cast<uint8_t>(code)});
        wrong += float_bits(floats[code]) != float_bits(four);
        wrong += float_bits(floats[256 + code]) != float_bits(five);
        wrong += float_bits(floats[512 + code]) != (four == four ? float_bits(four) : 0x7fff0000u);
        wrong += floats[768 + code] != 1.0f + static_cast<float>(code);
    }
    CHECK(wrong == 0);
}
