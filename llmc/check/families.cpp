// Helpers for several families: runs with fewer heads, and documents (families.h).
#include "llmc/check/families.h"

#include <algorithm>
#include <set>

namespace llmc::check {

AttentionHeads few_heads(const KernelUse& use) {
    const int group = use.heads / use.kv_heads, kv_heads = std::min(use.kv_heads, group > 1 ? 2 : 3);
    return {std::min(group, 4) * kv_heads, kv_heads, use.head_dim};
}

std::string name_of(const AttentionHeads& heads) {
    return fmt::format("HD={} NH={}", heads.HD, heads.NH) +
           (heads.NKV < heads.NH ? fmt::format(" NKV={}", heads.NKV) : "");
}

std::vector<reference::AttentionShape> example_shapes(const KernelUse& use, int B, int T) {
    const AttentionHeads heads = few_heads(use);
    std::vector<reference::AttentionShape> shapes;
    for (const int window : std::set{0, std::min(use.window, T / 4)})
        shapes.push_back({B, T, heads.NH, heads.HD, heads.NKV, 0, window, example_documents(use, B, T)});
    return shapes;
}

std::string name_of(const reference::AttentionShape& shape) {
    return name_of(shape.heads()) + (shape.window > 0 ? fmt::format(" window={}", shape.window) : "") +
           (shape.documents.empty() ? "" : " in documents");
}

std::vector<int> example_documents(const KernelUse& use, int B, int T) {
    std::vector<int> begins;
    for (int b = 0; use.documents && b < B; b++)
        for (int begin = 0, length = 1; begin < T; begin += length * length * (b + 1), length++)
            begins.resize(static_cast<size_t>(b * T + std::min(T, begin + length * length * (b + 1))), begin);
    return begins;
}

}  // namespace llmc::check
