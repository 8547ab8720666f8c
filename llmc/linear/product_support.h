// The products that cuBLASLt supports: FP8 products by its version and the card, as far as known without calling it,
// and the choice among the algorithms that it proposes. This code needs no CUDA, so that it is tested without a GPU.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/linear/matmul.h"

namespace llmc {

// Versions of cuBLASLt's header (CUBLAS_VERSION) and library (cublasLtGetVersion()): 120903 is 12.9.3. A feature needs
// both.
struct LtVersions {
    size_t compiled = 0, loaded = 0;
};
constexpr LtVersions kNewestLt = {SIZE_MAX, SIZE_MAX};
std::string lt_version_text(size_t version);

// Why a card of this compute capability (90 for sm_90) has no FP8 products with such scales, and what would help. "" if
// it has them.
std::string why_not_native(Fp8Scaling scaling, const LtVersions& versions, int compute_capability);

// The workspace that cuBLAS recommends for Hopper, then smaller ones for when memory is short.
constexpr size_t kLtWorkspaces[] = {size_t{32} << 20, size_t{4} << 20, 0};
constexpr size_t kLtWorkspaceBytes = kLtWorkspaces[0];

// Sizes of the buffers for operands of FP8 products that a card lacks, dequantized to BF16, in elements.
struct EmulationSizes {
    size_t first = 0, second = 0;

    void cover(const Gemm& product);
    void cover(const Matmul::LinearShape& shape);  // the three products of a layer
    size_t bytes() const { return (first + second) * sizeof(bf16); }
};

// Which of a library's proposed algorithms computes a product, or emulation if the library refuses all of them. Chosen
// when the product runs for the first time, and kept, because another algorithm would give other bits.
class ProductWay {
public:
    ProductWay() = default;
    // `proposed`: number of algorithms, best first. `has_emulation`: the product can be emulated.
    ProductWay(int proposed, bool has_emulation) : proposed_(proposed), has_emulation_(has_emulation) {}

    // Runs the product once. attempt(i) runs algorithm i, or returns false if the library refuses it before doing
    // anything; it throws other errors. Returns false if nothing works, or if the algorithm that worked before is
    // refused now.
    template <class Attempt, class Emulate>
    bool run(Attempt&& attempt, Emulate&& emulate) {
        for (; at_ < proposed_; at_++) {
            if (attempt(at_)) return found_ = true;
            if (found_) return false;
        }
        if (!has_emulation_) return false;
        emulate();
        return true;
    }
    // True if no algorithm is left and the product was emulated.
    bool emulated() const { return has_emulation_ && at_ == proposed_; }
    int algorithm() const { return at_; }

private:
    int proposed_ = 0, at_ = 0;
    bool has_emulation_ = false, found_ = false;
};

}  // namespace llmc
