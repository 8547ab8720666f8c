// Measures the effect of rounding on one micro-batch, for `train_gpt inspect`: gradients compared with those in FP32,
// and the errors of FP8 products.
#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "llmc/data/micro_batch.h"
#include "llmc/linear/linear.h"
#include "llmc/shard/arena.h"

namespace llmc {

template <class Real>
class Trainer;

// The loss and the gradients of a micro-batch, on the host.
struct InspectedBatch {
    double loss = 0;                                      // mean over its targets
    std::map<std::string, std::vector<float>> gradients;  // of the mean loss, by tensor
};
// `weight` as in Trainer::micro_step(). The trainer cannot take a step afterwards.
template <class Real>
InspectedBatch inspect_batch(Trainer<Real>& trainer, const MicroBatch& batch, float weight);

// Sums over the elements of a gradient g and of its reference f.
struct GradientSums {
    double squares = 0, reference_squares = 0, product = 0;

    GradientSums() = default;
    GradientSums(const std::vector<float>& gradient, const std::vector<float>& reference);
    GradientSums& operator+=(const GradientSums& other);
    double cosine() const;  // of their angle
    // g.f / f.f shows a bias, because errors that are independent of f leave it at 1.
    double gain() const { return product / reference_squares; }
};

// How far the products of layers in FP8 are from the same products in BF16: ||FP8 - BF16|| / ||BF16||. A BF16 trainer
// computes the operands: while this object exists, each backward of its layers is followed by the layer's three
// products in BF16, and in FP8 by the layer of the same name in another trainer, with that trainer's scales.
class MatmulErrors {
public:
    // Both trainers have the same weights. Steps of `fp8` have ended, and its gradients have been read.
    MatmulErrors(Trainer<bf16>& fp8, Trainer<bf16>& bf16);
    ~MatmulErrors();
    MatmulErrors(MatmulErrors&&) = delete;

    enum Kind { forward, dgrad, wgrad, kKinds };
    static constexpr const char* kNames[] = {"forward", "dgrad", "wgrad"};
    struct Sums {
        double differences = 0, squares = 0;
    };
    using OfLayer = std::array<Sums, kKinds>;
    static double error(const Sums& sums);  // NaN if all values are 0
    const std::map<std::string, OfLayer>& by_layer() const { return by_layer_; }

private:
    void multiply(Linear<bf16>& layer, const Operand<bf16>& x, const Gradient<bf16>& dout, const LayerPass& pass);

    Trainer<bf16>&fp8_, &bf16_;
    Arena arena_{MemoryKind::workspace};
    bf16 *out_ = nullptr, *dinp_ = nullptr;  // (N, OC), (N, C)
    float* dweight_ = nullptr;               // (OC, C)
    std::map<std::string, OfLayer> by_layer_;
};

}  // namespace llmc
