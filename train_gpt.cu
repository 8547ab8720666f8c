// train_gpt: pretrains a GPT from token shards. main() turns flags into a run, train() is the run: set up, then step
// after step, then the final weights.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "llmc/checkpoint/hf_gpt2.h"
#include "llmc/comm/comm.h"
#include "llmc/comm/connect.h"
#include "llmc/comm/watchdog.h"
#include "llmc/commands/plan.h"
#include "llmc/data/loader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/device/transfer.h"
#include "llmc/linear/matmul.h"
#include "llmc/model/fp8_tensors.h"
#include "llmc/model/gpt2.h"
#include "llmc/model/sampler.h"
#include "llmc/optim/step.h"
#include "llmc/run/fingerprint.h"
#include "llmc/run/gpu_table.h"
#include "llmc/run/metrics.h"
#include "llmc/run/options.h"
#include "llmc/run/plan.h"
#include "llmc/run/profile.h"
#include "llmc/run/progress.h"
#include "llmc/run/records.h"
#include "llmc/run/signals.h"
#include "llmc/run/skips.h"

using namespace llmc;

namespace {

// What is read before anything is allocated.
struct Inputs {
    std::unique_ptr<ShardSet> train;
    std::vector<std::pair<std::string, std::unique_ptr<ShardSet>>> val;  // by name
};

Inputs open_data(const Options& options) {
    Inputs inputs;
    if (!options.train.empty()) inputs.train = std::make_unique<ShardSet>(std::vector<std::string>{options.train});
    for (const ValSet& set : options.val)
        inputs.val.emplace_back(set.name, std::make_unique<ShardSet>(std::vector<std::string>{set.glob}));
    return inputs;
}

void check_vocabulary(const Inputs& inputs, int vocab) {
    if (inputs.train) inputs.train->check_vocabulary(vocab);
    for (const auto& [name, set] : inputs.val) set->check_vocabulary(vocab);
}

ScheduleConfig schedule_config(const Options& o) {
    return {schedule_kind(o.schedule), o.lr, o.warmup, o.max_steps, o.final_lr_fraction};
}
AdamWConfig adamw_config(const Options& o) { return {o.beta1, o.beta2, o.eps, o.weight_decay}; }

LossScaleConfig loss_scale(const Options& o) {
    LossScaleConfig config = loss_scale_config(o.loss_scale);
    config.growth_interval = o.loss_scale_growth_interval;
    return config;
}

Fp8Config fp8_config(const Options& o) {
    Fp8Config config;
    config.recipe = fp8_recipe_from_name(o.fp8_recipe);
    config.history = o.fp8_history;
    config.margin = o.fp8_margin;
    config.algorithm = o.fp8_amax_algo == "most_recent" ? AmaxAlgorithm::most_recent
                       : o.fp8_amax_algo == "ema"       ? AmaxAlgorithm::ema
                                                        : AmaxAlgorithm::max;
    config.pow2_scales = o.fp8_pow2_scales;
    config.e4m3_gradients = o.fp8_grad == "e4m3";
    config.fallback = fp8_fallback_from_text(o.fp8_fallback);
    return config;
}

FastAccumulation fast_accumulation(const Options& o) {
    return o.fp8_fast_accum == "none"  ? FastAccumulation::none
           : o.fp8_fast_accum == "all" ? FastAccumulation::all
                                       : FastAccumulation::forward;
}

// How ranks share the parameters, and which of them travel as FP8.
Sharding sharding(const Options& o, const ParameterTable& table) {
    Sharding result;
    result.stage = o.zero;
    result.within = o.shard_within;
    result.wire = o.reduce == "bf16" ? Wire::bf16 : Wire::fp32;
    if (o.precision == "fp8" && scaling_of(fp8_recipe_from_name(o.fp8_recipe)) == Fp8Scaling::tensor)
        result.fp8 = fp8_tensors_of(table, o.model_config, Fp8Layers(o.fp8_layers, o.model_config.layers));
    return result;
}

// The FP8 layers of a run; nullptr when there are none.
std::unique_ptr<Fp8Tensors> make_fp8(const Options& o, const Comm& comm) {
    if (o.precision != "fp8") return nullptr;
    const Fp8Layers layers(o.fp8_layers, o.model_config.layers);
    return std::make_unique<Fp8Tensors>(o.model_config, fp8_config(o), layers, o.batch * o.seq,
                                        recompute_from_name(o.recompute), comm, o.zero);
}

// ---- a run and its parts -------------------------------------------------------------------------------------------

template <class Real>
struct Run {
    const Options& options;
    const Comm comm;
    const ParameterTable table;
    stream_t stream = create_stream();
    Parameters<Real> parameters;
    Matmul matmul;
    std::unique_ptr<Fp8Tensors> fp8;
    Gpt2<Real> model;
    Optimizer<Real> optimizer;

