// Writes the loss and the gradients of one micro-batch, tensor by tensor, as JSON, to compare devices or precisions.
// Takes train_gpt's flags (--train, the model, --batch, --seq, --seed, --precision, --fp8-recipe, --fp8-layers); --out
// names the file.
//
// For every gradient it writes the Euclidean norm and the projection on a fixed direction of +1 and -1. The difference
// of two projections is about the norm of the difference, which equal norms would hide.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dev/probe/operands.h"
#include "llmc/base/json.h"
#include "llmc/data/loader.h"
#include "llmc/device/math.cuh"
#include "llmc/device/transfer.h"
#include "llmc/flags/options.h"
#include "llmc/train/trainer.h"

using namespace llmc;
using nlohmann::ordered_json;

namespace {

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
ordered_json measure(const Options& o, const ShardSet& shards) {
    TrainerConfig config = trainer_config(o);
    config.recompute = Recompute::none;
    config.loss_scale = {};  // no loss scale, to get the gradients themselves
    Trainer<Real> trainer(config, Comm::self());
    trainer.allocate();
    trainer.initialize(o.seed);

    const SampleOrder order({shards.samples(o.seq)}, {{0, {1}}}, o.seed);
    TrainLoader loader(shards, order, o.batch, o.seq, 0, 1, 0, o.model_config.vocab);
    trainer.begin_step({});
    trainer.micro_step(loader.next());
    Transformer<Real>& model = trainer.model();
    const stream_t stream = trainer.stream();
    ordered_json result = {{"precision", word_of(o.precision)},
                           {"recipe", o.precision == Precision::fp8 ? word_of(o.fp8_recipe) : ""},
                           {"device", device_info().name},
                           {"loss", read_back(model.train_loss_sum(), stream) /
                                        static_cast<double>(read_back(model.train_loss_count(), stream))},
                           {"gradients", ordered_json::object()}};
    for (size_t u = 0; u < trainer.table().units().size(); u++)
        for (size_t t = 0; t < trainer.table().unit(u).tensors.size(); t++)
            result["gradients"][trainer.table().unit(u).tensors[t].name] =
                numbers_of(trainer.gradients().get_gradient(u, t, stream));
    return result;
}

void run(int argc, char** argv) {
    ParsedOptions parsed = parse_options(argc, argv);
    Options& o = parsed.options;
    if (o.train.empty() || o.out.empty()) throw Error(ExitCode::bad_flags, "give --train GLOB and --out FILE");
    const ShardSet shards({o.train});
    open_device(0);
    const DeviceInfo device = device_info();
    ResolveInputs surroundings;
    surroundings.data_vocab = static_cast<int>(shards.sidecar().vocab.value_or(0));
    surroundings.train_tokens = shards.total_tokens();
    surroundings.host_device = device.is_host;
    surroundings.fp8_supported = device.has_fp8;
    surroundings.device_name = device.name;
    surroundings.card = device.compute_capability;
    resolve(o, surroundings);
    const ordered_json result = o.precision == Precision::fp32 ? measure<float>(o, shards) : measure<bf16>(o, shards);
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
