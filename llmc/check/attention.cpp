// Attention at the run's head dimension, with several heads and a length that fills no tile, against FP64.
#include "llmc/kernels/attention.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_attention.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kBatch = 2;
constexpr int kLength = 277;  // several tiles of 64 and of 128 rows, and a part of one

Bounded with_floor(const std::vector<double>& values, const std::vector<double>& bounds) {
    return Bounded(values, bounds).widened(0, reference::kAttentionFloor);
}

void compare_norms(Trial& trial, const reference::AttentionShape& s, const std::vector<double>& dqkv,
                   const reference::Attention& expected, double u) {
    const reference::AttentionNorms norms = reference::attention_norms(u);
    for (const auto& [name, which, limit] :
         {std::tuple{"dq", 0, norms.dq_dk}, {"dk", 1, norms.dq_dk}, {"dv", 2, norms.dv}})
        trial.note(norm_not_within({name, {}}, reference::part_of_dqkv(dqkv, s, which),
                                   reference::part_of_dqkv(expected.dqkv, s, which), limit));
}

template <class Real>
std::string check_attention(const reference::AttentionShape& s, stream_t stream) {
    const size_t B = static_cast<size_t>(s.B), T = static_cast<size_t>(s.T), NH = static_cast<size_t>(s.NH),
                 HD = static_cast<size_t>(s.HD);
    constexpr bool narrow = sizeof(Real) == 2;
    const double u = reference::attention_rounding(narrow);
    const auto qkv = reference::random_normal<Real>(s.qkv_elements(), 1.0f, 11),
               dout = reference::random_normal<Real>(s.elements(), 1.0f, 12);
    const auto expected = reference::attention(s, reference::to_doubles(qkv), reference::to_doubles(dout), u,
                                               reference::attention_slack(narrow));
    Trial trial(stream);
    const Real *device_qkv = trial.input(qkv), *device_dout = trial.input(dout);
    const int* documents = trial.input_or_none(s.documents);
    const std::vector<Axis> elements = {{"b", B}, {"t", T}, {"h", NH}, {"", HD}},
                            rows = {{"b", B}, {"h", NH}, {"t", T}};
    Real *out = trial.result<Real>("out", elements), *low = narrow ? trial.result<Real>("out_low", elements) : nullptr;
    float *lse = trial.result<float>("lse", rows), *delta = trial.result<float>("delta", rows);
    Real* dqkv =
        trial.result<Real>("dqkv", {{"b", B}, {"t", T}, {"head", static_cast<size_t>(s.heads().rows())}, {"", HD}});
    trial.run_twice([&] {
        attention_forward<Real>(out, low, lse, device_qkv, s.B, s.T, s.heads(), stream, documents);
        attention_backward<Real>(dqkv, delta, device_dout, device_qkv, out, low, lse, s.B, s.T, s.heads(), stream,
                                 documents);
    });

    trial.within(out, with_floor(expected.out, expected.out_bound));
    std::vector<double> sum = reference::to_doubles(trial.read(out));
    if (narrow) {
        const std::vector<double> rest = reference::to_doubles(trial.read(low));
        for (size_t i = 0; i < sum.size(); i++) sum[i] += rest[i];
    }
    const ArrayShape whole{"out + out_low", elements};
    trial.note(not_within(whole, sum, with_floor(expected.out, expected.out_sum_bound)));
    trial.note(norm_not_within(whole, sum, expected.out, reference::attention_norms(u).out_sum));
    trial.within(lse, Bounded(expected.lse, reference::kAttentionLseError, 1.0));
    trial.within(delta, with_floor(expected.delta, expected.delta_bound));
    trial.within(dqkv, with_floor(expected.dqkv, expected.dqkv_bound));
    compare_norms(trial, s, reference::to_doubles(trial.read(dqkv)), expected, u);
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    for (const reference::AttentionShape& s : example_shapes(use, kBatch, kLength))
        items.push_back({strprintf("attention %s %s", type_name<Real>(), name_of(s).c_str()), "kernels", "",
                         [s](stream_t stream) { return check_attention<Real>(s, stream); }});
}

}  // namespace

void add_attention(Items& items, const KernelUse& use) { use.bf16 ? add<bf16>(items, use) : add<float>(items, use); }

}  // namespace llmc::check
