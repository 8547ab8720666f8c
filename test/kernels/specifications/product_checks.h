// Holds the algorithms that cuBLASLt has for a matrix product against known results. One is right if, with known
// operands (KnownProduct) and a result that starts as NaN, every sample is exact, every element is written and nothing
// outside the result is. Real numbers must give the same bits twice.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"

namespace llmc {

// ---- known operands -------------------------------------------------------------------------------------------------
// Operands whose products are known exactly, whatever the order and precision of the sums: powers of two times integers
// so small that all partial sums are exact, even in the 13 bits that Hopper keeps of FP8 sums (arXiv 2412.19437,
// section 3.3.2). Each operand's element is a function of its index, so a plain kernel computes the right result
// without reading the operands.

// The numbers in an operand. With `largest` 0 they are real numbers of about 1 instead of integers, to test whether
// rounded sums repeat their bits.
struct KnownNumbers {
    uint32_t seed = 0;
    int largest = 0;
};

// The shape of a product, and the numbers in its operands. Passed to kernels by value.
struct KnownProduct {
    explicit KnownProduct(const Product& product);

    int rows, columns, inner;                  // result (rows, columns), summed over `inner`
    int first_columns, second_columns;         // as stored, row-major
    bool transpose_first, transpose_second;    // whether the product uses the stored operand transposed
    KnownNumbers first, second, bias, before;  // `before`: the result's content that the product adds to
    bool has_bias, accumulates;
    bool has_block_scales;
    ScaleLayout first_scales, second_scales;
    float factor;  // the product of the scales of whole tensors, a power of two
};

// The scale table of `layout` for an operand (rows, inner), as bytes; 0 for padding.
std::vector<char> known_scale_table(const KnownNumbers& numbers, ScaleLayout layout, int rows, int inner);

// Fills to (n) with the numbers of indices 0 to n - 1.
void fill_known(void* to, Product::Element element, size_t n, KnownNumbers numbers, stream_t stream);

// One element of each 32 x 32 tile of the result, a row of tiles after the other.
constexpr int kSampleTile = 32;
struct SamplePlace {
    int row, column;
};
inline int sample_tiles(int extent) { return div_up(extent, kSampleTile); }
SamplePlace sample_of_tile(const KnownProduct& product, int tile_row, int tile_column);
// expected (tiles): each sample before rounding, with scales and `before`, but without bias.
void expect_samples(float* expected, const KnownProduct& product, stream_t stream);
// found (tiles): the bits of the result's samples.
void read_samples(uint32_t* found, const void* result, Product::Element element, const KnownProduct& product,
                  stream_t stream);
int known_integer(KnownNumbers numbers, size_t index);

// place[0]: how many of n elements are NaN; place[1]: the first of them, or 0xFFFFFFFF.
void find_nan(uint32_t* place, const void* values, Product::Element element, size_t n, stream_t stream);
// The same of elements whose bits differ.
void find_difference(uint32_t* place, const void* a, const void* b, Product::Element element, size_t n,
                     stream_t stream);

// ---- algorithms of a product ----------------------------------------------------------------------------------------

class ProductChecks {
public:
    // Every check gives `matmul` other choices.
    ProductChecks(Matmul& matmul, stream_t stream);
    ~ProductChecks();

    // The algorithms that a run may choose: the library's proposals (at most `limit`). A product that this device
    // computes in one way only, because it has no choice or emulates it, has one: "".
    std::vector<std::string> algorithms(const Product& product, int limit);
    // Computes the product with this algorithm, and compares the result with the known one. Returns what is wrong, or
    // "". Throws errors of the device; all others become the problem.
    std::string problem_of(const Product& product, const std::string& algorithm);

private:
    struct Operands;

    const Operands& operands_of(const Product& product);
    std::string compare(const Product& product);

    Matmul& matmul_;
    const stream_t stream_;
    std::optional<Product> made_for_;
    std::unique_ptr<Operands> operands_;
};

}  // namespace llmc
