// FP8 codes packed four to a word, the first in the lowest byte: casts of eight values in both directions, and the
// transpose of a 4 x 4 block of codes.
#pragma once
#include <cstring>

#include "llmc/device/formats.cuh"

namespace llmc {

#if LLMC_HARDWARE_FP8
LLMC_DEVICE uint32_t cast_4(const float* x, e4m3) {
    uint32_t codes;
    asm("{ .reg .b16 low, high;\n"
        "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "  mov.b32 %0, {low, high}; }"
        : "=r"(codes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    return codes;
}
LLMC_DEVICE uint32_t cast_4(const float* x, e5m2) {
    uint32_t codes;
    asm("{ .reg .b16 low, high;\n"
        "  cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
        "  cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
        "  mov.b32 %0, {low, high}; }"
        : "=r"(codes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    return codes;
}
#endif

// Casts eight values to F8 codes, four to a word, the first in the lowest byte. `x` is already scaled.
template <class F8>
LLMC_DEVICE void cast_8(uint32_t (&codes)[2], const float (&x)[8]) {
#if LLMC_HARDWARE_FP8
    codes[0] = cast_4(x, F8{});
    codes[1] = cast_4(x + 4, F8{});
#elif LLMC_ON_GPU
    LLMC_UNROLL
    for (int w = 0; w < 2; w++) {
        codes[w] = 0;
        for (int i = 0; i < 4; i++) codes[w] |= static_cast<uint32_t>(to<F8>(x[4 * w + i]).bits) << (8 * i);
    }
#else
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = to<F8>(x[i]).bits;
    memcpy(codes, bytes, 8);
#endif
}

// Casts two words of codes back to eight floats, without scaling.
template <class F8>
LLMC_DEVICE void uncast_8(float (&x)[8], const uint32_t* codes) {
    for (int i = 0; i < 8; i++) x[i] = to_float(F8{static_cast<uint8_t>(codes[i / 4] >> (8 * (i % 4)))});
}

// Transposes a 4 x 4 block of bytes: byte i of word j becomes byte j of word i.
LLMC_DEVICE void transpose_4x4(uint32_t (&w)[4]) {
#if LLMC_ON_GPU
    const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), high01 = __byte_perm(w[0], w[1], 0x7362);
    const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140), high23 = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(low01, low23, 0x5410), w[1] = __byte_perm(low01, low23, 0x7632);
    w[2] = __byte_perm(high01, high23, 0x5410), w[3] = __byte_perm(high01, high23, 0x7632);
#else
    uint32_t columns[4];
    for (int i = 0; i < 4; i++) {
        columns[i] = (w[0] >> 8 * i & 0xffu) | (w[1] >> 8 * i & 0xffu) << 8 | (w[2] >> 8 * i & 0xffu) << 16 |
                     (w[3] >> 8 * i & 0xffu) << 24;
    }
    memcpy(w, columns, sizeof columns);
#endif
}

}  // namespace llmc
