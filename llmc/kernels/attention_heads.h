// The heads of attention, and how a row of qkv holds them.
#pragma once
#include <cmath>

#include "llmc/base/error.h"

namespace llmc {

// A row of qkv is (NH + 2 NKV, HD), as the qkv product writes it: queries, then keys, then values. With NKV < NH
// (grouped queries, arXiv 2305.13245) query head h reads keys and values of head h / (NH / NKV).
struct AttentionHeads {
    int NH, NKV, HD;
    float scale = 0.0f;  // of scores; 0: HD^-0.5
    int window = 0;      // how many keys a query sees, its own and those before it; 0: all

    static AttentionHeads multi_head(int NH, int HD) { return {NH, NH, HD}; }

    int rows() const { return NH + 2 * NKV; }  // heads in a row of qkv
    int width() const { return NH * HD; }      // channels of the output
    int qkv_width() const { return (NH + 2 * NKV) * HD; }
    // At most T: as many as a query of a sequence of T can see.
    int window_in(int T) const { return window > 0 && window < T ? window : T; }
    float softmax_scale() const { return scale != 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(HD)); }
};

// Throws, in a launcher's name, unless kernels can have these heads.
inline void check_heads(const char* launcher, const AttentionHeads& heads) {
    if (heads.HD != 32 && heads.HD != 64 && heads.HD != 128)
        throw Error(ExitCode::failure,
                    strprintf("%s: head dimension %d is not supported; choose the number of heads so that channels / "
                              "heads is 32, 64 or 128",
                              launcher, heads.HD));
    if (heads.NH < 1 || heads.NKV < 1 || heads.NH % heads.NKV != 0)
        throw Error(ExitCode::failure, strprintf("%s: %d query heads cannot share %d key heads evenly; choose a "
                                                 "divisor of the query heads",
                                                 launcher, heads.NH, heads.NKV));
}

// Calls f.template operator()<HD>(), of a head dimension that check_heads() has seen.
template <class F>
void with_head_dimension(int HD, F&& f) {
    if (HD == 32)
        f.template operator()<32>();
    else if (HD == 64)
        f.template operator()<64>();
    else
        f.template operator()<128>();
}

}  // namespace llmc
