// Clipping by values and by tensors, against FP64, in whole updates of plain SGD, whose weights move by the clipped
// gradient.
#include "llmc/optim/optimizer.h"

#include "llmc/device/transfer.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::vector<Unit> units() {
    std::vector<Unit> all(2);
    all[0] = {"embedding", {{"wte", {37, 24}, true}, {"bias", {5}, false}}};
    all[1] = {"block", {{"weight", {2000, 33}, true}, {"norm", {24}, false}}};  // sums of two parts and a tail
    return all;
}

// Gradients of different magnitude for each tensor.
std::vector<float> gradient_of(size_t unit, size_t tensor, size_t count, float scale) {
    const size_t number = 2 * unit + tensor;
    std::vector<float> values =
        random_normal<float>(count, 1e-3f * static_cast<float>(1 + 40 * number), static_cast<uint32_t>(number));
    for (float& value : values) value *= scale;
    return values;
}

struct Updated {
    std::vector<std::vector<float>> moved;  // by tensor
    double norm;
};

Updated update(ClipKind kind, double clip, float scale) {
    const stream_t stream = test_stream();
    const ParameterTable table(units(), 1);
    const ShardLayout layout(table, Comm::self());
    Weights<float> weights(layout);
    Gradients gradients(layout);
    OptimizerSetup setup{.schedule = {ScheduleKind::constant, 1, 0, 10, 0}, .clip = clip};
    setup.optimizer = {.kind = OptimizerKind::sgd, .weight_decay = 0, .momentum = 0};
    setup.optimizer.clip_kind = kind;
    setup.loss_scale.initial = scale;
    Optimizer<float> optimizer(setup, weights, gradients);
    weights.allocate(stream);
    gradients.allocate(stream);
    optimizer.allocate(stream);
    DeviceArray<double> loss(std::vector<double>{1.0});
    gradients.begin_micro_step(true, true);
    for (size_t u = 0; u < 2; u++) {
        gradients.acquire(u, stream);
        for (size_t t = 0; t < 2; t++) {
            const size_t count = table.unit(u).tensors[t].count();
            weights.set_tensor(u, t, std::vector<float>(count), stream);
            write_through(gradients.gradient(u, t), gradient_of(u, t, count, scale).data(), count, stream);
        }
        gradients.reduce(u, stream);
    }
    optimizer.update(loss, nullptr, stream);
    Updated result;
    for (size_t u = 0; u < 2; u++)
        for (size_t t = 0; t < 2; t++) {
            result.moved.push_back(weights.get_tensor(u, t, stream));
            for (float& value : result.moved.back()) value = 0 - value;
        }
    result.norm = read_back(optimizer.state(), stream).norm;
    return result;
}

double norm_of(const std::vector<float>& values) {
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(squares);
}

}  // namespace

TEST_CASE("clipping: each kind bounds its quantity at any loss scale, and the reported norm is from before") {
    double whole = 0;
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < 4; i++) {
        gradients.push_back(gradient_of(i / 2, i % 2, units()[i / 2].tensors[i % 2].count(), 1));
        whole = std::hypot(whole, norm_of(gradients.back()));
    }
    for (const ClipKind kind : {ClipKind::norm, ClipKind::tensor, ClipKind::value}) {
        CAPTURE(static_cast<int>(kind));
        const double clip = kind == ClipKind::value ? 0.15 : 0.5;
        const Updated found = update(kind, clip, 1), scaled = update(kind, clip, 4096), free = update(kind, 0, 1);
        CHECK(same_bits(scaled.moved, found.moved));
        CHECK(found.norm == doctest::Approx(whole).epsilon(1e-6));
        CHECK(found.norm == free.norm);
        size_t clipped = 0;  // tensors
        for (size_t i = 0; i < 4; i++) {
            CAPTURE(i);
            CHECK(same_bits(free.moved[i], gradients[i]));
            const double norm = kind == ClipKind::norm ? whole : norm_of(gradients[i]);
            size_t wrong = 0;
            for (size_t k = 0; k < gradients[i].size(); k++) {
                const double g = static_cast<double>(gradients[i][k]), moved = static_cast<double>(found.moved[i][k]);
                const double expected =
                    kind == ClipKind::value ? std::clamp(g, -clip, clip) : g * std::min(1.0, clip / norm);
                // Sums of squares err by 8 roundings of FP32; norm, factor and product by one each.
                wrong += std::fabs(moved - expected) > 8 * 0x1p-24 * std::fabs(g);
            }
            CHECK(wrong == 0);
            clipped += !same_bits(found.moved[i], gradients[i]);
        }
        CHECK(clipped == (kind == ClipKind::norm ? 4 : 2));  // the larger ones
    }
}

TEST_CASE("clipping: only a bound by tensor takes memory") {
    const ParameterTable table(units(), 1);
    const ShardLayout layout(table, Comm::self());
    Weights<float> weights(layout);
    Gradients gradients(layout);
    const auto bytes = [&](ClipKind kind, double clip) {
        OptimizerSetup setup{.schedule = {ScheduleKind::constant, 1, 0, 10, 0}, .clip = clip};
        setup.optimizer.clip_kind = kind;
        return Optimizer<float>(setup, weights, gradients).workspace_bytes();
    };
    const size_t without = bytes(ClipKind::norm, 0);
    CHECK(bytes(ClipKind::norm, 1) == without);
    CHECK(bytes(ClipKind::value, 1) == without);
    CHECK(bytes(ClipKind::tensor, 0) == without);
    CHECK(bytes(ClipKind::tensor, 1) > without);
}
