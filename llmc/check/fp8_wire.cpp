// Gradients between ranks in FP8: the cast with what it owes, and the sum, against their definitions, byte by byte.
#include "llmc/check/families.h"
#include "llmc/check/reference_fp8_wire.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kWorld = 3;
constexpr size_t kCounts[] = {4099, 4096};  // element by element, and four at a time
constexpr float kLossScale = 1024.0f;

// From block to block of other sizes, and in one block something that is not finite.
std::vector<float> uneven_gradients(size_t n) {
    std::vector<float> values = reference::random_normal<float>(n, 1.0f, 110);
    for (size_t i = 0; i < n; i++) values[i] *= power_of_two(static_cast<int>(i / 100 % 60) - 40);
    values[n / 2] = float_from_bits(kFloatInfinityBits);
    return values;
}

std::string check_cast(stream_t stream) {
    for (const size_t count : kCounts) {
        const size_t n = kWorld * count;
        const std::vector<float> values = uneven_gradients(n);
        const auto owed = reference::random_normal<bf16>(n, 1e-6f, 111);
        const reference::CastPieces expected = reference::cast_pieces(values, owed, kWorld, count, kLossScale);
        Trial trial(stream);
        const float *inp = trial.input(values), *loss_scale = trial.input(std::vector<float>{kLossScale});
        const int32_t* skips = trial.input(std::vector<int32_t>{0});
        uint8_t* pieces = trial.result<uint8_t>("pieces", {{"byte ", expected.pieces.size()}});
        bf16* residual = trial.result("residual", {{"", n}}, owed);
        trial.run_twice([&] { cast_pieces(pieces, inp, kWorld, count, {residual, loss_scale, skips}, stream); });
        trial.equal(pieces, expected.pieces);
        trial.equal(residual, expected.residual);
        if (!trial.problem().empty()) return trial.problem();
    }
    return "";
}

std::string check_sum(stream_t stream) {
    for (const size_t count : kCounts) {
        const size_t n = kWorld * count;
        std::vector<float> values = uneven_gradients(n);
        values[n / 2] = 1.0f;
        const std::vector<uint8_t> pieces =
            reference::cast_pieces(values, std::vector<bf16>(n), kWorld, count, 1).pieces;
        const auto before = reference::random_normal<float>(count, 1.0f, 112);
        Trial trial(stream);
        const uint8_t* inp = trial.input(pieces);
        float* sum = trial.result("sum", {{"", count}}, before);
        trial.run_twice([&] { sum_fp8_pieces(sum, inp, kWorld, count, true, stream); });
        trial.equal(sum, reference::sum_fp8_pieces(pieces, kWorld, count, before));
        if (!trial.problem().empty()) return trial.problem();
    }
    return "";
}

}  // namespace

void add_fp8_wire(Items& items, const KernelUse& use) {
    if (!use.fp8_wire) return;
    items.push_back({"cast_pieces fp8", "kernels", "", check_cast});
    items.push_back({"sum_fp8_pieces", "kernels", "", check_sum});
}

}  // namespace llmc::check
