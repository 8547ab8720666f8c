// Loss and gradients of one micro-batch, tensor by tensor, as JSON: to hold one device, or one precision, against
// another. Takes train_gpt's flags (--train, the model, --batch, --seq, --seed, --precision, --fp8-recipe,
// --fp8-layers); --out names the file.
//
// Of every gradient it writes the Euclidean norm and a projection on a fixed direction of +1 and -1: the difference of
// two projections is about the norm of the difference, which two equal norms would hide.
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "llmc/data/loader.h"
#include "llmc/device/math.cuh"
#include "llmc/device/transfer.h"
#include "llmc/fp8/recipe.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/options.h"

using namespace llmc;
using nlohmann::ordered_json;

namespace {

ordered_json numbers_of(const std::vector<float>& gradient) {
    double squares = 0, projection = 0;
    for (size_t i = 0; i < gradient.size(); i++) {
        const double g = static_cast<double>(gradient[i]);
        squares += g * g;
        projection += random_bits(1, static_cast<uint32_t>(i)) & 1 ? g : -g;
    }
    return {{"norm", std::sqrt(squares)}, {"projection", projection}};
}

template <class Real>
ordered_json measure(const Options& o, const ShardSet& shards) {
    const ParameterTable table(gpt2_units(o.model_config), 1);
    Parameters<Real> parameters(table, Comm::self());
    Fp8Config config;
    config.recipe = fp8_recipe_from_name(o.fp8_recipe);
    Matmul matmul(o.tf32, fast_accumulation(o.fp8_fast_accum), scaling_of(config.recipe));
    std::unique_ptr<Fp8Tensors> fp8;
    if (o.precision == "fp8")
        fp8 = std::make_unique<Fp8Tensors>(o.model_config, config, Fp8Layers(o.fp8_layers, o.model_config.layers),
                                           o.batch * o.seq, Recompute::none);
    Gpt2<Real> model(o.model_config, o.batch, o.seq, Recompute::none, parameters, matmul, fp8.get());
    const stream_t stream = create_stream();
    parameters.allocate(stream);
    model.allocate();
    if (fp8) fp8->allocate(stream);
    model.initialize(o.seed, stream);
    model.prepare_weights(stream);

    TrainLoader loader(shards, o.batch, o.seq, 1, 0, 1, o.seed, 0, o.model_config.vocab);
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    loader.next(tokens.data(), targets.data());
    model.train_micro_step(tokens.data(), targets.data(), 1.0f / static_cast<float>(tokens.size()), nullptr, true,
                           stream);
    ordered_json result = {{"precision", o.precision},
                           {"recipe", o.precision == "fp8" ? o.fp8_recipe : ""},
                           {"device", device_info().name},
                           {"loss", read_back(model.train_loss_sum(), stream) /
                                        static_cast<double>(read_back(model.train_loss_count(), stream))},
                           {"gradients", ordered_json::object()}};
    for (size_t u = 0; u < table.units().size(); u++)
        for (size_t t = 0; t < table.unit(u).tensors.size(); t++)
            result["gradients"][table.unit(u).tensors[t].name] = numbers_of(parameters.get_gradient(u, t, stream));
    destroy_stream(stream);
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
    resolve(o, surroundings);
    const ordered_json result = o.precision == "fp32" ? measure<float>(o, shards) : measure<bf16>(o, shards);
    std::ofstream file(o.out);
    file << result.dump(1) << "\n";
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
