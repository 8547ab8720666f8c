// Runs products on known operands, and compares samples of the results.
#include "test/kernels/specifications/product_checks.h"

#include <algorithm>
#include <cstring>

#include "test/kernels/specifications/trial.h"

namespace llmc {
namespace {

// The scale of an operand as a whole; KnownProduct::factor is their product.
constexpr float kFirstScale = 0.5f, kSecondScale = 4.0f;

float value_of(uint32_t bits, Product::Element element) {
    return element == Product::Element::fp32 ? float_from_bits(bits) : to_float(bf16{static_cast<uint16_t>(bits)});
}
float rounded(float value, Product::Element element) {
    return element == Product::Element::fp32 ? value : to_float(to_bf16(value));
}

}  // namespace

// The buffers that a product reads and writes, and the right values of its samples.
struct ProductChecks::Operands {
    Operands(const Product& p, stream_t stream)
        : product(p),
          gemm(p),
          known(p),
          first(gemm.first_size() * bytes_of(p.first_element()), stream),
          second(gemm.second_size() * bytes_of(p.second_element()), stream),
          bias(gemm.columns * bytes_of(p.result_element()), stream),
          result(gemm.result_size() * bytes_of(p.result_element()), stream),
          again(result.bytes(), stream),
          found(size_t{1} * sample_tiles(gemm.rows) * sample_tiles(gemm.columns), stream),
          place(2, stream),
          first_scale(scales(known.first, p.first_scales(), gemm.rows, kFirstScale), stream),
          second_scale(scales(known.second, p.second_scales(), gemm.columns, kSecondScale), stream) {
        fill_known(bias.data(), p.result_element(), static_cast<size_t>(gemm.columns), known.bias, stream);
        const GuardedArray<float> device_expected(found.size(), stream);
        expect_samples(device_expected, known, stream);
        expected = device_expected.read();
    }

    std::vector<char> scales(const KnownNumbers& numbers, ScaleLayout layout, int rows, float whole) const {
        if (product.has_block_scales()) return known_scale_table(numbers, layout, rows, gemm.inner);
        std::vector<char> one(sizeof whole);
        std::memcpy(one.data(), &whole, sizeof whole);
        return one;
    }
    void fill(bool real, stream_t stream) const {
        const auto numbers = [&](KnownNumbers n) { return KnownNumbers{n.seed, real ? 0 : n.largest}; };
        fill_known(first.data(), product.first_element(), gemm.first_size(), numbers(known.first), stream);
        fill_known(second.data(), product.second_element(), gemm.second_size(), numbers(known.second), stream);
    }
    // Fills the result with NaN, or with the numbers that the product adds to.
    void clear_result(stream_t stream) const {
        if (product.accumulate)
            fill_known(result.data(), product.result_element(), gemm.result_size(), known.before, stream);
        else
            set_bytes(result.data(), 0xFF, result.bytes(), stream);
    }
    ProductTensors tensors() const {
        return ProductTensors::of(product, {result.data(), first.data(), second.data(), bias.data(), first_scale.data(),
                                            second_scale.data()});
    }

