// The matrix products of a run, each tried in the ways in which it can be made, until some are found that are right on
// this card, and the fastest of those. Right: on known operands (known_products.h), into a result full of NaN, every
// sample is exact, nothing is left out and nothing is written beside it; and on real numbers the same bits come twice.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/check/guarded_array.h"
#include "llmc/linear/matmul.h"

namespace llmc {

// Whether a way is for want of better ones alone.
inline bool falls_back(const ProductChoice& way) { return way.separate_bias || way.emulated || way.workspace; }

// A way of making a product, tried.
struct ProductTrial {
    ProductChoice way;
    std::string problem;  // "": it is right
    double ms = 0;        // once, with nothing in the caches; 0: not timed
};

class ProductChecks {
public:
    // `matmul` is given other choices with every trial.
    ProductChecks(Matmul& matmul, stream_t stream);
    ~ProductChecks();

    // In the order in which they are to be tried, the most wanted first: `preferred`, what the library proposes, at
    // most `limit`; what it proposes for smaller workspaces; then, where the product has a bias, all of that without
    // one and a kernel that adds it. Or the one way of products that this card makes with BF16 units.
    std::vector<ProductChoice> ways(const Product& product, const std::string& preferred, int limit);
    // Holds one way against what is known. Faults of the device are thrown, all else is in `problem`.
    ProductTrial hold(const Product& product, const ProductChoice& way, bool timed);

private:
    struct Operands;

    const Operands& operands_of(const Product& product);
    std::string problem_of(const Product& product, bool separate_bias);
    double time(const Product& product);

    Matmul& matmul_;
    const stream_t stream_;
    std::optional<Product> made_for_;
    std::unique_ptr<Operands> operands_;
};

}  // namespace llmc
