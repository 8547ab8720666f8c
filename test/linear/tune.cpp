// The timing of a run's matmuls before its first step.
// build: per device
#include "llmc/linear/tune.h"

#include <algorithm>

#include "llmc/device/transfer.h"
#if !LLMC_CUDA
#include "llmc/device/host/runtime.h"
#endif
#include "test/kernel_test.h"

namespace llmc::test {
namespace {

std::vector<Product> some_products() {
    using enum Product::Kind;
    return {{forward, OperandType::fp32, 48, 80, 112, true, false},
            {forward, OperandType::bf16, 48, 80, 112, true, false},
            {wgrad, OperandType::bf16, 48, 80, 112, false, true},
            {forward, OperandType::e4m3, 48, 80, 112, true, false},
            {dgrad, OperandType::e5m2_e4m3, 48, 80, 112, false, false}};
}

}  // namespace

TEST_CASE("tune() chooses one of the proposals for each product, and measures rates") {
    test_stream();
    const std::vector<Product> products = some_products();
    Matmul matmul(false);
    size_t alive = 0, choices = 0;
    const Tuned tuned = tune(products, 3, matmul, test_stream(), [&] { alive++; });
    CHECK(alive == products.size());
    for (const Product& product : products) {
        const std::vector<std::string> proposals = matmul.proposals(product, 3);
        if (proposals.empty() || matmul.emulates(product)) continue;  // the host device has none
        const std::string chosen = tuned.choices.at(matmul.key(product));
        CHECK(std::find(proposals.begin(), proposals.end(), chosen) != proposals.end());
        choices++;
    }
    CHECK(tuned.choices.size() == choices);
    for (const char* name : {"fp32", "bf16", "fp8"}) CHECK(tuned.rates.count(name) == (choices > 0 ? 1 : 0));
}

TEST_CASE("tune() takes operands with block scales") {
    test_stream();
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx}) {
        Matmul matmul(false, FastAccumulation::forward, scaling);
        const Product product = {Product::forward, OperandType::e4m3, 128, 256, 384, true, false, scaling};
        const Tuned tuned = tune({product}, 2, matmul, test_stream(), [] {});
        CHECK(tuned.choices.size() == (matmul.proposals(product, 1).empty() || matmul.emulates(product) ? 0 : 1));
    }
}

TEST_CASE("copy_rate() is a positive number of bytes per second, and raise() keeps the highest rates") {
    CHECK(copy_rate(test_stream()) > 0);
    Rates rates = {{"bf16", 2}, {"copy", 3}};
    raise(rates, {{"bf16", 1}, {"copy", 4}, {"fp8", 5}});
    CHECK(rates == Rates{{"bf16", 2}, {"copy", 4}, {"fp8", 5}});
    CHECK((is_of_products("fp8") && !is_of_products("copy")));
}

TEST_CASE("load_products() runs every product once and leaves the counts unchanged") {
    ProductUses products;
    Matmul matmul(false);
    for (const Product& product : some_products()) {
        products[product] = {"fc"};
        matmul.reserve({product.N, product.C, product.OC, product.type});
    }
    matmul.reset_counts({5, 6, 7});
#if !LLMC_CUDA
    host::record_operations(true);
#endif
    load_products(products, matmul, test_stream());
    CHECK((matmul.counts().fp8 == 5 && matmul.counts().bf16 == 6 && matmul.counts().fp32 == 7));
#if !LLMC_CUDA
    size_t made = 0;
    for (const auto& [name, row] : host::operations())
        if (name.starts_with("matmul ")) made += row.count;
    host::record_operations(false);
    CHECK(made == products.size());
#endif
}

}  // namespace llmc::test
