// Kernels of product_checks.h: plain loops with a thread per element, so that they are obviously right.
// build: optimized
#include "test/kernels/specifications/product_checks.h"

#include <cstring>

#include "llmc/device/launch.cuh"
#include "llmc/device/math.cuh"

namespace llmc {
namespace {

// The finalizer of MurmurHash3 over both halves of an index.
LLMC_HD uint32_t mix(uint32_t seed, size_t index) {
    uint32_t h = seed * 0x9E3779B9u ^ static_cast<uint32_t>(index) ^ static_cast<uint32_t>(index >> 32) * 0x7FEB352Du;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

LLMC_HD int integer_at(KnownNumbers numbers, size_t index) {
    return static_cast<int>(mix(numbers.seed, index) % static_cast<uint32_t>(2 * numbers.largest + 1)) -
           numbers.largest;
}
LLMC_HD int scale_exponent_at(uint32_t seed, size_t cell) { return static_cast<int>(mix(seed + 77, cell) & 1u); }

// The bits of a number in a format with this many mantissa bits and this exponent bias, made without any cast.
LLMC_HD uint32_t encode_integer(int value, int mantissa_bits, int bias, int bits) {
    if (value == 0) return 0;
    const uint32_t size = static_cast<uint32_t>(value < 0 ? -value : value);
    int exponent = 0;
    while (size >> (exponent + 1)) exponent++;
    const uint32_t fraction = size ^ 1u << exponent;
    const uint32_t mantissa =
        exponent > mantissa_bits ? fraction >> (exponent - mantissa_bits) : fraction << (mantissa_bits - exponent);
    return (value < 0 ? 1u << (bits - 1) : 0) | static_cast<uint32_t>(exponent + bias) << mantissa_bits | mantissa;
}
// A number of either sign between 1/4 and 4, with a random mantissa.
LLMC_HD uint32_t encode_real(uint32_t random, int mantissa_bits, int bias, int bits) {
    const uint32_t exponent = static_cast<uint32_t>(bias) - 2 + (random >> 28) % 4;
    return (random >> 27 & 1u) << (bits - 1) | exponent << mantissa_bits | (random & ((1u << mantissa_bits) - 1));
}
LLMC_HD uint32_t number_bits(KnownNumbers numbers, size_t index, int mantissa_bits, int bias, int bits) {
    return numbers.largest > 0 ? encode_integer(integer_at(numbers, index), mantissa_bits, bias, bits)
                               : encode_real(mix(numbers.seed, index), mantissa_bits, bias, bits);
}

template <class Bits>
__global__ void fill_known_kernel(Bits* to, size_t n, KnownNumbers numbers, int mantissa_bits, int bias) {
    const size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (i < n)
        to[i] = static_cast<Bits>(number_bits(numbers, i, mantissa_bits, bias, static_cast<int>(sizeof(Bits)) * 8));
}

LLMC_HD int cell_exponent(const KnownNumbers& numbers, ScaleLayout layout, int rows, int inner, int r, int k) {
    const size_t cell = layout == ScaleLayout::vectors ? vector_scale_index(rows, r, k)
                        : layout == ScaleLayout::tiles ? tile_scale_index(inner, r, k)
                                                       : mx_scale_index(inner, r, k);
    return scale_exponent_at(numbers.seed, cell);
}

// A whole number, because its terms are products of whole numbers and powers of two of at least 1.
LLMC_HD float known_element(const KnownProduct& p, int row, int column) {
    int64_t sum = 0;
    for (int k = 0; k < p.inner; k++) {
        const size_t a = p.transpose_first ? static_cast<size_t>(k) * p.first_columns + row
                                           : static_cast<size_t>(row) * p.first_columns + k,
                     b = p.transpose_second ? static_cast<size_t>(column) * p.second_columns + k
                                            : static_cast<size_t>(k) * p.second_columns + column;
        int64_t term = int64_t{integer_at(p.first, a)} * integer_at(p.second, b);
        if (p.has_block_scales)
            term *= int64_t{1} << (cell_exponent(p.first, p.first_scales, p.rows, p.inner, row, k) +
                                   cell_exponent(p.second, p.second_scales, p.columns, p.inner, column, k));
        sum += term;
    }
    const float scaled = static_cast<float>(sum) * p.factor;
    if (!p.accumulates) return scaled;
    return scaled + static_cast<float>(integer_at(p.before, static_cast<size_t>(row) * p.columns + column));
}

LLMC_HD SamplePlace place_in_tile(const KnownProduct& p, int tile_row, int tile_column) {
    const int row = tile_row * kSampleTile, column = tile_column * kSampleTile;
    const int height = p.rows - row < kSampleTile ? p.rows - row : kSampleTile,
              width = p.columns - column < kSampleTile ? p.columns - column : kSampleTile;
    const uint32_t random = mix(5, static_cast<size_t>(row) * p.columns + column);
    return {row + static_cast<int>((random & 0xFFFFu) % static_cast<uint32_t>(height)),
            column + static_cast<int>((random >> 16) % static_cast<uint32_t>(width))};
}

__global__ void expect_samples_kernel(float* expected, KnownProduct p, int tiles_across, int tiles) {
    const int tile = static_cast<int>(blockIdx.x) * kBlockThreads + static_cast<int>(threadIdx.x);
    if (tile >= tiles) return;
    const SamplePlace at = place_in_tile(p, tile / tiles_across, tile % tiles_across);
    expected[tile] = known_element(p, at.row, at.column);
}

template <class Bits>
__global__ void read_samples_kernel(uint32_t* found, const Bits* result, KnownProduct p, int tiles_across, int tiles) {
    const int tile = static_cast<int>(blockIdx.x) * kBlockThreads + static_cast<int>(threadIdx.x);
    if (tile >= tiles) return;
    const SamplePlace at = place_in_tile(p, tile / tiles_across, tile % tiles_across);
    found[tile] = result[static_cast<size_t>(at.row) * p.columns + at.column];
}

__global__ void clear_place_kernel(uint32_t* place) {
    place[0] = 0;
    place[1] = ~0u;
}

LLMC_DEVICE void note_place(uint32_t* place, size_t i) {
    atomicAdd(place, uint32_t{1});
    atomicMin(place + 1, static_cast<uint32_t>(i));
}

// Magnitudes above that of infinity, `largest`, are NaN.
template <class Bits>
__global__ void find_nan_kernel(uint32_t* place, const Bits* values, size_t n, Bits magnitude, Bits largest) {
    const size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (i < n && (values[i] & magnitude) > largest) note_place(place, i);
}

template <class Bits>
__global__ void find_difference_kernel(uint32_t* place, const Bits* a, const Bits* b, size_t n) {
    const size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (i < n && a[i] != b[i]) note_place(place, i);
}

LaunchConfig threads_for(size_t n, stream_t stream) {
    return {dim3(static_cast<unsigned>(div_up<size_t>(n, kBlockThreads))), dim3(kBlockThreads), 0, stream};
}

int tiles_of(const KnownProduct& p) { return sample_tiles(p.rows) * sample_tiles(p.columns); }

struct Format {
    int mantissa_bits, bias;
};
Format format_of(Product::Element element) {
    switch (element) {
        case Product::Element::fp32:
            return {23, 127};
        case Product::Element::bf16:
            return {7, 127};
        case Product::Element::e4m3:
            return {3, 7};
        case Product::Element::e5m2:
            return {2, 15};
    }
    return {};
}

}  // namespace

// FP8 sums must be exact in 13 bits: the sum of `inner` products of numbers up to 2 has a standard deviation of 2
// sqrt(inner), and of numbers up to 1 of 2/3 sqrt(inner). One FP32 operand has numbers of 12 bits, so that a product in
// TF32, which keeps 11 bits, gives another result.
KnownProduct::KnownProduct(const Product& product)
    : has_bias(product.bias),
      accumulates(product.accumulate),
      has_block_scales(product.has_block_scales()),
      first_scales(product.first_scales()),
      second_scales(product.second_scales()),
      factor(is_fp8(product.type) && !has_block_scales ? 2.0f : 1.0f) {
    const Gemm g(product);
    rows = g.rows;
    columns = g.columns;
    inner = g.inner;
    first_columns = g.first_columns;
    second_columns = g.second_columns;
    transpose_first = g.transpose_first;
    transpose_second = g.transpose_second;
    const bool fp32 = product.type == OperandType::fp32;
    const int small = inner <= 4096 ? 2 : 1;
    first = {11, fp32 ? 4095 : small};
    second = {13, fp32 ? 1 : small};
    bias = {17, 8};
    before = {19, 16};
}

int known_integer(KnownNumbers numbers, size_t index) { return integer_at(numbers, index); }

std::vector<char> known_scale_table(const KnownNumbers& numbers, ScaleLayout layout, int rows, int inner) {
    std::vector<char> table(scale_bytes(layout, static_cast<size_t>(rows), static_cast<size_t>(inner)));
    const int block = layout == ScaleLayout::mx ? kMxVector : kScaleVector;
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < inner; k += block) {
            const int exponent = cell_exponent(numbers, layout, rows, inner, r, k);
            if (layout == ScaleLayout::mx) {
                table[mx_scale_index(inner, r, k)] = static_cast<char>(127 + exponent);
                continue;
            }
            const float scale = power_of_two(exponent);
            const size_t cell =
                layout == ScaleLayout::vectors ? vector_scale_index(rows, r, k) : tile_scale_index(inner, r, k);
            std::memcpy(table.data() + cell * sizeof scale, &scale, sizeof scale);
        }
    return table;
}

void fill_known(void* to, Product::Element element, size_t n, KnownNumbers numbers, stream_t stream) {
    const Format f = format_of(element);
    const auto fill = [&]<class Bits>(Bits* bits) {
        launch<fill_known_kernel<Bits>>(threads_for(n, stream), out(bits, n), n, numbers, f.mantissa_bits, f.bias);
    };
    switch (bytes_of(element)) {
        case 4:
            return fill(static_cast<uint32_t*>(to));
        case 2:
            return fill(static_cast<uint16_t*>(to));
        default:
            return fill(static_cast<uint8_t*>(to));
    }
}

SamplePlace sample_of_tile(const KnownProduct& product, int tile_row, int tile_column) {
    return place_in_tile(product, tile_row, tile_column);
}

void expect_samples(float* expected, const KnownProduct& product, stream_t stream) {
    const int tiles = tiles_of(product);
    launch<expect_samples_kernel>(threads_for(static_cast<size_t>(tiles), stream),
                                  out(expected, static_cast<size_t>(tiles)), product, sample_tiles(product.columns),
                                  tiles);
}

// Results are BF16 or FP32.
template <class F>
static void with_result_bits(const void* values, Product::Element element, F&& f) {
    if (element == Product::Element::fp32)
        f(static_cast<const uint32_t*>(values), 0x7FFFFFFFu, 0x7F800000u);
    else
        f(static_cast<const uint16_t*>(values), uint16_t{0x7FFF}, uint16_t{0x7F80});
}

void read_samples(uint32_t* found, const void* result, Product::Element element, const KnownProduct& product,
                  stream_t stream) {
    const int tiles = tiles_of(product);
    const size_t n = static_cast<size_t>(product.rows) * static_cast<size_t>(product.columns);
    with_result_bits(result, element, [&]<class Bits>(const Bits* bits, Bits, Bits) {
        launch<read_samples_kernel<Bits>>(threads_for(static_cast<size_t>(tiles), stream),
                                          out(found, static_cast<size_t>(tiles)), in(bits, n), product,
                                          sample_tiles(product.columns), tiles);
    });
}

void find_nan(uint32_t* place, const void* values, Product::Element element, size_t n, stream_t stream) {
    launch<clear_place_kernel>({1, 1, 0, stream}, out(place, 2));
    with_result_bits(values, element, [&]<class Bits>(const Bits* bits, Bits magnitude, Bits largest) {
        launch<find_nan_kernel<Bits>>(threads_for(n, stream), inout(place, 2), in(bits, n), n, magnitude, largest);
    });
}

void find_difference(uint32_t* place, const void* a, const void* b, Product::Element element, size_t n,
                     stream_t stream) {
    launch<clear_place_kernel>({1, 1, 0, stream}, out(place, 2));
    with_result_bits(a, element, [&]<class Bits>(const Bits* bits, Bits, Bits) {
        launch<find_difference_kernel<Bits>>(threads_for(n, stream), inout(place, 2), in(bits, n),
                                             in(static_cast<const Bits*>(b), n), n);
    });
}

}  // namespace llmc
