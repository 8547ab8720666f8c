// Collects numbers over the ranks and appends them to metrics.jsonl.
#include "llmc/log/records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llmc/base/text.h"

namespace llmc {

void require_fp8_products(const ProductCounts& products, int64_t expected, bool emulation_allowed) {
    if (products.fp8 != expected)
        throw Error(ExitCode::bad_numbers,
                    strprintf("a micro-step ran %lld FP8 matmuls instead of the %lld of its FP8 layers",
                              static_cast<long long>(products.fp8), static_cast<long long>(expected)));
    if (expected > 0 && products.emulated == expected && !emulation_allowed)
        throw Error(ExitCode::bad_numbers,
                    strprintf("cuBLASLt refused all %lld FP8 matmuls of a micro-step on this GPU, so they ran in BF16: "
                              "use --precision bf16, which does less work, or --fp8-emulation to continue like this",
                              static_cast<long long>(expected)));
}

// Adds the outlier statistics that are defined; the kurtosis of zeros is not.
static void put_outliers(nlohmann::ordered_json& tensor, Fp8Role role, const Fp8Outliers& outliers) {
    if (role == Fp8Role::x && std::isfinite(outliers.kurtosis())) tensor["kurtosis"] = outliers.kurtosis();
    if (role != Fp8Role::w || !std::isfinite(outliers.alignment[0])) return;
    tensor["alignment"] = outliers.alignment[0];
    tensor["largest_alignment"] = outliers.alignment[1];
}

void record_fp8(int64_t step, Fp8Registry& fp8, stream_t stream, RunDirectory& directory) {
    const Fp8Saved now = fp8.read_state(stream);
    nlohmann::ordered_json record{{"step", step}, {"fp8", nlohmann::ordered_json::array()}};
    for (int i = 0; i < fp8.count(); i++) {
        if (fp8.has_left(i / kFp8Roles)) continue;
        const Fp8State& state = now.tensors[static_cast<size_t>(i)].state;
        nlohmann::ordered_json tensor{{"tensor", fp8.name(i)}};
        put_number(tensor, "amax", state.last_amax);
        put_number(tensor, "scale", state.scale);
        tensor["elements"] = state.elements;
        tensor["saturated"] = state.saturated;
        tensor["underflowed"] = state.underflowed;
        tensor["nonfinite"] = state.nonfinite;
        const std::string& smoothing = now.tensors[static_cast<size_t>(i)].smoothing;
        if (!smoothing.empty())
            tensor["smallest_factor"] = std::ldexp(1.0, 'a' - *std::max_element(smoothing.begin(), smoothing.end()));
        put_outliers(tensor, role_of(i), now.outliers[static_cast<size_t>(i / kFp8Roles)]);
        record["fp8"].push_back(tensor);
    }
    directory.append(record);
    fp8.clear_counts(stream);
}

void record_fp8_errors(int64_t step, const Fp8Registry& fp8, stream_t stream, RunDirectory& directory) {
    const std::vector<Fp8RankSums::Row> sums = fp8.laboratory().read_probed(stream);
    nlohmann::ordered_json record{{"step", step}, {"fp8_errors", nlohmann::ordered_json::array()}};
    for (int l = 0; l < fp8.layers(); l++) {
        nlohmann::ordered_json layer{{"layer", fp8.layer_name(l)}};
        for (int product = 0; product < kFp8Probed; product++) {
            const double error = probed_error(sums[Fp8Laboratory::probed_row(l, static_cast<Fp8Probed>(product))]);
            if (std::isfinite(error)) layer[kFp8ProbedNames[product]] = error;
        }
        if (layer.size() > 1) record["fp8_errors"].push_back(layer);
    }
    directory.append(record);
}

void record_sample(int64_t step, const std::string& text, RunDirectory& directory) {
    directory.append({{"step", step}, {"sample", text}});
}

void record_memory(int64_t step, const MemoryByKind& plan, const Comm& comm, RunDirectory& directory) {
    std::array<uint64_t, kMemoryKinds> mine;
    for (size_t kind = 0; kind < kMemoryKinds; kind++) mine[kind] = device_memory_use(MemoryKind(kind)).peak;
    std::vector<std::array<uint64_t, kMemoryKinds>> all(static_cast<size_t>(comm.world()));
    comm.host_all_gather(all.data(), &mine, sizeof mine);
    nlohmann::ordered_json memory;
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
        std::printf("memory after step %lld: %s free; libraries have taken %s, %s were reserved%s\n",
                    static_cast<long long>(step), format_bytes(free_now).c_str(), format_bytes(taken).c_str(),
                    format_bytes(reserve).c_str(), taken > reserve ? ": less than they need" : "");
    directory.append(
        {{"step", step}, {"memory_outside", {{"free", free_now}, {"taken", taken}, {"reserved", reserve}}}});
}

void report_verdict(int64_t step, ValidationWatch::Verdict verdict, const ValidationWatch& watch,
                    RunDirectory& directory, const Comm& comm) {
    if (verdict == ValidationWatch::Verdict::none || !comm.is_main()) return;
    const bool stops = verdict == ValidationWatch::Verdict::stop;
    std::printf("step %lld: no better validation loss in %s: %s\n", static_cast<long long>(step),
                plural(watch.since_best(), "validation").c_str(),
                stops
                    ? "the run ends here (--early-stop)"
                    : strprintf("the learning rate continues at %g times the schedule (--plateau)", watch.rate_factor())
                          .c_str());
    if (!stops) directory.append({{"step", step}, {"rate_factor", watch.rate_factor()}});
}

void report_fallback(int64_t step, const Fp8Fallback& fallback, const Fp8Registry& fp8, const Comm& comm,
                     RunDirectory& directory) {
    const std::string& layer = fp8.layer_name(fallback.layer);
    const char* role = name_of(fallback.role);
    const char* reason = fallback.reason == Fp8Reason::saturated ? "saturated" : "underflowed";
    if (comm.is_main())
        std::printf("step %lld: %s falls back to BF16: its %s %s in %.3g %% of its elements, above the limit for %s\n",
                    static_cast<long long>(step), layer.c_str(), role, reason, 100.0 * fallback.fraction,
                    plural(fp8.config().fallback.steps, "step").c_str());
    nlohmann::ordered_json entry{{"layer", layer}, {"tensor", role}, {"reason", reason}};
    put_number(entry, "fraction", fallback.fraction);
    directory.append({{"step", step}, {"fp8_fallback", nlohmann::ordered_json::array({entry})}});
}

}  // namespace llmc
