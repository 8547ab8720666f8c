// Tries the algorithms that cuBLASLt has for each matrix product of a run, and times those that are right on this card.
// A "way" to compute a product is an algorithm, perhaps with a separate kernel for the bias, or emulation in BF16. It
// is right if, with known operands (KnownProduct) and a result that starts as NaN, every sample is exact, every
// element is written and nothing outside the result is. Real numbers must give the same bits twice.
#pragma once
#include <cstdint>
#include <functional>
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

// ---- ways to compute a product --------------------------------------------------------------------------------------

// True for ways that are only used if no other way is right.
inline bool falls_back(const ProductChoice& way) { return way.separate_bias || way.emulated || way.workspace; }

// The result of trying one way to compute a product.
struct ProductTrial {
    ProductChoice way;
    std::string problem;  // empty if the way is right
    double ms = 0;        // time of one product with cold caches; 0: not timed
};

// Runs it for two seconds on a card, which an idle one needs to reach the clock of a run.
void warm_up(stream_t stream, const std::function<void()>& run);
// The median of a few times in milliseconds of each run, with other memory in the L2 cache. Runs are timed in turn, so
// that all have the same clock.
std::vector<double> cold_ms(stream_t stream, const std::vector<std::function<void()>>& runs);

class ProductChecks {
public:
    // Every trial gives `matmul` other choices.
    ProductChecks(Matmul& matmul, stream_t stream);
    ~ProductChecks();

    // The ways to try, the most preferred first: the algorithm `preferred`, the library's proposals (at most `limit`),
    // and its proposals for smaller workspaces. If the product has a bias, the same follow with a separate kernel for
    // the bias. A product that this card emulates in BF16 has only that one way.
    std::vector<ProductChoice> ways(const Product& product, const std::string& preferred, int limit);
    // Computes the product in one way and compares the result with the known one. Throws errors of the device; all
    // other errors become the trial's problem.
    ProductTrial try_way(const Product& product, const ProductChoice& way, bool timed);
    // Computes the product once in the way that `matmul` has chosen, on operands of its own.
    void run(const Product& product);

private:
    struct Operands;

    const Operands& operands_of(const Product& product);
    std::string problem_of(const Product& product, bool separate_bias);
    double time(const Product& product);

    Matmul& matmul_;
    const stream_t stream_;
    bool warm_ = false;
    std::optional<Product> made_for_;
    std::unique_ptr<Operands> operands_;
};

}  // namespace llmc
