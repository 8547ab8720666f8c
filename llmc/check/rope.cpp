// RoPE, alone or with QK-norm, at the run's head dimension against FP64.
#include "llmc/kernels/rope.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_rope.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kBatch = 2, kLength = 149, kRows = kBatch * kLength;
constexpr float kTheta = 10000.0f, kEps = 0.01f;  // large enough for its absence to show

// Inputs on the host, and the table on the device.
template <class Real>
struct Inputs {
    reference::RopeRows rows;
    std::vector<Real> qkv, dqkv;
    RopeTable table;
    std::vector<Axis> axes;

    Inputs(Trial& trial, const AttentionHeads& heads)
        : rows{heads, 0, kLength, rope_values(kTheta, {}, heads.HD, kLength)},
          qkv(reference::random_normal<Real>(elements(heads), 1.5f, 151, 0.2f)),
          dqkv(reference::random_normal<Real>(elements(heads), 1.0f, 152, 0.1f)),
          table{trial.input(rows.table.cos), trial.input(rows.table.sin), kLength},
          axes{{"n", kRows}, {"head", static_cast<size_t>(heads.rows())}, {"", static_cast<size_t>(heads.HD)}} {}

    static size_t elements(const AttentionHeads& heads) { return kRows * static_cast<size_t>(heads.qkv_width()); }
};

// As stored; what passes through keeps its bits.
template <class Real>
Bounded stored(const reference::Rotated& rotated) {
    Bounded result = rounded<Real>(Bounded(rotated.values, rotated.bounds));
    for (size_t i = 0; i < result.bounds.size(); i++)
        if (rotated.bounds[i] == 0) result.bounds[i] = 0;
    return result;
}

template <class Real>
std::string check_rope(const AttentionHeads& heads, stream_t stream) {
    Trial trial(stream);
    const Inputs<Real> inputs(trial, heads);
    Real *qkv = trial.result("qkv", inputs.axes, inputs.qkv), *dqkv = trial.result("dqkv", inputs.axes, inputs.dqkv);
    trial.run_twice([&] {
        rope_forward<Real>(qkv, inputs.table, 0, kRows, kLength, heads, stream);
        rope_backward<Real>(dqkv, inputs.table, 0, kRows, kLength, heads, stream);
    });
    trial.within(qkv, stored<Real>(reference::rope(inputs.rows, reference::to_doubles(inputs.qkv), false)));
    trial.within(dqkv, stored<Real>(reference::rope(inputs.rows, reference::to_doubles(inputs.dqkv), true)));
    return trial.problem();
}

template <class Real>
std::string check_qk_norm(const AttentionHeads& heads, bool has_gains, stream_t stream) {
    const size_t HD = static_cast<size_t>(heads.HD);
    Trial trial(stream);
    const Inputs<Real> inputs(trial, heads);
    const Real* inp = trial.input(inputs.qkv);
    Real *out = trial.result<Real>("out", inputs.axes), *dqkv = trial.result("dqkv", inputs.axes, inputs.dqkv);
    reference::QkNormGains host_gains;
    QkGains<const Real> gains{nullptr, nullptr};
    QkGains<float> dgains{nullptr, nullptr};
    float* scratch = nullptr;
    if (has_gains) {
        const auto query = reference::random_normal<Real>(HD, 1.0f, 153, 0.5f),
                   key = reference::random_normal<Real>(HD, 1.0f, 154, 0.5f);
        host_gains = {reference::to_doubles(query), reference::to_doubles(key)};
        gains = {trial.input(query), trial.input(key)};
        dgains = {trial.result<float>("dgain of queries", {{"", HD}}),
                  trial.result<float>("dgain of keys", {{"", HD}})};
        scratch = trial.scratch<float>(qk_norm_backward_scratch(kRows, heads));
    }
    trial.run_twice([&] {
        qk_norm_rope_forward<Real>(out, inp, gains, inputs.table, 0, kRows, kLength, heads, kEps, stream);
        qk_norm_rope_backward<Real>(dqkv, dgains, scratch, inp, gains, inputs.table, 0, kRows, kLength, heads, kEps,
                                    false, stream);
    });
    const auto x = reference::to_doubles(inputs.qkv);
    const double eps = static_cast<double>(kEps);
    trial.within(out, stored<Real>(reference::qk_norm_rope(inputs.rows, x, host_gains, eps)));
    const auto gradient =
        reference::qk_norm_rope_gradient(inputs.rows, x, reference::to_doubles(inputs.dqkv), host_gains, eps);
    trial.within(dqkv, stored<Real>(gradient.dqkv));
    if (!has_gains) return trial.problem();
    trial.within(dgains.query, Bounded(gradient.dgains[0], gradient.dgains_bounds[0]));
    trial.within(dgains.key, Bounded(gradient.dgains[1], gradient.dgains_bounds[1]));
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const AttentionHeads heads = few_heads(use);
    const bool gains = use.qk_gains;
    const std::string suffix = strprintf(" %s %s", type_name<Real>(), name_of(heads).c_str());
    if (use.qk_norm)
        items.push_back({"qk_norm_rope" + suffix + (gains ? "" : " without gains"), "kernels", "",
                         [=](stream_t s) { return check_qk_norm<Real>(heads, gains, s); }});
    else
        items.push_back({"rope" + suffix, "kernels", "", [heads](stream_t s) { return check_rope<Real>(heads, s); }});
}

}  // namespace

void add_rope(Items& items, const KernelUse& use) {
    if (!use.position_embedding) use.bf16 ? add<bf16>(items, use) : add<float>(items, use);
}

}  // namespace llmc::check
