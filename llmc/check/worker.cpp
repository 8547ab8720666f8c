#include "llmc/check/worker.h"
#include "llmc/base/json.h"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kFewestProposals = 8;  // that are looked for while none is right

void say(const Json& line) {
    std::printf("%s\n", json_text(line).c_str());
    std::fflush(stdout);
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void finish(const std::string& name, Finding finding, Clock::time_point begin) {
    finding.seconds = seconds_since(begin);
    say({{"end", name}, {"finding", findings_json({{name, finding}})}});
}

bool is_timed(const CheckRequest& request) { return request.tune > 1; }

void make_items(const CheckRequest& request, stream_t stream) {
    for (const CheckItem& item : kernel_checks(request.use)) {
        if (request.found.count(item.name)) continue;
        const Clock::time_point begin = Clock::now();
        say({{"begin", item.name}});
        Finding finding{item.family, item.variant, item.run(stream), 0, {}};
        if (item.rate && finding.problem.empty() && is_timed(request)) {
            const double rate = item.rate(stream);
            if (rate > 0) finding.rates = {{item.name, rate}};
        }
        finish(item.name, finding, begin);
    }
}

// Ways are tried until one is right; with `tune`, so many of the library's own are, and timed.
Finding try_product(const CheckRequest& request, ProductChecks& checks, const Product& product, const std::string& key,
                    const std::vector<ProductTrial>& over) {
    Finding finding{kProductFamily, "", "", 0, over};
    const auto preferred = request.preferred.find(key);
    const std::string wanted = preferred == request.preferred.end() ? "" : preferred->second;
    const auto is_right = [](const ProductTrial& trial) { return trial.problem.empty(); };
    bool found = std::any_of(over.begin(), over.end(), is_right);
    int tried = static_cast<int>(over.size());
    for (const ProductChoice& way : checks.ways(product, wanted, std::max(request.tune, kFewestProposals))) {
        if (found && (falls_back(way) || tried >= request.tune)) break;
        if (std::any_of(over.begin(), over.end(), [&](const ProductTrial& trial) { return trial.way == way; }))
            continue;
        say({{"begin", key}, {"way", trial_json({way, "", 0})}});
        finding.trials.push_back(checks.hold(product, way, is_timed(request)));
        say({{"trial", key}, {"way", trial_json(finding.trials.back())}});
        tried++;
        found = found || is_right(finding.trials.back());
        if (is_right(finding.trials.back()) && !wanted.empty() && way.algorithm == wanted) break;
    }
    for (const ProductTrial& trial : finding.trials) {
        if (trial.ms <= 0 || !trial.problem.empty()) continue;
        double& rate = finding.rates[is_fp8(product.type) ? "fp8" : name_of(product.type)];
        rate = std::max(rate, 2e3 * product.N * product.C * product.OC / trial.ms);
    }
    if (!found) finding.problem = finding.trials.empty() ? "cuBLASLt has no algorithm" : finding.trials.front().problem;
    return finding;
}

void make_products(const CheckRequest& request, stream_t stream) {
    Matmul matmul(request.tf32, request.fast_accumulation, request.use.scaling);
    ProductChecks checks(matmul, stream);
    for (const Product& product : request.products) {
        const std::string key = matmul.key(product);
        const auto before = request.found.find(key);
        // One that was begun and not ended has trials, and neither a problem nor a time.
        if (before != request.found.end() && (before->second.seconds > 0 || !before->second.problem.empty())) continue;
        const Clock::time_point begin = Clock::now();
        say({{"begin", key}});
        finish(key,
               try_product(request, checks, product, key,
                           before == request.found.end() ? std::vector<ProductTrial>{} : before->second.trials),
               begin);
    }
}

}  // namespace

ExitCode check_worker(const std::function<KernelUse(const std::string& run)>& use_of) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever asked is gone: nobody wants to know
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    CheckRequest request = request_from_json(parse_json<Json>(text));
    open_device(request.device);
    request.use = use_of(request.run);
    const stream_t stream = create_stream();
    say({{"device", device_info().name}});
    make_items(request, stream);
    make_products(request, stream);
    synchronize_device();
    destroy_stream(stream);
    say({{"done", true}});
    return ExitCode::ok;
}

}  // namespace llmc
