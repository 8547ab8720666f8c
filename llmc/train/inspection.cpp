// Gradients of a micro-batch, and FP8 products next to those in BF16. See inspection.h.
#include "llmc/train/inspection.h"

#include <cmath>

#include "llmc/device/transfer.h"
#include "llmc/train/trainer.h"

namespace llmc {

template <class Real>
InspectedBatch inspect_batch(Trainer<Real>& trainer, const MicroBatch& batch, float weight) {
    trainer.begin_step({.micro_steps = 1});
    trainer.micro_step(batch, weight);
    const stream_t stream = trainer.stream();
    const Transformer<Real>& model = trainer.model();
    InspectedBatch result;
    result.loss = read_back(model.train_loss_sum(), stream) / read_back(model.train_loss_count(), stream);
    const float factor = 1 / (weight * read_back(trainer.optimizer().loss_scale(), stream));
    for (size_t u = 0; u < trainer.table().units().size(); u++) {
        const std::vector<ParameterTensor>& tensors = trainer.table().unit(u).tensors;
        for (size_t t = 0; t < tensors.size(); t++) {
            std::vector<float> gradient = trainer.gradients().get_gradient(u, t, stream);
            for (float& value : gradient) value *= factor;
            result.gradients[tensors[t].name] = std::move(gradient);
        }
    }
    return result;
}

template InspectedBatch inspect_batch(Trainer<float>&, const MicroBatch&, float);
template InspectedBatch inspect_batch(Trainer<bf16>&, const MicroBatch&, float);

GradientSums::GradientSums(const std::vector<float>& gradient, const std::vector<float>& reference) {
    for (size_t i = 0; i < gradient.size(); i++) {
        const double g = static_cast<double>(gradient[i]), f = static_cast<double>(reference[i]);
        squares += g * g;
        reference_squares += f * f;
        product += g * f;
    }
}

GradientSums& GradientSums::operator+=(const GradientSums& other) {
    squares += other.squares;
    reference_squares += other.reference_squares;
    product += other.product;
    return *this;
}

double GradientSums::cosine() const { return product / std::sqrt(squares * reference_squares); }

template <class T>
static void add_differences(MatmulErrors::Sums& sums, const std::vector<T>& actual, const std::vector<T>& expected) {
    for (size_t i = 0; i < expected.size(); i++) {
        const double value = static_cast<double>(to_float(expected[i]));
        const double difference = static_cast<double>(to_float(actual[i])) - value;
        sums.differences += difference * difference;
        sums.squares += value * value;
    }
}

double MatmulErrors::error(const Sums& sums) { return std::sqrt(sums.differences / sums.squares); }

MatmulErrors::MatmulErrors(Trainer<bf16>& fp8, Trainer<bf16>& bf16) : fp8_(fp8), bf16_(bf16) {
    for (const Linear<llmc::bf16>* layer : bf16.model().linear().all()) {
        const size_t N = layer->shape().N, C = layer->shape().C, OC = layer->shape().OC;
        arena_.plan_shared("out", &out_, N * OC);
        arena_.plan_shared("dinp", &dinp_, N * C);
        arena_.plan_shared("dweight", &dweight_, OC * C);
    }
    arena_.allocate();
    bf16.model().linear().observe([this](auto&... arguments) { multiply(arguments...); });
}

MatmulErrors::~MatmulErrors() { bf16_.model().linear().observe({}); }

void MatmulErrors::multiply(Linear<bf16>& layer, const Operand<bf16>& x, const Gradient<bf16>& dout,
                            const LayerPass& pass) {
    Linear<bf16>& in_fp8 = fp8_.model().linear().find(layer.name());
    if (!in_fp8.is_fp8()) return;
    const int N = pass.N, C = layer.shape().C, OC = layer.shape().OC;
    const size_t n = N;
    layer.forward(out_, x, pass);
    bf16_.matmul().dgrad(dinp_, dout.value, bf16_.weights().weight(layer.weight_place()), N, C, OC, pass.stream);
    bf16_.matmul().wgrad(dweight_, dout.value, x.value, N, C, OC, false, pass.stream);
    const std::vector<bf16> out = read_back(out_, n * OC, pass.stream), dinp = read_back(dinp_, n * C, pass.stream);
    const std::vector<float> dweight = read_back(dweight_, static_cast<size_t>(OC) * C, pass.stream);

    LayerPass pass_in_fp8 = pass;
    pass_in_fp8.accumulate = false;
    pass_in_fp8.stream = fp8_.stream();
    const auto [unit, tensor] = in_fp8.weight_place();
    fp8_.gradients().begin_micro_step(true, true);
    fp8_.gradients().acquire(unit, fp8_.stream());
    {
        const UnitInUse<bf16> in_use(fp8_.weights(), unit, fp8_.stream());
        const Operand<bf16> codes = in_fp8.input(x.value, nullptr, pass_in_fp8);
        in_fp8.forward(out_, codes, pass_in_fp8);
        in_fp8.backward(dinp_, {dout.value}, codes, pass_in_fp8);
    }
    fp8_.gradients().reduce(unit, fp8_.stream());
    OfLayer& sums = by_layer_[layer.name()];
    add_differences(sums[forward], read_back(out_, out.size(), fp8_.stream()), out);
    add_differences(sums[dgrad], read_back(dinp_, dinp.size(), fp8_.stream()), dinp);
    add_differences(sums[wgrad], fp8_.gradients().get_gradient(unit, tensor, fp8_.stream()), dweight);
}

}  // namespace llmc