    Run(const Options& o, const Comm& comm_)
        : options(o),
          comm(comm_),
          table(gpt2_units(o.model_config), comm.world()),
          parameters(table, comm, sharding(o, table)),
          matmul(o.tf32, fast_accumulation(o), scaling_of(fp8_recipe_from_name(o.fp8_recipe))),
          fp8(make_fp8(o, comm)),
          model(o.model_config, o.batch, o.seq, recompute_from_name(o.recompute), parameters, matmul, fp8.get()),
          optimizer(parameters, schedule_config(o), adamw_config(o), o.clip, loss_scale(o), o.skip_spikes) {}
    ~Run() {
        tear_down([this] { destroy_stream(stream); });
    }
};

// The arenas of a rank and what it sends, without a device.
template <class Real>
StagePlan plan_rank(const Options& o, const Comm& comm) {
    const ParameterTable table(gpt2_units(o.model_config), comm.world());
    const Sharding how = sharding(o, table);
    Parameters<Real> parameters(table, comm, how);
    const Optimizer<Real> optimizer(parameters, schedule_config(o), adamw_config(o), o.clip);
    const std::unique_ptr<Fp8Tensors> fp8 = make_fp8(o, comm);
    const Activations<Real> activations(o.model_config, o.batch, o.seq, recompute_from_name(o.recompute),
                                        fp8 ? fp8->without_bf16() : nullptr);
    MemoryByKind memory;
    memory.weights = parameters.weight_bytes();
    memory.gradients = parameters.gradient_bytes();
    memory.optimizer = parameters.optimizer_bytes();
    memory.activations = activations.arena.bytes();
    memory.workspace = activations.workspace.bytes() + optimizer.workspace_bytes() +
                       Matmul::planned_bytes(operand_type<Real>,
                                             linear_shapes(o.model_config, o.batch * o.seq, activations.chunk_rows),
                                             scaling_of(fp8_recipe_from_name(o.fp8_recipe)));
    if (fp8) {
        memory.weights += fp8->weight_bytes();
        memory.activations += fp8->activation_bytes();
    }
    const WireLayout layout{comm.world(), o.micro_steps, sizeof(Real), comm.reduce_order() == ReduceOrder::rank};
    return {parameters.stage(), "", memory, wire_schedule(table, how, layout)};
}

StagePlan plan_rank(const Options& o, const Comm& comm) {
    return o.precision == "fp32" ? plan_rank<float>(o, comm) : plan_rank<bf16>(o, comm);
}

HfGpt2Config hf_config(const ModelConfig& m) { return {m.layers, m.channels, m.heads, m.vocab, m.context}; }

template <class Real>
void load_weights(Run<Real>& run, const std::string& path) {
    import_hf(path, hf_config(run.options.model_config),
              [&](const std::string& name, const std::vector<float>& values) {
                  const ParameterTable::Place place = run.table.find(name);
                  std::vector<float> padded = values;  // wte's padded rows are 0
                  padded.resize(run.table.unit(place.unit).tensors[place.tensor].count(), 0.0f);
                  run.parameters.set_tensor(place.unit, place.tensor, padded, run.stream);
              });
}

// Every rank takes part; the first one writes.
template <class Real>
void save_weights(Run<Real>& run, const std::string& path) {
    if (!run.comm.is_main()) {
        for (const std::string& name : gpt2_parameter_names(run.options.model_config.layers)) {
            const ParameterTable::Place place = run.table.find(name);
            run.parameters.get_tensor(place.unit, place.tensor, run.stream);
        }
        return;
    }
    export_hf(path, hf_config(run.options.model_config), [&](const std::string& name, std::vector<float>& values) {
        const ParameterTable::Place place = run.table.find(name);
        values = run.parameters.get_tensor(place.unit, place.tensor, run.stream);
    });
}

double wall_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Mean loss over the validation sets.
template <class Real>
ValRecord validate(Run<Real>& run, const Inputs& inputs, int64_t step, Watchdog& watchdog) {
    const Options& o = run.options;
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    ValRecord record;
    record.step = step;
    for (const auto& [name, set] : inputs.val) {
        const EvalLoader loader(*set, o.batch, o.seq, run.comm.rank(), run.comm.world(), o.val_batches,
                                o.model_config.vocab);
        double sum = 0, count = 0;
        watchdog.alive();
        for (int64_t i = 0; i < loader.batches(); i++) {
            loader.read(i, tokens.data(), targets.data());
            run.model.evaluate(tokens.data(), targets.data(), true, run.stream);
            run.model.share_evaluation(run.stream);
            sum += read_back(run.model.eval_loss_sum(), run.stream);
            count += read_back(run.model.eval_loss_count(), run.stream);
        }
        record.losses.emplace_back(name, static_cast<float>(sum / count));
    }
    return record;
}

// Prints --sample-tokens tokens that follow the prompt, or the beginning of a document.
template <class Real>
void print_sample(Run<Real>& run, const TokenDecoder& decoder, int64_t step) {
    const Options& o = run.options;
    std::vector<int> tokens =
        o.prompt.empty() ? std::vector<int>{std::max(decoder.end_token(), 0)} : decoder.encode(o.prompt);
    const size_t prompt_length = o.prompt.empty() ? 1 : 0;  // the end token that starts a document is not shown
    const SamplerSettings settings{o.temperature, o.top_k, o.top_p, o.seed};
    const int longest = std::min(o.model_config.context, o.batch * o.seq);
    for (int i = 0; i < o.sample_tokens; i++) {
        const int length = std::min(static_cast<int>(tokens.size()), longest);
        const int* window = tokens.data() + tokens.size() - static_cast<size_t>(length);
        const std::vector<float> logits = run.model.next_token_logits(window, length, run.stream);
        tokens.push_back(sample_token(logits, settings, static_cast<uint64_t>(i)));
    }
    if (!run.comm.is_main()) return;
    const std::vector<int> shown(tokens.begin() + static_cast<long>(prompt_length), tokens.end());
    std::printf("sample after step %lld:\n%s\n", static_cast<long long>(step), sanitize(decoder.decode(shown)).c_str());
    std::fflush(stdout);
}

Products products_per_micro_step(const ProductCounts& counts, int64_t micro_steps) {
    return {counts.fp8 / micro_steps, counts.bf16 / micro_steps, counts.fp32 / micro_steps,
            counts.emulated / micro_steps};
}

StepRecord step_record(const StepResult& result, const Options& o, const Products& products, uint64_t batch_hash) {
    StepRecord record;
    record.step = result.step;
    record.loss = static_cast<float>(result.loss);
    record.lr = static_cast<float>(result.state.learning_rate);
    record.norm = static_cast<float>(result.state.norm);
    record.tokens = result.step * o.total_batch;
    record.ms = result.ms;
    record.tokens_per_s = static_cast<double>(o.total_batch) / result.ms * 1e3;
    record.products = products;
    record.skipped = result.state.skipped;
    record.loss_scale = result.loss_scale;
    record.batch_hash = fingerprint_text(batch_hash);
    if (result.state.spike & kLossSpike) record.spike.loss_limit = static_cast<float>(result.loss_limit);
    if (result.state.spike & kNormSpike) record.spike.norm_limit = result.state.norm_limit;
    return record;
}

std::optional<double> peak_tflops(const Options& o, const DeviceInfo& device) {
    const std::optional<GpuSpec> gpu = device.is_host ? std::nullopt : find_gpu(device.name);
    if (!gpu) return std::nullopt;
    return o.precision == "fp8" ? gpu->fp8_tflops : gpu->bf16_tflops;
}

void print_floor(const ShardSet& set, double loss) {
    if (!set.sidecar().entropy_floor) return;
    const double floor = *set.sidecar().entropy_floor;
    std::printf(
        "validation loss %.4f; no model can do better on this data than %.4f nats per token (%.1f %% above it)\n", loss,
        floor, (loss / floor - 1) * 100);
}

uint64_t sum_over_ranks(uint64_t value, const Comm& comm) {
    std::vector<uint64_t> all(static_cast<size_t>(comm.world()));
    comm.host_all_gather(all.data(), &value, sizeof value);
    return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

template <class Real>
void check_products(const Run<Real>& run, const Products& products) {
    if (!run.fp8) return;
    int64_t expected = 3 * (run.fp8->layer_count() + (run.fp8->has_head() ? run.model.head_chunks() : 0));
    if (run.options.recompute == "block")
        for (int l = 0; l < run.options.model_config.layers; l++)
            for (const BlockLinear linear : {BlockLinear::qkv, BlockLinear::attn_proj, BlockLinear::fc})
                expected += run.fp8->is_fp8(l, linear);
    require_fp8_products(products, expected, run.options.fp8_emulation);
}

template <class Real>
std::optional<Profiler::Setup> profiler_setup(const Options& o, const Run<Real>& run) {
    if (o.profile_steps.empty()) return std::nullopt;
    Profiler::Setup setup;
    setup.steps = profile_steps_from_text(o.profile_steps);
    setup.directory = o.out;
    // Of a unit: forward, backward, gathered twice and reduced every micro-step; prepared and sent once a step.
    setup.ranges_per_step = run.table.units().size() * (5 * static_cast<size_t>(o.micro_steps) + 6) + 64;
    setup.streams = {{"compute", run.stream},
                     {"weights", run.parameters.gather_stream()},
                     {"gradients", run.parameters.reduce_stream()}};
    return setup;
}

// Every rank takes part, after step `step`. Nothing, if nothing was profiled or it has been written.
void finish_profile(Profiler& profiler, int64_t step, const Options& o, const Comm& comm, RunDirectory& directory) {
    const std::optional<nlohmann::ordered_json> record = profiler.finish(step);
    if (!record) return;
    directory.append(*record);
    if (comm.is_main())
        std::printf("%s\nwritten to %s/trace-rank*.json: open them in https://ui.perfetto.dev or chrome://tracing%s\n",
                    describe_profile(*record).c_str(), o.out.c_str(),
                    comm.world() > 1 ? "; scripts/merge_traces.py makes one file of them" : "");
}

// To be left free for what libraries take later. The world's communicator is there already when free memory is asked.
size_t libraries_to_come(const Options& o, const Comm& comm, const DeviceInfo& device) {
    if (device.is_host) return 0;
    const bool nccl = std::string(comm.name()) == "nccl";
    const int within = o.zero == 0 ? 0 : o.shard_within;
    return memory_reserve(nccl ? std::max(0, nccl_communicators(comm.world(), within) - 1) : 0);
}

// ---- the training loop ---------------------------------------------------------------------------------------------

template <class Real>
ExitCode train(const Options& o, const Inputs& inputs, const DeviceInfo& device, const MemoryByKind& memory,
               RunDirectory& directory, const Comm& comm, Watchdog& watchdog) {
    Run<Real> run(o, comm);
    run.parameters.allocate(run.stream);
    run.model.allocate();
    run.optimizer.allocate(run.stream);
    if (run.fp8) run.fp8->allocate(run.stream);
    if (o.init_from.empty())
        run.model.initialize(o.seed, run.stream);
    else
        load_weights(run, o.init_from);
    run.model.prepare_weights(run.stream);
    if (!o.out.empty()) {  // on every rank: all take part
        const std::string weights = fingerprint_text(weights_fingerprint(run.parameters, run.stream));
        if (directory.active()) directory.write_run_json(o, {comm.world(), device.name, weights});
    }

    TrainLoader loader(*inputs.train, o.batch, o.seq, o.micro_steps, run.comm.rank(), run.comm.world(), o.seed, 0,
                       o.model_config.vocab);
    const bool validates = o.val_every > 0 && o.val_batches != 0 && !inputs.val.empty();
    const bool samples = o.sample_every > 0 && o.sample_tokens > 0;
    std::optional<TokenDecoder> decoder;
    if (samples) {
        const std::string tokenizer = inputs.train->sidecar().tokenizer.value_or("");
        decoder = TokenDecoder::open(!o.tokenizer.empty() ? o.tokenizer : tokenizer);
    }
    const int64_t last_step = o.stop_after > 0 ? std::min(o.stop_after, o.max_steps) : o.max_steps;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"), std::fclose);
    Progress progress(comm.is_main() ? stdout : nowhere.get(),
                      {last_step, static_cast<double>(o.total_batch), o.model_config.flops_per_token(o.seq),
                       peak_tflops(o, device), run.comm.world()});
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    const float loss_weight = 1.0f / static_cast<float>(o.total_batch);

    StepResults results;
    Products products[2];           // of the step at work and the one before it, as the next
    uint64_t batch_hashes[2] = {};  // of the step at work and the one before it
    double last_val_loss = NAN;
    auto report = [&](int leave) {
        const ProfileRange range("wait for results");
        while (const std::optional<StepResult> result = results.take(leave)) {
            const StepRecord record =
                step_record(*result, o, products[result->step % 2], batch_hashes[result->step % 2]);
            directory.record(record);
            progress.step(record, device_bytes_in_use());
            check_skips(*result, o.max_skips, o.model_config.layers);
        }
    };
    auto validate_and_sample = [&](int64_t step, bool last) {
        const bool sample_now = samples && step > 0 && (step % o.sample_every == 0 || last);
        const bool validate_now = validates && (step % o.val_every == 0 || last);
        if (!validate_now && !sample_now) return false;
        report(0);
        const ProfileRange range("validate and sample");
        if (validate_now) {
            const ValRecord record = validate(run, inputs, step, watchdog);
            last_val_loss = record.losses[0].second;
            directory.record(record);
            progress.validation(record);
        }
        if (sample_now) print_sample(run, *decoder, step);
        return true;
    };

    Profiler profiler(comm, profiler_setup(o, run));
    const double start = wall_seconds();
    bool interrupted = validate_and_sample(0, false);
    int64_t step = 0;
    ExitCode code = ExitCode::ok;
    while (step < last_step) {
        step++;
        watchdog.begin_step(step);
        interrupted |= profiler.begin_step(step);
        results.begin(!interrupted, run.stream);
        run.matmul.reset_counts();
        const bool fp8_recorded = run.fp8 && !o.out.empty() && o.fp8_log_every > 0 && step % o.fp8_log_every == 0;
        if (run.fp8) run.fp8->count_losses(fp8_recorded);
        BatchFingerprint batch;
        for (int m = 0; m < o.micro_steps; m++) {
            {
                const ProfileRange range("load a batch");
                loader.next(tokens.data(), targets.data());
                batch.add(tokens.data(), targets.data(), o.batch, o.seq,
                          (int64_t{m} * run.comm.world() + run.comm.rank()) * o.batch);
            }
            run.model.train_micro_step(tokens.data(), targets.data(), loss_weight, run.optimizer.loss_scale(), m == 0,
                                       run.stream, m + 1 == o.micro_steps);
        }
        batch_hashes[step % 2] = sum_over_ranks(batch.value(), comm);
        products[step % 2] = products_per_micro_step(run.matmul.counts(), o.micro_steps);
        if (run.fp8) run.fp8->check(run.stream);
        run.optimizer.update(run.model.train_loss_sum(), run.fp8 ? run.fp8->bad_flag() : nullptr, run.stream);
        if (run.fp8) run.fp8->finish_step(run.optimizer.loss_scale_change(), run.stream);
        for (const Fp8Loss& loss : run.model.fall_back(run.stream))
            report_fallback(step - 1, loss, fp8_fallback_from_text(o.fp8_fallback), comm, directory);
        run.model.prepare_weights(run.stream);
        results.submit(step, run.optimizer.state(), run.model.train_loss_count(), run.optimizer.loss_scale(),
                       run.stream);
        if (step == 1) check_products(run, products[1]);
        if (step == 1 && !device.is_host)
            record_memory_outside(step, device.free_memory, libraries_to_come(o, comm, device), comm, directory);
        report(1);  // the step before; this one is still running
        profiler.end_step();
        const bool profiled = profiler.is_last(step);
        if (profiled) {
            report(0);
            finish_profile(profiler, step, o, comm, directory);
        }

        const bool out_of_time = o.max_minutes > 0 && wall_seconds() - start > o.max_minutes * 60;
        // A stop anywhere is a stop everywhere, after the same step.
        const int64_t stop = comm.host_max(stop_requested() ? 2 : out_of_time ? 1 : 0);
        if (stop > 0) {
            report(0);
            const char* reason = stop == 1          ? "--max-minutes reached"
                                 : stop_requested() ? stop_signal_name()
                                                    : "another rank was told to";
            if (comm.is_main()) std::printf("stopping after step %lld: %s\n", static_cast<long long>(step), reason);
            code = ExitCode::stopped;
            break;
        }
        interrupted = validate_and_sample(step, step == last_step) || profiled;
        if (fp8_recorded) record_fp8(step, *run.fp8, o.model_config.layers, comm, run.stream, directory);
    }
    report(0);
    finish_profile(profiler, step, o, comm, directory);  // of a run that was stopped before the last profiled step
    if (!o.out.empty()) {
        record_memory(step, memory, comm, directory);
        watchdog.begin(Watchdog::Phase::save);
        save_weights(run, directory.active() ? directory.file("model.safetensors") : "");
        if (comm.is_main()) std::printf("weights written to %s\n", directory.file("model.safetensors").c_str());
    }
    synchronize_device();  // what fails behind the last result fails the run
    if (comm.is_main() && !inputs.val.empty() && std::isfinite(last_val_loss))
        print_floor(*inputs.val[0].second, last_val_loss);
    return code;
}

// ---- from flags to a run -------------------------------------------------------------------------------------------

// The other processes of this run, found and agreed with: a Comm, and the watchdog over it.
struct Ranks {
    Watchdog watchdog;
    Comm comm = Comm::self();

    Ranks(const Options& o, const LaunchInfo& launch)
        : watchdog({o.timeout_start, o.timeout_step, o.timeout_save}, launch.rank) {}
    ~Ranks() { watchdog.stop(); }

    void connect(const Options& o, const LaunchInfo& launch) {
        ConnectOptions options;
        options.backend = o.comm;
        options.order = o.reduce_order == "rank" ? ReduceOrder::rank : ReduceOrder::any;
        options.timeout = o.timeout_start;
        comm = llmc::connect(options, launch);
        open_device(device_of_rank(comm, device_count()));
        comm.attach_device();
        watchdog.watch(comm, o.out);
    }
};

ExitCode run_program(int argc, char** argv, const LaunchInfo& launch) {
    ParsedOptions parsed = parse_options(argc, argv);
    if (parsed.text) {
        std::fputs(parsed.text->c_str(), stdout);
        return ExitCode::ok;
    }
    Options& o = parsed.options;
    const Inputs inputs = open_data(o);
    const bool planning = o.dry_run || o.estimate_scaling || o.print_config;  // works on a machine without a GPU
    const int zero = o.zero;
    DeviceInfo device;
    Ranks ranks(o, launch);
    if (planning) {
        ranks.watchdog.stop();
        ranks.comm = planned_ranks(o, o.world);
    } else {
        ranks.connect(o, launch);
        device = device_info();
    }
    const Comm& comm = ranks.comm;
    ResolveInputs surroundings;
    surroundings.ranks = comm.world();
    if (inputs.train) {
        const int64_t vocab = inputs.train->sidecar().vocab.value_or(0);
        surroundings.data_vocab = static_cast<int>(std::min<int64_t>(vocab, std::numeric_limits<int>::max()));
        surroundings.train_tokens = inputs.train->total_tokens();
    }
    for (const auto& [name, set] : inputs.val) surroundings.val_tokens.push_back(set->total_tokens());
    surroundings.host_device = LLMC_CUDA == 0;
    surroundings.bf16_supported = planning || device.is_host || device.compute_capability >= 80;
    surroundings.fp8_supported = LLMC_ENABLE_FP8 && (planning || device.has_fp8);
    if (!planning)
        surroundings.fp8_emulated_because = [](const std::string& recipe) {
            return Matmul::emulated_because(scaling_of(fp8_recipe_from_name(recipe)));
        };
    surroundings.device_name = LLMC_ENABLE_FP8 ? device.name : "this build (PRECISION=BF16)";
    resolve(o, surroundings);
    check_vocabulary(inputs, o.model_config.vocab);

    if (o.print_config) {
        std::printf("%s\n", config_json(o).c_str());
        return ExitCode::ok;
    }
    if (o.precision == "fp8") Fp8Layers(o.fp8_layers, o.model_config.layers);  // refuses unknown names
    if (planning) {
        plan_run(o, zero, [](const Options& options, const Comm& ranks) { return plan_rank(options, ranks); });
        return ExitCode::ok;
    }
    const MemoryByKind memory = plan_rank(o, comm).memory;
    if (!inputs.train)
        throw Error(ExitCode::bad_flags, "no training data: give token shards with --train GLOB (see --help)");
    comm.require_equal("configuration", config_json(o));
    comm.require_equal("command line", "--profile-steps " + o.profile_steps);
    if (comm.is_main())
        for (const std::string& note : o.notes) std::printf("note: %s\n", note.c_str());
    check_memory(memory, libraries_to_come(o, comm, device), device.free_memory, device.name);

    RunDirectory directory(comm.is_main() ? o.out : "", o.overwrite);
    install_signal_handlers();
    if (comm.world() > 1 && comm.is_main())
        std::printf("%d ranks over %s, --zero %d%s\n", comm.world(), comm.name(), o.zero,
                    o.shard_within > 0 ? strprintf(" --shard-within %d", o.shard_within).c_str() : "");
    if (comm.is_main())
        std::printf("%s on %s, %s: %lld parameters, %lld tokens a step in %d micro-steps, %lld steps\n",
                    o.model_config.name.c_str(), device.name.c_str(), o.precision.c_str(),
                    static_cast<long long>(o.model_config.parameters()), static_cast<long long>(o.total_batch),
                    o.micro_steps, static_cast<long long>(o.max_steps));
    const ExitCode code = o.precision == "fp32"
                              ? train<float>(o, inputs, device, memory, directory, comm, ranks.watchdog)
                              : train<bf16>(o, inputs, device, memory, directory, comm, ranks.watchdog);
    ranks.watchdog.stop();
    comm.finish();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    LaunchInfo launch;
    try {
        launch = launch_environment();
        return static_cast<int>(run_program(argc, argv, launch));
    } catch (const Error& error) {
        std::fflush(stdout);
        if (!launch.alone()) leave(launch, error);
        std::fprintf(stderr, "train_gpt: %s\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "train_gpt: %s\n", error.what());
        return static_cast<int>(ExitCode::failure);
    }
}
