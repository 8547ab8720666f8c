// Measures what a precision does to a model's predictions: the model and a reference of the same weights in another
// precision evaluate the same tokens. For a model that predicts its data well, the divergence KL(reference || model)
// has the mean of the difference of the losses, and a far smaller error, because it does not depend on the token that
// follows in the data.
#pragma once
#include <array>

namespace llmc {

class Comm;
template <class Real>
class Trainer;

// Means per token, in nats. Standard errors follow from the differences between sequences, because the tokens of a
// sequence depend on each other; that of a single sequence is NaN.
struct DivergenceResult {
    double loss = 0;                              // of the reference
    double difference = 0, difference_error = 0;  // the model's loss minus the reference's
    double kl = 0, kl_error = 0;
};

class Divergence {
public:
    // Adds a batch of this rank, which `model` has evaluated last. Evaluates it with the reference. A collective.
    template <class Real>
    void add(Trainer<Real>& model, Trainer<Real>& reference, const int* tokens, const int* targets);
    // Over all ranks. A collective.
    DivergenceResult result(const Comm& comm) const;

private:
    // Number of sequences, sum of their losses, and sums and sums of squares of differences and divergences.
    std::array<double, 6> sums_ = {};
};

}  // namespace llmc
