// Writes the loss and the gradients of one step, tensor by tensor, as JSON, to compare devices or precisions. Takes
// train_gpt's flags (--train, the model, --init-from, --batch, --seq, --total-batch, --seed, --precision, --fp8-recipe,
// ...); --out names the file.
//
// For every gradient g it writes the Euclidean norm and the projection on a fixed direction of +1 and -1. The
// difference of two projections is about the norm of the difference, which equal norms would hide. Unless the precision
// is FP32, it also compares g with the gradient f of the same weights and batches in FP32 on this device: the cosine of
// their angle, and the gain g.f / f.f, which shows a bias, because errors that are independent of f leave it at 1.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dev/probe/operands.h"
#include "llmc/base/json.h"
#include "llmc/data/loader.h"
#include "llmc/device/math.cuh"
#include "llmc/device/transfer.h"
#include "llmc/flags/options.h"
#include "llmc/train/state.h"
#include "llmc/train/trainer.h"

using namespace llmc;
using nlohmann::ordered_json;

namespace {

struct Gradient {
    std::string tensor;
    std::vector<float> values;
};
struct Measured {
    double loss;
    std::vector<Gradient> gradients;
};

// Sums over pairs of two gradients.
struct Products {
    double squares = 0, reference_squares = 0, product = 0;

    Products& operator+=(const Products& other) {
        squares += other.squares;
        reference_squares += other.reference_squares;
        product += other.product;
        return *this;
    }
    void add_to(ordered_json& json) const {
        json["cosine"] = product / std::sqrt(squares * reference_squares);
        json["gain"] = product / reference_squares;
    }
};

Products products_of(const std::vector<float>& gradient, const std::vector<float>& reference) {
    Products sums;
    for (size_t i = 0; i < gradient.size(); i++) {
        const double g = static_cast<double>(gradient[i]), f = static_cast<double>(reference[i]);
        sums += {g * g, f * f, g * f};
    }
    return sums;
}

ordered_json numbers_of(const std::vector<float>& gradient) {
    double squares = 0, projection = 0;
    for (size_t i = 0; i < gradient.size(); i++) {
        const double g = static_cast<double>(gradient[i]);
        squares += g * g;
        projection += probe::random_bits(1, static_cast<uint32_t>(i)) & 1 ? g : -g;
    }
    return {{"norm", std::sqrt(squares)}, {"projection", projection}};
}

template <class Real>
Measured measure(const Options& o, const ShardSet& shards) {
    TrainerConfig config = trainer_config(o);
    config.recompute = Recompute::none;
    config.loss_scale = {};  // no loss scale, to get the gradients themselves
    Trainer<Real> trainer(config, Comm::self());
    trainer.allocate();
    if (o.init_from.empty())
        trainer.initialize(o.seed);
    else
        load_weights(trainer, *open_weights(o.init_from, o.model_config), o.init_from);

    const SampleOrder order({shards.samples(o.seq)}, {{0, {1}}}, o.seed);
    TrainLoader loader(shards, order, o.batch, o.seq, 0, 1, 0, o.model_config.vocab);
    trainer.begin_step({});
    for (int i = 0; i < o.micro_steps; i++) trainer.micro_step(loader.next());
    Transformer<Real>& model = trainer.model();
    const stream_t stream = trainer.stream();
    Measured result{
        read_back(model.train_loss_sum(), stream) / static_cast<double>(read_back(model.train_loss_count(), stream)),
        {}};
    for (size_t u = 0; u < trainer.table().units().size(); u++)
        for (size_t t = 0; t < trainer.table().unit(u).tensors.size(); t++)
            result.gradients.push_back(
                {trainer.table().unit(u).tensors[t].name, trainer.gradients().get_gradient(u, t, stream)});
    return result;
}

void run(int argc, char** argv) {
    const Options given = parse_options(argc, argv).options;
    if (given.train.empty() || given.out.empty()) throw Error(ExitCode::bad_flags, "give --train GLOB and --out FILE");
    const ShardSet shards({given.train});
    open_device(0);
    const DeviceInfo device = device_info();
    ResolveInputs surroundings;
    surroundings.data_vocab = static_cast<int>(shards.sidecar().vocab.value_or(0));
    surroundings.train_tokens = shards.total_tokens();
    surroundings.host_device = device.is_host;
    surroundings.fp8_supported = device.has_fp8;
    surroundings.device_name = device.name;
    surroundings.card = device.compute_capability;
    const auto resolved = [&](std::vector<char*> arguments) {
        Options options = parse_options(static_cast<int>(arguments.size()), arguments.data()).options;
        resolve(options, surroundings);
        return options;
    };
    std::vector<char*> arguments(argv, argv + argc);
    const Options o = resolved(arguments);
    const bool is_reference = o.precision == Precision::fp32;
    const Measured measured = is_reference ? measure<float>(o, shards) : measure<bf16>(o, shards);
    ordered_json result = {{"precision", word_of(o.precision)},
                           {"recipe", o.precision == Precision::fp8 ? word_of(o.fp8_recipe) : ""},
                           {"device", device.name},
                           {"loss", measured.loss}};
    ordered_json gradients = ordered_json::object();
    for (const Gradient& g : measured.gradients) gradients[g.tensor] = numbers_of(g.values);
    if (!is_reference) {
        std::string precision = "--precision", fp32 = "fp32";
        arguments.insert(arguments.end(), {precision.data(), fp32.data()});
        const Measured reference = measure<float>(resolved(arguments), shards);
        Products all;
        for (size_t i = 0; i < measured.gradients.size(); i++) {
            const Products sums = products_of(measured.gradients[i].values, reference.gradients[i].values);
            sums.add_to(gradients[measured.gradients[i].tensor]);
            all += sums;
        }
        result["loss_in_fp32"] = reference.loss;
        all.add_to(result);
    }
    result["gradients"] = gradients;
    std::ofstream file(o.out);
    file << json_text(result, 1) << "\n";
    if (!file.flush()) throw Error(ExitCode::failure, o.out + " cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    try {
        run(argc, argv);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gradients: %s\n", error.what());
        const Error* known = dynamic_cast<const Error*>(&error);
        return static_cast<int>(known ? known->code() : ExitCode::failure);
    }
}
