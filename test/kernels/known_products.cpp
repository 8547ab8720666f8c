// Known operands: their numbers in every format, and the expected samples of their products. Also the product checks,
// which must find every algorithm of this device right.
// build: per device
#include "test/kernels/specifications/product_checks.h"

#include <algorithm>

#include "test/kernel_test.h"

namespace llmc::test {
namespace {

float value_at(const std::vector<uint8_t>& bytes, Product::Element element, size_t i) {
    switch (element) {
        case Product::Element::fp32: {
            float value;
            std::memcpy(&value, bytes.data() + i * 4, 4);
            return value;
        }
        case Product::Element::bf16: {
            uint16_t bits;
            std::memcpy(&bits, bytes.data() + i * 2, 2);
            return to_float(bf16{bits});
        }
        case Product::Element::e4m3:
            return to_float(e4m3{bytes[i]});
        case Product::Element::e5m2:
            return to_float(e5m2{bytes[i]});
    }
    return 0;
}

std::vector<uint8_t> filled(Product::Element element, size_t n, const KnownNumbers& numbers) {
    DeviceArray<uint8_t> memory(n * bytes_of(element));
    fill_known(memory, element, n, numbers, test_stream());
    return memory.download();
}

std::vector<Product> some_products() {
    using enum Product::Kind;
    std::vector<Product> products;
    for (const OperandType type : {OperandType::fp32, OperandType::bf16, OperandType::e4m3, OperandType::e5m2_e4m3})
        for (const Product::Kind kind : {forward, dgrad, wgrad}) {
            if (kind == forward && type == OperandType::e5m2_e4m3) continue;
            products.push_back({kind, type, 48, 80, 112, kind == forward, kind == wgrad});
        }
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx})
        for (const Product::Kind kind : {forward, dgrad, wgrad})
            products.push_back({kind, OperandType::e4m3, 128, 256, 384, kind == forward, kind == wgrad, scaling});
    return products;
}

}  // namespace

TEST_CASE("Known operands hold known_integer() in every format") {
    using enum Product::Element;
    for (const Product::Element element : {fp32, bf16, e4m3, e5m2})
        for (const int largest : {1, 2, 8}) {
            const KnownNumbers numbers = {7, largest};
            const std::vector<uint8_t> bytes = filled(element, 1000, numbers);
            int seen = 0;
            for (size_t i = 0; i < 1000; i++) {
                // E5M2 has two bits of mantissa: 5 and 7 are none of its numbers, and cut short.
                if (element == e5m2 && std::abs(known_integer(numbers, i)) > 4) continue;
                CHECK(value_at(bytes, element, i) == static_cast<float>(known_integer(numbers, i)));
                seen |= 1 << (known_integer(numbers, i) + largest);
            }
            if (element != e5m2) CHECK(seen == (1 << (2 * largest + 1)) - 1);  // each comes up
        }
}

TEST_CASE("Real numbers for products are finite, of both signs and about 1") {
    using enum Product::Element;
    for (const Product::Element element : {fp32, bf16, e4m3, e5m2}) {
        const std::vector<uint8_t> bytes = filled(element, 500, {3, 0});
        int negative = 0;
        for (size_t i = 0; i < 500; i++) {
            const float value = value_at(bytes, element, i);
            REQUIRE(std::fabs(value) >= 0.25f);
            REQUIRE(std::fabs(value) < 4.0f);
            negative += value < 0;
        }
        CHECK(negative > 100);  // 500 fair draws; fewer are less likely than 1e-40
        CHECK(negative < 400);
    }
}

TEST_CASE("Samples of a known product equal the product of the operands in memory") {
    for (const Product& product : some_products()) {
        CAPTURE(product.describe());
        const Gemm g(product);
        const KnownProduct known(product);
        const auto first = filled(product.first_element(), g.first_size(), known.first),
                   second = filled(product.second_element(), g.second_size(), known.second);
        const auto first_table = known_scale_table(known.first, product.first_scales(), g.rows, g.inner),
                   second_table = known_scale_table(known.second, product.second_scales(), g.columns, g.inner);
        const int down = sample_tiles(g.rows), across = sample_tiles(g.columns);
        DeviceArray<float> expected(static_cast<size_t>(down * across));
        expect_samples(expected, known, test_stream());
        const std::vector<float> samples = expected.download();
        int wrong = 0;
        for (int tile = 0; tile < down * across; tile++) {
            const SamplePlace at = sample_of_tile(known, tile / across, tile % across);
            REQUIRE(at.row / kSampleTile == tile / across);
            REQUIRE(at.column / kSampleTile == tile % across);
            double sum = 0;
            for (int k = 0; k < g.inner; k++) {
                const size_t a = g.transpose_first ? static_cast<size_t>(k) * g.first_columns + at.row
                                                   : static_cast<size_t>(at.row) * g.first_columns + k,
                             b = g.transpose_second ? static_cast<size_t>(at.column) * g.second_columns + k
                                                    : static_cast<size_t>(k) * g.second_columns + at.column;
                double term = static_cast<double>(value_at(first, product.first_element(), a)) *
                              static_cast<double>(value_at(second, product.second_element(), b));
                if (product.has_block_scales())
                    term *= static_cast<double>(
                        block_scale_inv(first_table.data(), product.first_scales(), g.rows, g.inner, at.row, k) *
                        block_scale_inv(second_table.data(), product.second_scales(), g.columns, g.inner, at.column,
                                        k));
                sum += term;
            }
            sum *= static_cast<double>(known.factor);
            if (product.accumulate)
                sum += known_integer(known.before, static_cast<size_t>(at.row) * g.columns + at.column);
            wrong += static_cast<double>(samples[tile]) != sum;
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("NaN and differing elements are counted, and the first is found") {
    const std::vector<float> values = random_normal<float>(1000, 1.0f, 1);
    std::vector<float> other = values;
    DeviceArray<uint32_t> place(2);
    const auto found = [&] { return place.download(); };
    DeviceArray<float> a(values);
    find_nan(place, a, Product::Element::fp32, 1000, test_stream());
    CHECK(found() == std::vector<uint32_t>{0, ~0u});
    other[321] = std::nextafter(other[321], 9.0f), other[777] = NAN, other[999] = -INFINITY;
    DeviceArray<float> b(other);
    find_difference(place, a, b, Product::Element::fp32, 1000, test_stream());
    CHECK(found() == std::vector<uint32_t>{3, 321});
    find_nan(place, b, Product::Element::fp32, 1000, test_stream());
    CHECK(found() == std::vector<uint32_t>{1, 777});
    const std::vector<bf16> small = {bf16{0x7F80}, bf16{0xFF80}, bf16{0x8000}, bf16{0xFF81}, bf16{0x7FFF}};
    DeviceArray<bf16> c(small);
    find_nan(place, c, Product::Element::bf16, small.size(), test_stream());
    CHECK(found() == std::vector<uint32_t>{2, 3});
}

TEST_CASE("Every product of an honest device is right with every algorithm that is proposed") {
    for (const Product& product : some_products()) {
        CAPTURE(product.describe());
        Matmul matmul(false, FastAccumulation::forward, product.scaling);
        if (!Matmul::emulated_because(product.scaling).empty() && !LLMC_CUDA) continue;
        ProductChecks checks(matmul, test_stream());
        const std::vector<std::string> algorithms = checks.algorithms(product, 4);
        REQUIRE(!algorithms.empty());
        for (const std::string& algorithm : algorithms) CHECK(checks.problem_of(product, algorithm) == "");
    }
}

}  // namespace llmc::test
