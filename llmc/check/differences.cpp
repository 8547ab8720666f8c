// The kernel that compares FP8 products with those in BF16.
#include "llmc/kernels/differences.h"
#include "llmc/check/specifications.h"

namespace llmc::check {
namespace {

// n terms of one sign in FP64 in any order: at most n roundings of each.
Bounded sums_of_terms(const std::vector<double>& sums) { return Bounded(sums, 2 * (sums[0] + 8) * 0x1p-53, 0); }

// n, the sum of (actual - expected)^2 and the sum of expected^2, over two products of different sizes.
template <class T>
void differences(Trial& t, size_t n) {
    std::vector<Input<T>> pairs;
    std::vector<double> sums = {0, 0, 0};
    for (const float size : {1.0f, 0x1p-20f}) {
        pairs.push_back(t.normal<T>(n, 1.5f * size));
        pairs.push_back(t.normal<T>(n, size));
        const auto actual = pairs[pairs.size() - 2].doubles(), expected = pairs.back().doubles();
        sums[0] += n;
        for (size_t i = 0; i < n; i++) {
            sums[1] += (actual[i] - expected[i]) * (actual[i] - expected[i]);
            sums[2] += expected[i] * expected[i];
        }
    }
    double* parts = t.scratch<double>(difference_parts(n));
    double* to = t.result("sums", 3, std::vector<double>(3, 0.0));
    t.run_twice([&] {
        for (const size_t i : {0, 2}) add_differences<T>(to, parts, pairs[i], pairs[i + 1], n, t.stream());
    });
    t.within(to, sums_of_terms(sums));
}

}  // namespace

void add_probe(Items& items, const KernelUse& use) {
    if (!use.fp8 || !use.probe) return;
    constexpr size_t kCount = 70008;  // three blocks, whose threads take several strides
    each_type<bf16, float>([&]<class T>(T) { add_kernel<T>(items, "add_differences", differences<T>, kCount); });
}

void add_probe_tests(Items& items) {
    for (const size_t n : {8, 4096, 70000})
        each_type<bf16, float>([&]<class T>(T) { add_kernel<T>(items, "add_differences", differences<T>, n); });
}

}  // namespace llmc::check
