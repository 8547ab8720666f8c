// The sums of Hopper's tensor cores in FP32 vectors, see products_host.h. A product is aligned and truncated by
// multiplying it by a power of two and converting it to an integer.
// build: per device, optimized
#include "llmc/linear/products_host.h"

#if !LLMC_CUDA
#include <array>
#include <cmath>

#include "llmc/kernels/host/vectors.h"

namespace llmc::host {

namespace {

constexpr int kInstruction = 32;           // products that one instruction adds
constexpr int kPromotion = 128;            // terms between additions in FP32; length of a block with a scale
constexpr int kRows = 128, kColumns = 64;  // of the result, computed together
constexpr int kFractionBits = 13;
constexpr float kUnits = 1 << kFractionBits;

// A code as the sums need it.
struct Term {
    float value = 0;   // 0 if the code is not finite
    float power = 0;   // 2^exponent; 0 for zero
    float poison = 0;  // NaN if the code is not finite, otherwise 0
};

template <class F8>
const Term* terms() {
    static const std::array<Term, 256> all = [] {
        const float least = std::is_same_v<F8, e4m3> ? 0x1p-6f : 0x1p-14f;  // smallest normal number
        std::array<Term, 256> table;
        for (int code = 0; code < 256; code++) {
            const float value = to_float(F8{static_cast<uint8_t>(code)});
            if (!std::isfinite(value))
                table[code].poison = NAN;
            else if (value != 0)
                table[code] = {value, std::max(float_from_bits(float_bits(value) & kFloatInfinityBits), least), 0};
        }
        return table;
    }();
    return all.data();
}

// An operand (rows, inner).
struct Codes {
    const uint8_t* codes;
    const Term* table;
    const void* scales;
    ScaleLayout layout;
    int rows, inner;

    Term term(int row, int k) const {
        return row < rows && k < inner ? table[codes[static_cast<size_t>(row) * inner + k]] : Term{};
    }
    float scale(int row, int k) const {
        return row < rows ? block_scale_inv(scales, layout, rows, inner, row, k) : 0.0f;
    }
};

// Some columns of the result, their terms first_k to first_k + kPromotion, with lanes side by side.
struct ColumnTerms {
    alignas(64) float values[kPromotion][kColumns], powers[kPromotion][kColumns], scales[kColumns];

    void load(const Codes& operand, int first_column, int first_k, bool has_scales, float* poison) {
        for (int c = 0; c < kColumns; c++) {
            for (int k = 0; k < kPromotion; k++) {
                const Term term = operand.term(first_column + c, first_k + k);
                values[k][c] = term.value;
                powers[k][c] = term.power;
                poison[c] += term.poison;
            }
            scales[c] = has_scales ? operand.scale(first_column + c, first_k) : 1.0f;
        }
    }
};

// One instruction: returns sum + kInstruction products. The terms of columns lie kColumns apart. Sums stay below 2^21
// units, so FP32 has them exactly.
LLMC_INLINE Floats add_products(Floats sum, const Term* row, const float* values, const float* powers) {
    Floats top = max_of(from_bits(bits_of(sum) & kFloatInfinityBits), splat(0x1p-64f));  // never 0
    for (int k = 0; k < kInstruction; k++) top = max_of(top, row[k].power * load(powers + k * kColumns));
    const Floats to_units = kUnits / top;
    Ints total = __builtin_convertvector(sum * to_units, Ints);  // truncates
    for (int k = 0; k < kInstruction; k++)
        total += __builtin_convertvector(row[k].value * load(values + k * kColumns) * to_units, Ints);
    constexpr uint32_t kDropped = (1u << (23 - kFractionBits)) - 1;
    return from_bits(bits_of(__builtin_convertvector(total, Floats)) & ~kDropped) * (top / kUnits);
}

// The sums of kRows x kColumns elements of the result.
struct Tile {
    alignas(64) float sums[kRows][kColumns] = {};
    float row_poison[kRows] = {}, column_poison[kColumns] = {};
    ColumnTerms columns;

    void add(const Codes& first, const Codes& second, int first_row, int first_column, bool has_scales, bool fast) {
        for (int k = 0; k < first.inner; k += kPromotion) {
            columns.load(second, first_column, k, has_scales, column_poison);
            for (int r = 0; r < kRows && first_row + r < first.rows; r++) {
                Term row[kPromotion];
                for (int i = 0; i < kPromotion; i++) {
                    row[i] = first.term(first_row + r, k + i);
                    row_poison[r] += row[i].poison;
                }
                const float scale = has_scales ? first.scale(first_row + r, k) : 1.0f;
                for (int c = 0; c < kColumns; c += kLanes) add_part(&sums[r][c], row, c, scale, fast);
            }
        }
    }
    LLMC_INLINE void add_part(float* to, const Term* row, int c, float scale, bool fast) const {
        const Floats before = load(to);
        Floats part = fast ? before : Floats{};
        for (int k = 0; k < kPromotion; k += kInstruction)
            part = add_products(part, row + k, &columns.values[k][c], &columns.powers[k][c]);
        store(to, fast ? part : before + part * (scale * load(&columns.scales[c])));
    }
};

}  // namespace

void multiply_as_hopper(const Product& product, const ProductTensors& t, bool fast) {
    const Gemm g(product);
    const bool has_scales = product.has_block_scales();
    const Term* const table = product.first_element() == Product::Element::e5m2 ? terms<e5m2>() : terms<e4m3>();
    const Codes first{
        static_cast<const uint8_t*>(t.first), table, t.first_scale_inv, product.first_scales(), g.rows, g.inner};
    const Codes second{static_cast<const uint8_t*>(t.second),
                       terms<e4m3>(),
                       t.second_scale_inv,
                       product.second_scales(),
                       g.columns,
                       g.inner};
    const float scale =
        has_scales ? 1.0f
                   : *static_cast<const float*>(t.first_scale_inv) * *static_cast<const float*>(t.second_scale_inv);
    const bf16* const bias = static_cast<const bf16*>(t.bias);
#pragma omp parallel for collapse(2) schedule(static)
    for (int row = 0; row < g.rows; row += kRows)
        for (int column = 0; column < g.columns; column += kColumns) {
            Tile tile;
            tile.add(first, second, row, column, has_scales, fast);
            for (int r = 0; r < kRows && row + r < g.rows; r++)
                for (int c = 0; c < kColumns && column + c < g.columns; c++) {
                    const size_t at = static_cast<size_t>(row + r) * g.columns + column + c;
                    const float x = tile.sums[r][c] * scale + (tile.row_poison[r] + tile.column_poison[c]);
                    if (product.kind == Product::wgrad) {
                        float* const result = static_cast<float*>(t.result) + at;
                        *result = product.accumulate ? *result + x : x;
                    } else {
                        static_cast<bf16*>(t.result)[at] = to_bf16(bias ? x + to_float(bias[column + c]) : x);
                    }
                }
        }
}

}  // namespace llmc::host
#endif
