// Tries each matrix product of a run in different ways, until some are found that are right on this card, and finds the
// fastest of those. A way is right if, with known operands (known_products.h) and a result full of NaN, every sample is
// exact, nothing is left out and nothing is written outside the result, and if real numbers give the same bits twice.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"

namespace llmc {

// True for ways that are only used if there is no better one.
inline bool falls_back(const ProductChoice& way) { return way.separate_bias || way.emulated || way.workspace; }

// The result of trying one way to make a product.
struct ProductTrial {
    ProductChoice way;
    std::string problem;  // empty if it is right
    double ms = 0;        // one product with cold caches; 0: not timed
};

class ProductChecks {
public:
    // Every trial gives `matmul` other choices.
    ProductChecks(Matmul& matmul, stream_t stream);
    ~ProductChecks();

    // The ways to try, the most preferred first: `preferred`, the library's proposals, at most `limit`, and its
    // proposals for smaller workspaces; then, if the product has a bias, all of them again with a separate kernel that
    // adds it. Only one way for products that this card makes with BF16 units.
    std::vector<ProductChoice> ways(const Product& product, const std::string& preferred, int limit);
    // Compares one way with the known results. Throws errors of the device, and puts all others into `problem`.
    ProductTrial hold(const Product& product, const ProductChoice& way, bool timed);
    // Makes the product once in the way that `matmul` has chosen, on operands of its own.
    void run(const Product& product);

private:
    struct Operands;

    const Operands& operands_of(const Product& product);
    std::string problem_of(const Product& product, bool separate_bias);
    void warm_up(const Product& product);
    double time(const Product& product);

    Matmul& matmul_;
    const stream_t stream_;
    bool warm_ = false;
    std::optional<Product> made_for_;
    std::unique_ptr<Operands> operands_;
};

}  // namespace llmc
