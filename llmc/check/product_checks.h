// Tries the algorithms that cuBLASLt has for each matrix product of a run, and times those that are right on this card.
// A "way" to compute a product is an algorithm, perhaps with a separate kernel for the bias, or emulation in BF16. It
// is right if, with known operands (known_products.h) and a result that starts as NaN, every sample is exact, every
// element is written and nothing outside the result is. Real numbers must give the same bits twice.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"

namespace llmc {

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
