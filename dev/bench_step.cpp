// Breaks down a training step of the demo model (4 layers, 128 channels, 4 heads, 128 tokens) on the host device: time,
// calls and bytes of every kernel, the share of matrix products, and tokens per second, for each precision.
//
//   bench_step [STEPS]    default 20
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dev/element_wise.h"
#include "llmc/train/step_results.h"
#include "llmc/train/trainer.h"

using namespace llmc;

namespace {

constexpr int kB = 8, kT = 128;

ModelConfig demo_model() {
    ModelConfig config;
    config.name = "demo";
    config.layers = 4, config.heads = 4, config.channels = 128, config.vocab = 257, config.context = kT;
    return config;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void print_operations(const char* precision, int steps, double elapsed) {
    std::vector<std::pair<std::string, host::OperationRecord>> rows(host::operations().begin(),
                                                                    host::operations().end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    double recorded = 0, products = 0;
    for (const auto& [name, row] : rows) {
        recorded += row.seconds;
        if (name.rfind("matmul", 0) == 0) products += row.seconds;
    }
    std::printf("\n%s: %.1f ms a step, %.0f tokens/s; matrix products %.0f %% of the time, %.0f %% outside kernels\n",
                precision, elapsed / steps * 1e3, steps * kB * kT / elapsed, products / elapsed * 100,
                (1 - recorded / elapsed) * 100);
    std::printf("%-64s %6s %9s %7s %9s\n", "kernel", "calls", "ms/step", "share", "MB/s");
    std::printf("element-wise kernels move %.1f C bytes a token and layer\n",
                element_wise_bytes() / steps / (kB * kT * 4.0 * 128));
    for (const auto& [name, row] : rows) {
        const double bytes = static_cast<double>(row.bytes_read + row.bytes_written);
        std::printf("%-64.64s %6.0f %9.3f %6.1f%% %9.0f\n", name.c_str(), static_cast<double>(row.count) / steps,
                    row.seconds / steps * 1e3, row.seconds / elapsed * 100, bytes / row.seconds / 1e6);
    }
}

template <class Real>
void run(const char* precision, bool with_fp8, int steps) {
    TrainerConfig config;
    config.model = demo_model();
    config.batch = kB, config.seq = kT;
    config.recompute = Recompute::none;
    if (with_fp8) config.precision = Precision::fp8;
    config.schedule = {ScheduleKind::constant, 1e-3, 0, 1000, 0};
    config.clip = 1.0;
    Trainer<Real> trainer(config, Comm::self());
    trainer.allocate();
    trainer.initialize(1337);

    std::vector<int> tokens(kB * kT), targets(kB * kT);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<int>(i * 7919 % 257);
    for (size_t i = 0; i < tokens.size(); i++) targets[i] = tokens[(i + 1) % tokens.size()];
    auto step = [&] {
        trainer.begin_step({.continues = true});
        trainer.micro_step(tokens.data(), targets.data());
        trainer.finish_step();
        trainer.take_result(0);
    };
    for (int i = 0; i < 3; i++) step();  // warms up and calibrates FP8
    host::record_operations(true);
    const double start = seconds();
    for (int i = 0; i < steps; i++) step();
    print_operations(precision, steps, seconds() - start);
    host::record_operations(false);
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    open_device(0);
    const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
    std::printf("%s, demo model, %d tokens a step\n", device_info().name.c_str(), kB * kT);
    run<bf16>("bf16", false, steps);
    run<bf16>("fp8", true, steps);
    run<float>("fp32", false, steps);
    return 0;
}
