// The scales of an FP8 operand: one in total, one per row of op(A) or column of op(B), or one per block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace virtual_gpu {

// For an operand with `outer` rows (A) or columns (B) whose products are summed over `inner` elements.
class Scales {
public:
    // Reads all scales of the mode from device memory. Reads none if `address` is null.
    Scales(const void* address, int mode, uint64_t outer, uint64_t inner, const char* what);

    // Elements along the sum that share a scale; 0 if all do.
    uint64_t block() const;
    float at(uint64_t outer, uint64_t inner) const { return values_[index(outer, inner)]; }

private:
    size_t index(uint64_t outer, uint64_t inner) const;
    void read_mx(const uint8_t* address, const char* what);

    int mode_;
    uint64_t outer_, inner_;
    std::vector<float> values_;
};

}  // namespace virtual_gpu
