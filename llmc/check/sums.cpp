// Sums: biases and their gradients at the run's widths, squares of gradients, and pieces of several ranks.
#include <algorithm>
#include <set>

#include "llmc/check/families.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"
#include "llmc/comm/rank_reduce.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"

namespace llmc::check {
namespace {

constexpr int kRows = 149;

template <class Real>
std::string check_add_bias(int columns, stream_t stream) {
    const size_t C = static_cast<size_t>(columns);
    const auto before = reference::random_normal<Real>(kRows * C, 3.0f, 78),
               b = reference::random_normal<Real>(C, 1.0f, 79);
    Trial trial(stream);
    const Real* bias = trial.input(b);
    Real* out = trial.result("out", {{"n", kRows}, {"", C}}, before);
    trial.run_twice([&] { add_bias<Real>(out, bias, kRows, columns, stream); });
    std::vector<Real> expected(before.size());
    for (size_t i = 0; i < expected.size(); i++) expected[i] = reference::stored_sum(before[i], b[i % C]);
    trial.equal(out, expected);
    return trial.problem();
}

template <class Real>
std::string check_bias_gradient(int columns, stream_t stream) {
    const size_t C = static_cast<size_t>(columns);
    const auto g = reference::random_normal<Real>(kRows * C, 1.0f, 71, 0.5f);
    Trial trial(stream);
    const Real* dout = trial.input(g);
    float* dbias = trial.result<float>("dbias", {{"", C}});
    float* scratch = trial.scratch<float>(bias_gradient_scratch(kRows, columns));
    trial.run_twice([&] {
        for (const bool accumulate : {false, true})
            bias_gradient<Real>(dbias, scratch, dout, kRows, columns, accumulate, stream);
    });
    std::vector<double> expected = reference::column_sums(reference::to_floats(g), columns);
    for (double& sum : expected) sum *= 2;
    trial.within(dbias, Bounded(expected, reference::kColumnSumError, 2.0 + kRows));
    return trial.problem();
}

std::string check_global_norm(stream_t stream) {
    constexpr size_t n = 70001;  // three blocks, whose threads take several strides, and a tail of one element
    const auto grad = reference::random_normal<float>(n, 0.01f, 72, 0.002f);
    Trial trial(stream);
    const float* device_grad = trial.input(grad);
    double* partials = trial.result<double>("partials", {{"", global_norm_blocks(n)}});
    trial.run_twice([&] { global_norm_partials(partials, device_grad, n, stream); });
    Bounded expected(1);
    for (const float g : grad) expected.values[0] += static_cast<double>(g) * static_cast<double>(g);
    // Eight squares are added in FP32, all positive: at most eight roundings of each.
    expected.bounds[0] = 8 * reference::kUnit * expected.values[0];
    double sum = 0;
    for (const double part : trial.read(partials)) sum += part;
    trial.note(not_within({"sum of partials", {{"", 1}}}, {sum}, expected));
    return trial.problem();
}

// ---- several ranks -------------------------------------------------------------------------------------------------

constexpr size_t kWorld = 3;
constexpr size_t kCounts[] = {4099, 4096};  // element by element, and in 16-byte accesses

template <class T>
std::string check_sum_pieces(stream_t stream) {
    for (const size_t count : kCounts) {
        const auto pieces = reference::random_normal<T>(kWorld * count, 100.0f, 73);
        std::vector<float> sums = reference::random_normal<float>(count, 100.0f, 74);
        Trial trial(stream);
        const T* inp = trial.input(pieces);
        float* out = trial.result<float>("sum", {{"", count}}, sums);
        trial.run_twice([&] { sum_pieces<T>(out, inp, kWorld, count, true, stream); });
        for (size_t r = 0; r < kWorld; r++)
            for (size_t i = 0; i < count; i++) sums[i] += to_float(pieces[r * count + i]);
        trial.equal(out, sums);
        if (!trial.problem().empty()) return trial.problem();
    }
    return "";
}

std::string check_largest_piece(stream_t stream) {
    const size_t count = kCounts[0];
    const auto pieces = reference::random_normal<float>(kWorld * count, 100.0f, 75);
    Trial trial(stream);
    const float* inp = trial.input(pieces);
    float* out = trial.result<float>("max", {{"", count}});
    trial.run_twice([&] { reduce_pieces<float>(out, inp, kWorld, count, ReduceOp::max, stream); });
    std::vector<float> largest(pieces.begin(), pieces.begin() + static_cast<long>(count));
    for (size_t i = 0; i < pieces.size(); i++) largest[i % count] = std::max(largest[i % count], pieces[i]);
    trial.equal(out, largest);
    return trial.problem();
}

std::string check_add(stream_t stream) {
    constexpr size_t n = 5003;
    const auto a = reference::random_normal<float>(n, 1.0f, 76), b = reference::random_normal<float>(n, 10.0f, 77);
    Trial trial(stream);
    const float* inp = trial.input(b);
    float* out = trial.result<float>("sum", {{"", n}}, a);
    trial.run_twice([&] { add(out, out, inp, n, stream); });
    std::vector<float> sum = a;
    for (size_t i = 0; i < n; i++) sum[i] += b[i];
    trial.equal(out, sum);
    return trial.problem();
}

template <class Real>
void add_biases(Items& items, const KernelUse& use) {
    const int qkv = use.attention_heads().qkv_width();
    for (const int width : std::set{use.channels, qkv, use.fc_channels()})
        items.push_back({strprintf("add_bias %s C=%d", type_name<Real>(), width), "kernels", "",
                         [width](stream_t s) { return check_add_bias<Real>(width, s); }});
    for (const int width : std::set{use.channels, qkv})
        items.push_back({strprintf("bias_gradient %s C=%d", type_name<Real>(), width), "kernels", "",
                         [width](stream_t s) { return check_bias_gradient<Real>(width, s); }});
}

}  // namespace

void add_sums(Items& items, const KernelUse& use) {
    if (use.biases) use.bf16 ? add_biases<bf16>(items, use) : add_biases<float>(items, use);
    items.push_back({"global_norm_partials", "kernels", "", check_global_norm});
    if (!use.several_ranks) return;
    items.push_back({"sum_pieces fp32", "kernels", "", check_sum_pieces<float>});
    if (use.bf16) items.push_back({"sum_pieces bf16", "kernels", "", check_sum_pieces<bf16>});
    items.push_back({"reduce_pieces max", "kernels", "", check_largest_piece});
    items.push_back({"add fp32", "kernels", "", check_add});
}

}  // namespace llmc::check
