// Measures plain copies and mma.sync alone (ceilings.h).
#include "dev/probe/ceilings.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "dev/probe/operands.h"
#include "llmc/device/kernel.cuh"

namespace llmc::probe {
namespace {

constexpr int kRepeats = 10;

// Each thread copies 16 bytes per turn, with four copies in flight.
__global__ void __launch_bounds__(kBlockThreads) copy_kernel(Bytes16* to, const Bytes16* from, size_t n) {
    const size_t step = static_cast<size_t>(gridDim.x) * kBlockThreads;
    for (size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < n; i += 4 * step) {
        Bytes16 piece[4];
        LLMC_UNROLL
        for (int k = 0; k < 4; k++)
            if (i + k * step < n) piece[k] = from[i + k * step];
        LLMC_UNROLL
        for (int k = 0; k < 4; k++)
            if (i + k * step < n) to[i + k * step] = piece[k];
    }
}

// Operands stay in registers. Eight independent sums hide the latency of an instruction.
constexpr int kMmaTiles = 8;
__global__ void __launch_bounds__(kBlockThreads) mma_kernel(float* out, int turns) {
    const uint32_t thread = blockIdx.x * kBlockThreads + threadIdx.x;
    uint32_t a[4], b[kMmaTiles][2];
    float c[kMmaTiles][4];
    const auto operand = [&](uint32_t i) {
        return pack_bf16x2(value_at(kFirst, thread * 64 + i), value_at(kSecond, thread * 64 + i));
    };
    LLMC_UNROLL
    for (uint32_t i = 0; i < 4; i++) a[i] = operand(i);
    LLMC_UNROLL
    for (uint32_t j = 0; j < kMmaTiles; j++) {
        LLMC_UNROLL
        for (uint32_t i = 0; i < 4; i++) c[j][i] = 0.0f;
        b[j][0] = operand(8 + 2 * j);
        b[j][1] = operand(9 + 2 * j);
    }
    for (int i = 0; i < turns; i++) mma_row(c, a, b);
    float sum = 0;
    LLMC_UNROLL
    for (int j = 0; j < kMmaTiles; j++) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
    out[thread] = sum;
}

double median_seconds(stream_t stream, const std::function<void()>& work) {
    const event_t begin = create_event(true), end = create_event(true);
    work();
    std::vector<double> times;
    for (int i = 0; i < kRepeats; i++) {
        record(begin, stream);
        work();
        record(end, stream);
        synchronize(end);
        times.push_back(static_cast<double>(elapsed_ms(begin, end)) * 1e-3);
    }
    destroy_event(begin);
    destroy_event(end);
    std::sort(times.begin(), times.end());
    return std::max(times[times.size() / 2], 1e-9);
}

void measure_copies(nlohmann::ordered_json& ceilings, stream_t stream) {
    const DeviceInfo device = device_info();
    const size_t bytes = device.is_host ? size_t{64} << 10 : std::min(size_t{4} << 30, device.free_memory / 4);
    const size_t n = bytes / sizeof(Bytes16);
    auto* from = static_cast<Bytes16*>(device_malloc(bytes));
    auto* to = static_cast<Bytes16*>(device_malloc(bytes));
    fill_values(from, Product::Element::bf16, bytes / 2, kFirst, stream);
    const unsigned blocks = device.is_host ? 2 : static_cast<unsigned>(device.multiprocessors * 8);
    const double kernel = median_seconds(stream, [&] {
        launch<copy_kernel>({dim3(blocks), dim3(kBlockThreads), 0, stream}, {out(to, n), in(from, n)}, to, from, n);
    });
    const double engine = median_seconds(stream, [&] { copy_on_device(to, from, bytes, stream); });
    const double write = median_seconds(stream, [&] { set_bytes(to, 1, bytes, stream); });
    ceilings["copy_bytes"] = bytes;
    ceilings["copy_gbs"] = 2.0 * static_cast<double>(bytes) / kernel * 1e-9;  // counts bytes read and written
    ceilings["copy_engine_gbs"] = 2.0 * static_cast<double>(bytes) / engine * 1e-9;
    ceilings["fill_gbs"] = static_cast<double>(bytes) / write * 1e-9;
    device_free(from);
    device_free(to);
}

void measure_mma(nlohmann::ordered_json& ceilings, stream_t stream) {
    const DeviceInfo device = device_info();
    const unsigned blocks = device.is_host ? 1 : static_cast<unsigned>(device.multiprocessors * 8);
    const int turns = device.is_host ? 4 : 20000;
    const size_t threads = static_cast<size_t>(blocks) * kBlockThreads;
    auto* sums = static_cast<float*>(device_malloc(threads * sizeof(float)));
    const double seconds = median_seconds(stream, [&] {
        launch<mma_kernel>({dim3(blocks), dim3(kBlockThreads), 0, stream}, {out(sums, threads)}, sums, turns);
    });
    constexpr double kFlopsOfMma = 2.0 * 16 * 8 * 16;
    ceilings["mma_sync_bf16_tflops"] =
        kFlopsOfMma * kMmaTiles * turns * (static_cast<double>(threads) / 32) / seconds * 1e-12;
    device_free(sums);
}

}  // namespace

nlohmann::ordered_json measure_ceilings(stream_t stream) {
    nlohmann::ordered_json ceilings;
    measure_copies(ceilings, stream);
    measure_mma(ceilings, stream);
    return ceilings;
}

}  // namespace llmc::probe
