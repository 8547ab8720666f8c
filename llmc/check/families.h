// The families of kernels. A family's file holds one specification for each of its kernels: inputs, the kernel's call,
// an FP64 reference and bounds. add_FAMILY() lists the specifications at the shapes of a run, for the card check;
// add_FAMILY_tests() lists them at small, odd and large shapes, for test/kernels/.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "llmc/check/kernel_checks.h"
#include "llmc/check/reference.h"
#include "llmc/check/trial.h"

namespace llmc::check {

using Items = std::vector<CheckItem>;

// Adds an item that runs `specification` on a trial of its own, and returns it.
using Specification = std::function<void(Trial&)>;
inline CheckItem& add_kernel(Items& items, const std::string& name, const Specification& specification) {
    items.push_back({name, "kernels", "", [specification](stream_t stream) {
                         Trial trial(stream);
                         specification(trial);
                         return trial.problem();
                     }});
    return items.back();
}

template <class T>
constexpr const char* type_name() {
    if (sizeof(T) == 1) return std::is_same_v<T, e4m3> ? "e4m3" : "e5m2";
    return sizeof(T) == 2 ? "bf16" : "fp32";
}

// Adds a specification at a shape, which is a number of elements or names itself: "layernorm_forward bf16 N=149 C=768".
// Without T, the name has no type.
template <class T = void, class Shape>
CheckItem& add_kernel(Items& items, const std::string& kernel, void (*specification)(Trial&, Shape),
                      const std::type_identity_t<std::remove_cvref_t<Shape>>& shape) {
    std::string name = kernel;
    if constexpr (!std::is_void_v<T>) name += std::string(" ") + type_name<T>();
    if constexpr (std::is_same_v<Shape, size_t>)
        name += fmt::format(" n={}", shape);
    else
        name += shape.text();
    return add_kernel(items, name, [=](Trial& t) { specification(t, shape); });
}

// The shape of a matrix.
struct Rows {
    int N, C;
    size_t n() const { return size_t{1} * N * C; }
    std::string text() const { return fmt::format(" N={} C={}", N, C); }
};

void add_hardware(Items& items, const KernelUse& use);  // casts, copies, tensor cores
void add_embedding(Items& items, const KernelUse& use);
void add_embedding_tests(Items& items);
void add_norms(Items& items, const KernelUse& use);
void add_norm_tests(Items& items);
void add_rope(Items& items, const KernelUse& use);  // with QK-norm
void add_rope_tests(Items& items);
void add_attention(Items& items, const KernelUse& use);
void add_attention_tests(Items& items);
void add_decode_tests(Items& items);  // attention against a cache
void add_activations(Items& items, const KernelUse& use);
void add_activation_tests(Items& items);
void add_product_with_gelu_tests(Items& items);  // on Hopper
void add_candidates(Items& items, const KernelUse& use);
void add_classifier(Items& items, const KernelUse& use);
void add_classifier_tests(Items& items);
void add_sums(Items& items, const KernelUse& use);  // biases, norms, sums over ranks
void add_sum_tests(Items& items);
void add_piece_tests(Items& items);  // sums over ranks
void add_clipping(Items& items, const KernelUse& use);
void add_clipping_tests(Items& items);
void add_optimizer(Items& items, const KernelUse& use);
void add_optimizer_tests(Items& items);
void add_muon(Items& items, const KernelUse& use);
void add_muon_tests(Items& items);
void add_step(Items& items, const KernelUse& use);
void add_quantize(Items& items, const KernelUse& use);  // one scale per tensor
void add_quantize_tests(Items& items);
void add_quantize_blocks(Items& items, const KernelUse& use);
void add_quantize_blocks_tests(Items& items);
void add_observers(Items& items, const KernelUse& use);  // FP8's outliers, probes and smoothing
void add_observer_tests(Items& items);

// The run's attention with fewer heads, so that checks are quick: at most three, or two key heads that up to four query
// heads share.
AttentionHeads few_heads(const KernelUse& use);
std::string name_of(const AttentionHeads& heads);  // "HD=64 NH=8 NKV=2", or without NKV if it equals NH

// Shapes of the run's attention with B rows of T tokens: over all keys, and with a window if some layers have one.
std::vector<reference::AttentionShape> example_shapes(const KernelUse& use, int B, int T);
std::string name_of(const reference::AttentionShape& shape);  // "HD=64 NH=8 window=37 in documents"

// The argument `documents` (B, T) of llmc/kernels/attention.h, with documents of one token and longer ones; empty if
// the run has no documents.
std::vector<int> example_documents(const KernelUse& use, int B, int T);

// Calls add(First()) or add(Second()).
template <class First, class Second, class Add>
void with_type(bool is_first, const Add& add) {
    if (is_first)
        add(First());
    else
        add(Second());
}
// Calls add() with a value of each type.
template <class... Types, class Add>
void each_type(const Add& add) {
    (add(Types()), ...);
}

}  // namespace llmc::check
