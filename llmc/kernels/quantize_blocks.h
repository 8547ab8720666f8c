// Quantization with a scale for every block of a matrix, and back. See block_scales.h for blocks and scale layouts.
//
// The two layouts of a matrix have different blocks (a product sums over columns of one and over rows of the other), so
// each is quantized from the BF16 source; only the 128 x 128 tiles of a weight are the same both ways. After
// TransformerEngine's Float8BlockScaling and DeepSeek-V3 (arXiv 2412.19437), and the OCP MX specification.
#pragma once
#include "llmc/device/runtime.h"
#include "llmc/kernels/block_scales.h"

namespace llmc {

// to.row (N, C) with to.row_scales, blocks along C, and to.transposed (C, N) with to.transposed_scales, blocks along N:
// E4M3(inp / scale_inv), to nearest even, each scale from its own block's largest finite magnitude. Scales in layout
// vectors (Fp8Scaling::block; N and C multiples of 128) or mx (Fp8Scaling::mx; multiples of 32). Either layout may be
// nullptr, with its scales. to.state gets amax and, for the casts of one layout, counts: `train` and `write` both;
// `replay` leaves it alone. dbias, scratch: as in quantize(). Reads 2 bytes an element, writes 2 (both layouts).
void quantize_blocks(const Quantized<e4m3>& to, float* dbias, float* scratch, const bf16* inp, int N, int C,
                     Fp8Scaling scaling, bool accumulate, QuantizePass pass, stream_t stream);

// to.row (R, C) and to.transposed (C, R) = E4M3(master / scale_inv), one scale each 128 x 128 tile, layout tiles. R and
// C are multiples of 128. Reads 4 bytes an element (and again from the L2 cache), writes 2.
void quantize_weight_tiles(const Quantized<e4m3>& to, const float* master, int R, int C, QuantizePass pass,
                           stream_t stream);

// out (rows, K) = codes * their scales, exactly: for products on cards without block scales. Moves 3 bytes an element.
void dequantize_blocks(bf16* out, const e4m3* codes, const void* scales, ScaleLayout layout, int rows, int K,
                       stream_t stream);

}  // namespace llmc
