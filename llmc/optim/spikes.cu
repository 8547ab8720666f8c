// Kernels and launchers of spikes.h.
#include "llmc/optim/spikes.h"

#include "llmc/device/kernel.cuh"

namespace llmc {

// Empties the windows: no step counts as a spike until they contain kSpikeMinimum values again.
LLMC_DEVICE void start_windows(SpikeState* spikes) {
    spikes->accepted = spikes->in_a_row = 0;
    spikes->loss_limit = spikes->norm_limit = static_cast<double>(float_from_bits(0x7f800000u));
}

static __global__ void reset_spikes_kernel(SpikeState* spikes) {
    const int i = static_cast<int>(threadIdx.x);
    spikes->loss[i] = spikes->norm[i] = 0.0;
    if (i != 0) return;
    start_windows(spikes);
}

// Adds up values[0 .. kSpikeWindow) into values[0], for each half of the block separately.
LLMC_DEVICE void sum_window(double* values, int place) {
    for (int stride = kSpikeWindow / 2; stride > 0; stride /= 2) {
        __syncthreads();
        if (place < stride) values[place] += values[place + stride];
    }
    __syncthreads();
}

// One block with two halves of kSpikeWindow threads: losses and norms, one value per thread.
static __global__ void __launch_bounds__(2 * kSpikeWindow)
    update_spikes_kernel(SpikeState* spikes, const StepState* step) {
    LLMC_SHARED(double, scratch, [2][kSpikeWindow]);
    const int half = static_cast<int>(threadIdx.x) / kSpikeWindow;
    const int place = static_cast<int>(threadIdx.x) % kSpikeWindow;
    if (step->spike && threadIdx.x == 0 && ++spikes->in_a_row == kSpikesOfNewLevel) start_windows(spikes);
    if (step->skip || step->spike) return;  // the same for all threads; the limits stay
    const int64_t accepted = spikes->accepted;

    double* window = half == 0 ? spikes->loss : spikes->norm;
    const int newest = static_cast<int>(accepted % kSpikeWindow);
    const int count = accepted + 1 < kSpikeWindow ? static_cast<int>(accepted + 1) : kSpikeWindow;
    double value = 0.0;
    if (place < count) value = window[place];
    if (place == newest) window[place] = value = half == 0 ? static_cast<double>(step->loss_sum) : step->norm;

    double* sums = scratch[half];
    sums[place] = value;
    sum_window(sums, place);
    const double mean = sums[0] / count;
    __syncthreads();
    sums[place] = place < count ? (value - mean) * (value - mean) : 0.0;
    sum_window(sums, place);
    if (place != 0) return;
    const double sigma = fmax(sqrt(sums[0] / count), kSpikeLeastSigma * fabs(mean));
    if (count >= kSpikeMinimum) (half == 0 ? spikes->loss_limit : spikes->norm_limit) = mean + kSpikeSigmas * sigma;
    if (half != 0) return;
    spikes->accepted = accepted + 1;  // safe: the barriers above order this after every thread's read
    spikes->in_a_row = 0;
}

void reset_spikes(SpikeState* spikes, stream_t stream) {
    launch<reset_spikes_kernel>({1, kSpikeWindow, 0, stream}, out(spikes, 1));
}

void update_spikes(SpikeState* spikes, const StepState* step, stream_t stream) {
    launch<update_spikes_kernel>({1, 2 * kSpikeWindow, 0, stream}, inout(spikes, 1), in(step, 1));
}

}  // namespace llmc
