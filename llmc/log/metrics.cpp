// Turns the numbers of a run into records, and writes them.
#include "llmc/log/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/fp8/registry.h"
#include "llmc/log/provenance.h"
#include "llmc/log/run_directory.h"
#include "llmc/train/step_results.h"

namespace llmc {

void put_number(Json& record, const std::string& key, double value) {
    if (std::isfinite(value)) {
        record[key] = value;
        return;
    }
    record[key] = nullptr;
    record["nonfinite"][key] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double ValLoss::perplexity() const { return std::exp(static_cast<double>(loss)); }

Json metrics_json(const StepRecord& r) {
    Json line;
    line["step"] = r.step;
    put_number(line, "loss", r.loss);
    put_number(line, "lr", r.lr);
    put_number(line, "norm", r.norm);
    line["tokens"] = r.tokens;
    for (const auto& [source, tokens] : r.source_tokens) line["source_tokens"][source] = tokens;
    if (r.seq > 0) line["seq"] = r.seq;
    put_number(line, "ms", r.ms);
    put_number(line, "tokens_per_s", r.tokens_per_s);
    line["products"] = {{"fp8", r.products.fp8}, {"bf16", r.products.bf16}, {"fp32", r.products.fp32}};
    if (r.products.emulated > 0) line["products"]["emulated"] = r.products.emulated;
    line["skipped"] = r.skipped;
    put_number(line, "loss_scale", r.loss_scale);
    for (const auto& [name, value] : {std::pair{"mfu", r.mfu},
                                      {"watts", r.watts},
                                      {"joules_per_token", r.joules_per_token},
                                      {"sm_clock_mhz", r.sm_clock_mhz},
                                      {"temperature_c", r.temperature_c}})
        if (value) put_number(line, name, *value);
    if (r.slowest) {
        line["slowest_rank"] = r.slowest->rank;
        put_number(line, "slowest_ratio", r.slowest->ratio());
        put_number(line, "slowest_data_ms", r.slowest->data_ms);
        put_number(line, "peers_ms", r.slowest->peers_ms);
    }
    if (!r.batch_hash.empty()) line["batch_hash"] = r.batch_hash;
    if (r.spike) {
        Json limits = Json::object();
        if (r.spike.loss) put_number(limits, "loss", *r.spike.loss);
        if (r.spike.norm) put_number(limits, "norm", *r.spike.norm);
        line["spike"] = limits;
    }
    if (r.verified) {
        line["verified"] = r.verified->difference.empty();
        put_number(line, "verify_ms", r.verified->ms);
    }
    if (r.fresh) line["fresh_weights"] = {{"ln_vocab", r.fresh->ln_vocab}, {"expected_loss", r.fresh->expected}};
    return line;
}

Json divergence_json(const DivergenceResult& result) {
    Json json;
    put_number(json, "loss", result.loss);
    put_number(json, "difference", result.difference);
    put_number(json, "difference_error", result.difference_error);
    put_number(json, "kl", result.kl);
    put_number(json, "kl_error", result.kl_error);
    return json;
}

std::string error_text(double error, const char* how) {
    return std::isnan(error) ? "-" : fmt::format(fmt::runtime(how), error);
}

Json metrics_json(const ValRecord& r) {
    Json line;
    line["step"] = r.step;
    for (const ValLoss& set : r.losses) {
        const std::string suffix = set.name.empty() ? "" : "_" + set.name;
        put_number(line, "val_loss" + suffix, set.loss);
        put_number(line, "val_perplexity" + suffix, set.perplexity());
        if (set.bits_per_byte) put_number(line, "val_bpb" + suffix, *set.bits_per_byte);
        if (set.hash != 0) line["val_hash" + suffix] = fingerprint_text(set.hash);
        if (set.against_bf16) line["against_bf16" + suffix] = divergence_json(*set.against_bf16);
    }
    for (const TaskScores& task : r.tasks) {
        line[task.name + "_acc"] = task.accuracy;
        line[task.name + "_acc_norm"] = task.normalized_accuracy;
    }
    line["val_precision"] = word_of(r.precision);
    return line;
}

// The norms of --signals-every.
static Json signals_json(const StepRecord& record) {
    Json signals = Json::array();
    for (const TensorSignal& tensor : record.signals) {
        Json entry{{"tensor", tensor.tensor}};
        put_number(entry, "gradient", tensor.gradient);
        put_number(entry, "weight", tensor.weight);
        put_number(entry, "update", tensor.update);
        if (tensor.max_logit) {
            put_number(entry, "max_logit", tensor.max_logit->logit);
            entry["head"] = tensor.max_logit->head;
        }
        signals.push_back(entry);
    }
    Json line{{"step", record.step}, {"signals", signals}};
    if (record.noise) {
        line["noise"] = Json::object();
        put_number(line["noise"], "square", record.noise->square);
        put_number(line["noise"], "noise", record.noise->noise);
        put_number(line["noise"], "scale", record.noise->scale());
    }
    return line;
}

std::string main_log_line(const StepRecord& r) {
    return fmt::format("s:{} trl:{:.4f} lr:{:.6f} norm:{:.2f}", r.step - 1, unsigned_nan(r.loss), r.lr,
                       unsigned_nan(r.norm));
}

std::string main_log_line(const ValRecord& r) {
    const long long step = r.step;
    std::string text = r.losses.empty() ? "" : fmt::format("s:{} tel:{:.4f}", step, unsigned_nan(r.losses[0].loss));
    if (!r.tasks.empty())
        text += fmt::format("{}s:{} eval:{:.4f}", text.empty() ? "" : "\n", step, r.tasks[0].normalized_accuracy);
    return text;
}

void record_step(const StepRecord& record, RunDirectory& directory) {
    directory.append(metrics_json(record));
    directory.append_main_log(main_log_line(record));
    if (!record.signals.empty()) directory.append(signals_json(record));
}

void record_validation(const ValRecord& record, RunDirectory& directory) {
    if (record.empty()) return;
    directory.append(metrics_json(record));
    directory.append_main_log(main_log_line(record));
}

void record_end(int64_t step, const std::string& why, RunDirectory& directory) {
    directory.append_main_log(fmt::format("s:{} end:1 ", step - 1) + why);
}

void record_fp8(int64_t step, Fp8Registry& fp8, stream_t stream, RunDirectory& directory) {
    const Fp8Saved now = fp8.read_state(stream);
    Json record{{"step", step}, {"fp8", Json::array()}};
    for (int i = 0; i < fp8.count(); i++) {
        if (fp8.has_left(i / kFp8Roles)) continue;
        const Fp8State& state = now.tensors[i].state;
        Json tensor{{"tensor", fp8.name(i)}};
        put_number(tensor, "amax", state.last_amax);
        put_number(tensor, "scale", state.scale);
        tensor["elements"] = state.elements;
        tensor["saturated"] = state.saturated;
        tensor["underflowed"] = state.underflowed;
        tensor["nonfinite"] = state.nonfinite;
        record["fp8"].push_back(tensor);
    }
    directory.append(record);
    fp8.clear_counts(stream);
}

void record_memory(int64_t step, const MemoryByKind& plan, const Comm& comm, RunDirectory& directory) {
    std::array<uint64_t, kMemoryKinds> mine;
    for (size_t kind = 0; kind < kMemoryKinds; kind++) mine[kind] = device_memory_use(MemoryKind(kind)).peak;
    std::vector<std::array<uint64_t, kMemoryKinds>> all(static_cast<size_t>(comm.world()));
    comm.host_all_gather(all.data(), &mine, sizeof mine);
    Json memory;
    for (size_t kind = 0; kind < kMemoryKinds; kind++) {
        std::vector<uint64_t> peaks;
        for (const auto& rank : all) peaks.push_back(rank[kind]);
        const auto [least, most] = std::minmax_element(peaks.begin(), peaks.end());
        memory[kMemoryKindNames[kind]] = {
            {"planned", plan[MemoryKind(kind)]}, {"least_peak", *least}, {"most_peak", *most}};
    }
    directory.append({{"step", step}, {"memory", memory}});
}

size_t memory_outside(size_t free_before, size_t free_now, size_t arenas) {
    const size_t gone = free_before > free_now ? free_before - free_now : 0;
    return gone > arenas ? gone - arenas : 0;
}

void record_memory_outside(int64_t step, const DeviceInfo& opened, size_t reserve, const Comm& comm,
                           RunDirectory& directory) {
    if (opened.is_host) return;
    const size_t free_now = device_info().free_memory;
    const size_t taken = memory_outside(opened.free_memory, free_now, device_bytes_in_use());
    if (comm.is_main())
        print_line("memory after step {}: {} free; libraries use {}, the plan reserved {}{}", step,
                   format_bytes(free_now), format_bytes(taken), format_bytes(reserve),
                   taken > reserve ? ", which is too little" : "");
    directory.append(
        {{"step", step}, {"memory_outside", {{"free", free_now}, {"taken", taken}, {"reserved", reserve}}}});
}

void report_verdict(int64_t step, ValidationWatch::Verdict verdict, const ValidationWatch& watch,
                    RunDirectory& directory, const Comm& comm) {
    if (verdict == ValidationWatch::Verdict::none || !comm.is_main()) return;
    const bool stops = verdict == ValidationWatch::Verdict::stop;
    print_line(
        "step {}: no better validation loss in {}: {}", step, plural(watch.since_best(), "validation"),
        stops ? "the run ends here (--early-stop)"
              : fmt::format("the learning rate continues at {:g} times the schedule (--plateau)", watch.rate_factor()));
    if (!stops) directory.append({{"step", step}, {"rate_factor", watch.rate_factor()}});
}

void report_slow_rank(int64_t step, SlowRankWatch::Change change, const SlowestRank& slowest,
                      const std::vector<std::string>& ranks, RunDirectory& directory, const Comm& comm) {
    if (change == SlowRankWatch::Change::none || !comm.is_main()) return;
    const bool begins = change == SlowRankWatch::Change::begins;
    const std::string& where = ranks[static_cast<size_t>(slowest.rank)];
    const std::string text =
        begins ? format_slow_rank(step, slowest, where) : fmt::format("step {}: no rank is slow any more", step);
    print_line("{}", text);
    Json record{{"step", step}, {"slow_rank", nullptr}};
    if (begins)
        record["slow_rank"] = {{"rank", slowest.rank},
                               {"where", where},
                               {"ms", slowest.own_ms},
                               {"others_ms", slowest.others_ms},
                               {"data_ms", slowest.data_ms}};
    directory.append(record);
}

void report_fallback(int64_t step, const Fp8Fallback& fallback, const Fp8Registry& fp8, const Comm& comm,
                     RunDirectory& directory) {
    const std::string& layer = fp8.layer_name(fallback.layer);
    const char* role = word_of(fallback.role);
    const char* reason = fallback.reason == Fp8Reason::saturated ? "saturated" : "underflowed";
    if (comm.is_main())
        print_line("step {}: {} falls back to BF16: its {} {} in {:.3g} % of its elements, above the limit for {}",
                   step, layer, role, reason, 100.0 * fallback.fraction, plural(fp8.config().fallback.steps, "step"));
    Json entry{{"layer", layer}, {"tensor", role}, {"reason", reason}};
    put_number(entry, "fraction", fallback.fraction);
    directory.append({{"step", step}, {"fp8_fallback", Json::array({entry})}});
}

void require_fp8_products(const ProductCounts& products, int64_t expected, bool emulation_allowed) {
    if (products.fp8 != expected)
        throw Error(ExitCode::bad_numbers, "a micro-step ran {} FP8 matmuls instead of the {} of its FP8 layers",
                    products.fp8, expected);
    if (expected > 0 && products.emulated == expected && !emulation_allowed)
        throw Error(ExitCode::bad_numbers,
                    "cuBLASLt refused all {} FP8 matmuls of a micro-step on this GPU, so they ran in BF16: use "
                    "--precision bf16, which does less work, or --fp8-emulation to continue like this",
                    expected);
}

std::string why_skipped(const StepRecord& record, const Fp8Registry* fp8) {
    const bool bad_loss = !std::isfinite(record.loss);
    if (fp8 && record.bad_tensor > 0) {
        const int tensor = record.bad_tensor - 1;
        if (role_of(tensor) != Fp8Role::dout || !bad_loss)
            return fmt::format("the first FP8 tensor with a value that is not finite was {}", fp8->name(tensor));
    }
    if (bad_loss) return fmt::format("the loss was {:f}", unsigned_nan(record.loss));
    if (!std::isfinite(record.norm)) return fmt::format("the gradient norm was {:f}", unsigned_nan(record.norm));
    if (record.spike.loss)
        return fmt::format("the loss was a spike, {:.6g} where {:.6g} is the limit", record.loss, *record.spike.loss);
    return fmt::format("the gradient norm was a spike, {:.6g} where {:.6g} is the limit", record.norm,
                       record.spike.norm.value_or(0));
}

void check_skips(const StepRecord& record, int max_skips, const Fp8Registry* fp8) {
    if (max_skips == 0 || record.consecutive_skips < max_skips) return;
    throw Error(ExitCode::bad_numbers, "{} skipped in a row; in the last, step {}, {}; lower -l, or see --max-skips",
                plural(record.consecutive_skips, "step"), record.step, why_skipped(record, fp8));
}

}  // namespace llmc
