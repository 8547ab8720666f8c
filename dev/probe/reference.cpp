// FP64 products of sampled rows and columns (reference.h).
// build: per device
#include "dev/probe/reference.h"

#include <cmath>
#include <limits>

#include "llmc/kernels/quantize_blocks.h"

namespace llmc::probe {
namespace {

size_t at(int row, int columns, int column) {
    return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

// An operand from the product's view: lines along the dimension that is summed over.
struct Operand {
    Product::Element element;
    uint32_t salt;
    int lines, inner, stored_columns;
    bool transposed;  // stored as (inner, lines)
    bool has_block_scales;
    ScaleLayout layout;
    float scale;

    double value(int line, int k) const {
        const size_t index = transposed ? at(k, stored_columns, line) : at(line, stored_columns, k);
        const float stored = stored_value(element, salt, index);
        if (!has_block_scales) return static_cast<double>(stored) * static_cast<double>(scale);
        const size_t cell =
            layout == ScaleLayout::vectors ? vector_scale_index(lines, line, k) : tile_scale_index(inner, line, k);
        return static_cast<double>(stored) * static_cast<double>(scale_at(salt, cell));
    }
    // The sampled lines, one after the other.
    std::vector<double> gather(const std::vector<int>& sample) const {
        std::vector<double> values(sample.size() * static_cast<size_t>(inner));
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < sample.size(); i++)
            for (int k = 0; k < inner; k++) values[at(static_cast<int>(i), inner, k)] = value(sample[i], k);
        return values;
    }
};

}  // namespace

std::vector<int> sample_of(int length, int count, uint32_t seed) {
    std::vector<int> sample;
    if (length <= count) {
        for (int i = 0; i < length; i++) sample.push_back(i);
        return sample;
    }
    sample.push_back(0);
    for (int part = 1; part < count - 1; part++) {  // parts of [1, length - 1)
        const int64_t begin = 1 + int64_t{length - 2} * (part - 1) / (count - 2);
        const int64_t end = 1 + int64_t{length - 2} * part / (count - 2);
        sample.push_back(static_cast<int>(begin + random_bits(seed, static_cast<uint32_t>(part)) % (end - begin)));
    }
    sample.push_back(length - 1);
    return sample;
}

std::vector<double> reference(const Product& product, const std::vector<int>& rows, const std::vector<int>& columns) {
    const Gemm g(product);
    const bool fp8 = is_fp8(product.type), blocks = product.has_block_scales();
    const Operand first{product.first_element(),
                        kFirst,
                        g.rows,
                        g.inner,
                        g.first_columns,
                        g.transpose_first,
                        blocks,
                        product.first_scales(),
                        fp8 ? kFirstScale : 1.0f};
    const Operand second{product.second_element(),
                         kSecond,
                         g.columns,
                         g.inner,
                         g.second_columns,
                         !g.transpose_second,
                         blocks,
                         product.second_scales(),
                         fp8 ? kSecondScale : 1.0f};
    const std::vector<double> a = first.gather(rows), b = second.gather(columns);
    std::vector<double> result(rows.size() * columns.size());
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < rows.size(); r++)
        for (size_t c = 0; c < columns.size(); c++) {
            const double *x = &a[r * static_cast<size_t>(g.inner)], *y = &b[c * static_cast<size_t>(g.inner)];
            double sum = 0;
            for (int k = 0; k < g.inner; k++) sum += x[k] * y[k];
            const size_t column = static_cast<size_t>(columns[c]);
            if (product.bias) sum += static_cast<double>(stored_value(bias_element(product), kBias, column));
            if (product.accumulate)
                sum += static_cast<double>(
                    stored_value(product.result_element(), kResult, at(rows[r], g.columns, columns[c])));
            result[r * columns.size() + c] = sum;
        }
    return result;
}

double relative_error(const std::vector<double>& actual, const std::vector<double>& expected) {
    if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    const double error = std::sqrt(difference / (norm > 0 ? norm : 1));
    return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace llmc::probe