    const Product product;
    const Gemm gemm;
    const KnownProduct known;
    GuardedMemory first, second, bias, result, again;
    GuardedArray<uint32_t> found, place;  // bits of the samples; see find_nan()
    GuardedArray<char> first_scale, second_scale;
    std::vector<float> expected;  // expected values of the samples
};

ProductChecks::ProductChecks(Matmul& matmul, stream_t stream) : matmul_(matmul), stream_(stream) {}
ProductChecks::~ProductChecks() = default;

std::vector<std::string> ProductChecks::algorithms(const Product& product, int limit) {
    const std::vector<std::string> proposals =
        matmul_.emulates(product) ? std::vector<std::string>{} : matmul_.proposals(product, limit);
    return proposals.empty() ? std::vector<std::string>{""} : proposals;
}

const ProductChecks::Operands& ProductChecks::operands_of(const Product& product) {
    if (made_for_ != product) {
        operands_.reset();  // before the next are allocated: memory may not hold both
        operands_ = std::make_unique<Operands>(product, stream_);
        made_for_ = product;
        matmul_.reserve({product.N, product.C, product.OC, product.type});
    }
    return *operands_;
}

std::string ProductChecks::problem_of(const Product& product, const std::string& algorithm) {
    const Operands& o = operands_of(product);
    matmul_.choose(algorithm.empty() ? ProductChoices() : ProductChoices{{matmul_.key(product), algorithm}});
    matmul_.reset_counts();
    std::string problem;
    try {
        o.fill(false, stream_);
        problem = compare(product);
    } catch (const Error& error) {
        synchronize(stream_);  // throws if the device is lost
        problem = error.what();
    }
    const bool is_refused = matmul_.counts().emulated > 0 && !matmul_.emulates(product);
    return problem.empty() && is_refused ? "cuBLASLt refuses it" : problem;
}

std::string ProductChecks::compare(const Product& product) {
    const Operands& o = operands_of(product);
    const Product::Element element = product.result_element();
    const auto place_text = [&](uint32_t index) {
        return fmt::format("[{}, {}]", index / static_cast<uint32_t>(o.gemm.columns),
                           index % static_cast<uint32_t>(o.gemm.columns));
    };
    const auto multiply = [&] {
        o.clear_result(stream_);
        matmul_.multiply(product, o.tensors(), stream_);
    };

    multiply();
    for (const GuardedMemory* memory : {&o.result, &o.first, &o.second})
        if (const std::string problem = memory->trespass(); !problem.empty()) return problem;
    find_nan(o.place, o.result.data(), element, o.gemm.result_size(), stream_);
    if (const std::vector<uint32_t> nan = o.place.read(); nan[0] > 0)
        return fmt::format("{} of {} elements are NaN, the first is {}", nan[0], o.gemm.result_size(),
                           place_text(nan[1]));
    read_samples(o.found, o.result.data(), element, o.known, stream_);
    const std::vector<uint32_t> found = o.found.read();
    const int across = sample_tiles(o.gemm.columns);
    size_t wrong = 0;
    std::string first_wrong;
    for (size_t i = 0; i < found.size(); i++) {
        const SamplePlace at = sample_of_tile(o.known, static_cast<int>(i) / across, static_cast<int>(i) % across);
        float value = o.expected[i];
        if (product.bias) value += static_cast<float>(known_integer(o.known.bias, static_cast<size_t>(at.column)));
        const float actual = value_of(found[i], element), expected = rounded(value, element);
        // Some of cuBLASLt's algorithms round a BF16 product before they add it.
        const size_t index = static_cast<size_t>(at.row) * static_cast<size_t>(o.gemm.columns) + at.column;
        const float addend = product.accumulate ? static_cast<float>(known_integer(o.known.before, index)) : 0;
        const float rounded_twice = rounded(rounded(value - addend, element) + addend, element);
        if (actual == expected || actual == rounded_twice) continue;  // -0 equals 0
        if (wrong++ == 0)
            first_wrong = fmt::format("[{}, {}] is {:.9g}, must be {:.9g}", at.row, at.column, actual, expected);
    }
    if (wrong > 0) return fmt::format("{} ({} of {} samples are wrong)", first_wrong, wrong, found.size());

    o.fill(true, stream_);
    multiply();
    copy_on_device(o.again.data(), o.result.data(), o.result.bytes(), stream_);
    multiply();
    find_difference(o.place, o.again.data(), o.result.data(), element, o.gemm.result_size(), stream_);
    if (const std::vector<uint32_t> other = o.place.read(); other[0] > 0)
        return fmt::format("{} of {} elements differ when it is computed again, the first is {}", other[0],
                           o.gemm.result_size(), place_text(other[1]));
    return "";
}

}  // namespace llmc
