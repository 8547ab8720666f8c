// Eight values at a time: 16-byte transactions for bf16 and two of them for float.
//
// On the host the same functions are plain copies that g++ turns into one vector move: loading 16-byte pieces and
// reading them back as 32 bytes would stall on store forwarding (AdamW runs three times slower that way).
#pragma once
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

// p must be 16-byte aligned, here and below.
LLMC_HD void load8(const bf16* p, float (&out)[8]) {
#if LLMC_ON_GPU
    const Bytes16 raw = *reinterpret_cast<const Bytes16*>(p);
    LLMC_UNROLL
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
    LLMC_UNROLL
    for (int i = 0; i < 4; i++) raw.word[i] = pack_bf16x2(in[2 * i], in[2 * i + 1]);
    *reinterpret_cast<Bytes16*>(p) = raw;
#else
    check_aligned16(p);
    uint16_t half[8];
    for (int i = 0; i < 8; i++) half[i] = to_bf16(in[i]).bits;
    memcpy(p, half, 16);
#endif
}

LLMC_HD void load8(const float* p, float (&out)[8]) {
#if LLMC_ON_GPU
    const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
#else
    check_aligned16(p);
    memcpy(out, p, 32);
#endif
}

LLMC_HD void store8(float* p, const float (&in)[8]) {
#if LLMC_ON_GPU
    *reinterpret_cast<float4*>(p) = make_float4(in[0], in[1], in[2], in[3]);
    *reinterpret_cast<float4*>(p + 4) = make_float4(in[4], in[5], in[6], in[7]);
#else
    check_aligned16(p);
    memcpy(p, in, 32);
#endif
}

}  // namespace llmc
