// Loads and stores of eight values (16 bytes of bf16, or twice 16 bytes of float) and of four floats.
//
// If each lane of a warp owns eight neighbouring floats, each of its two requests covers every other 16 bytes. That
// touches 32 sectors instead of 16, and hits every bank of shared memory twice. So where lanes may own any elements,
// they take four floats (load4, store4) and then four more 512 bytes further. In shared memory the eight floats of a
// thread lie in two planes (Eights).
//
// On the host the same functions are plain copies, which g++ turns into one vector move. Loading 16-byte pieces and
// reading them back as 32 bytes would stall on store forwarding and make AdamW three times slower.
#pragma once
#include <cstring>

#include "llmc/device/formats.cuh"

namespace llmc {

struct alignas(16) Bytes16 {
    uint32_t word[4];
};

#if !LLMC_ON_GPU
namespace host {
[[noreturn]] void misaligned_access(const void* address, int alignment);  // reports the GPU thread
}
#endif

// A GPU faults on a misaligned vector access; the host device reports it in every build.
LLMC_HD void check_aligned16([[maybe_unused]] const void* p) {
#if !LLMC_ON_GPU
    if (__builtin_expect((reinterpret_cast<uintptr_t>(p) & 15) != 0, 0)) host::misaligned_access(p, 16);
#endif
}

// Untyped bytes: sixteen at a multiple of 16, and one word at a multiple of 4.
LLMC_HD Bytes16 load16(const void* p) {
    check_aligned16(p);
#if LLMC_ON_GPU
    return *static_cast<const Bytes16*>(p);
#else
    Bytes16 bytes;
    memcpy(&bytes, p, 16);
    return bytes;
#endif
}
LLMC_HD void store16(void* p, const Bytes16& bytes) {
    check_aligned16(p);
#if LLMC_ON_GPU
    *static_cast<Bytes16*>(p) = bytes;
#else
    memcpy(p, &bytes, 16);
#endif
}
LLMC_HD uint32_t load_word(const void* p) {
#if LLMC_ON_GPU
    return *static_cast<const uint32_t*>(p);
#else
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
#endif
}
LLMC_HD void store_word(void* p, uint32_t word) {
#if LLMC_ON_GPU
    *static_cast<uint32_t*>(p) = word;
#else
    memcpy(p, &word, 4);
#endif
}

// Floats and bf16. p must be 16-byte aligned, here and below.
LLMC_HD void load8(const bf16* p, float (&out)[8]) {
#if LLMC_ON_GPU
    const Bytes16 raw = *reinterpret_cast<const Bytes16*>(p);
    for (int i = 0; i < 4; i++) {
        out[2 * i] = bf16x2_low(raw.word[i]);
        out[2 * i + 1] = bf16x2_high(raw.word[i]);
    }
#else
    check_aligned16(p);
    uint16_t half[8];
    memcpy(half, p, 16);
    for (int i = 0; i < 8; i++) out[i] = float_from_bits(static_cast<uint32_t>(half[i]) << 16);
#endif
}

LLMC_HD void store8(bf16* p, const float (&in)[8]) {
#if LLMC_ON_GPU
    Bytes16 raw;
    for (int i = 0; i < 4; i++) raw.word[i] = pack_bf16x2(in[2 * i], in[2 * i + 1]);
    *reinterpret_cast<Bytes16*>(p) = raw;
#else
    check_aligned16(p);
    uint16_t half[8];
    for (int i = 0; i < 8; i++) half[i] = to_bf16(in[i]).bits;
    memcpy(p, half, 16);
#endif
}

LLMC_HD void load4(const float* p, float* out) {
#if LLMC_ON_GPU
    const float4 a = *reinterpret_cast<const float4*>(p);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
#else
    check_aligned16(p);
    memcpy(out, p, 16);
#endif
}

LLMC_HD void store4(float* p, const float* in) {
#if LLMC_ON_GPU
    *reinterpret_cast<float4*>(p) = make_float4(in[0], in[1], in[2], in[3]);
#else
    check_aligned16(p);
    memcpy(p, in, 16);
#endif
}

// Four bf16. p must be 8-byte aligned.
LLMC_HD void load4(const bf16* p, float* out) {
#if LLMC_ON_GPU
    const uint2 raw = *reinterpret_cast<const uint2*>(p);
    out[0] = bf16x2_low(raw.x), out[1] = bf16x2_high(raw.x);
    out[2] = bf16x2_low(raw.y), out[3] = bf16x2_high(raw.y);
#else
    uint16_t half[4];
    memcpy(half, p, 8);
    for (int i = 0; i < 4; i++) out[i] = float_from_bits(static_cast<uint32_t>(half[i]) << 16);
#endif
}

LLMC_HD void store4(bf16* p, const float* in) {
#if LLMC_ON_GPU
    *reinterpret_cast<uint2*>(p) = make_uint2(pack_bf16x2(in[0], in[1]), pack_bf16x2(in[2], in[3]));
#else
    uint16_t half[4];
    for (int i = 0; i < 4; i++) half[i] = to_bf16(in[i]).bits;
    memcpy(p, half, 8);
#endif
}

LLMC_HD void load8(const float* p, float (&out)[8]) {
#if LLMC_ON_GPU
    load4(p, out);
    load4(p + 4, out + 4);
#else
    check_aligned16(p);
    memcpy(out, p, 32);
#endif
}

LLMC_HD void store8(float* p, const float (&in)[8]) {
#if LLMC_ON_GPU
    store4(p, in);
    store4(p + 4, in + 4);
#else
    check_aligned16(p);
    memcpy(p, in, 32);
#endif
}

// Eight values between their load and their use. On the GPU they stay as they are in memory, so bf16 in flight takes
// half the registers.
template <class Real>
struct Packed8 {
#if LLMC_ON_GPU
    static constexpr int kPieces = static_cast<int>(sizeof(Real)) / 2;  // loads of 16 bytes
    Bytes16 raw[kPieces];
    LLMC_DEVICE void load(const Real* p) {
        LLMC_UNROLL
        for (int i = 0; i < kPieces; i++) raw[i] = load16(p + i * (8 / kPieces));
    }
    LLMC_DEVICE void get(float (&x)[8]) const {
        for (int i = 0; i < 8; i++) {
            if constexpr (kPieces == 1)
                x[i] = i % 2 ? bf16x2_high(raw[0].word[i / 2]) : bf16x2_low(raw[0].word[i / 2]);
            else
                x[i] = float_from_bits(raw[i / 4].word[i % 4]);
        }
    }
#else
    float values[8];
    void load(const Real* p) { load8(p, values); }
    void get(float (&x)[8]) const { memcpy(x, values, sizeof values); }
#endif
};
struct Bf16x16 {
    Packed8<bf16> half[2];
    LLMC_DEVICE void load(const bf16* p) {
        half[0].load(p);
        half[1].load(p + 8);
    }
    LLMC_DEVICE void get(float (&x)[2][8]) const {
        half[0].get(x[0]);
        half[1].get(x[1]);
    }
};

// A lane's two groups of four among its warp's 256 elements. `p` points to the first; the second is 128 elements
// further.
constexpr int kFoursApart = 128;
template <class T>
LLMC_HD void load_fours(const T* p, float (&out)[8]) {
    load4(p, out);
    load4(p + kFoursApart, out + 4);
}
template <class T>
LLMC_HD void store_fours(T* p, const float (&in)[8]) {
    store4(p, in);
    store4(p + kFoursApart, in + 4);
}
// The index of thread t's first element in a block. Each warp's elements start 256 after the previous warp's.
LLMC_HD constexpr int first_of_fours(int t) { return t / 32 * 2 * kFoursApart + t % 32 * 4; }
// The offset of element i of the eight from the first.
LLMC_HD constexpr int place_in_fours(int i) { return (i & 3) + (i & 4 ? kFoursApart : 0); }

// Load and store a thread's eight elements, which are two fours of its warp's 256. `left` is the number of
// elements from the first of them on. Missing elements are zeros, and go through the same arithmetic.
template <class T>
LLMC_DEVICE void load_group(const T* p, size_t left, float (&values)[8]) {
    if (left >= kFoursApart + 4) {
        load_fours(p, values);
    } else {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
            const size_t place = place_in_fours(i);
            values[i] = place < left ? to_float(p[place]) : 0.0f;
        }
    }
}
template <class T>
LLMC_DEVICE void store_group(T* p, size_t left, const float (&values)[8]) {
    if (left >= kFoursApart + 4) {
        store_fours(p, values);
    } else {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
            const size_t place = place_in_fours(i);
            if (place < left) p[place] = to<T>(values[i]);
        }
    }
}

// Eight floats for each of `Owners` threads in shared memory, in two planes of four per thread. A warp's access to one
// plane takes the 4 passes that 512 bytes need. The second plane is shifted by 16 banks, so a warp's lanes that read
// single floats in order, at(0), at(1) and so on, also use different banks.
template <int Owners>
struct Eights {
    static constexpr int plane = Owners * 4 + 16, size = plane + Owners * 4;
    static_assert(Owners % 8 == 0);  // planes are whole rows of banks, before the shift of 16
    float* base;                     // `size` floats

    LLMC_HD void store(int owner, const float (&x)[8]) const {
        store4(base + owner * 4, x);
        store4(base + plane + owner * 4, x + 4);
    }
    LLMC_HD void load(int owner, float (&x)[8]) const {
        load4(base + owner * 4, x);
        load4(base + plane + owner * 4, x + 4);
    }
    // Float i overall: float i % 8 of owner i / 8.
    LLMC_HD float at(int i) const { return base[(i & 4 ? plane : 0) + i / 8 * 4 + (i & 3)]; }
};

}  // namespace llmc
