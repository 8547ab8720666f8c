// The fused classifier (classifier.h).
#include "llmc/kernels/classifier.h"

#include "llmc/device/kernel.cuh"
#include "llmc/device/registers.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/classifier_random.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kIgnoredTarget = -1;

LLMC_HD float not_a_number() { return float_from_bits(kFloatMagnitudeMask); }
LLMC_HD float minus_infinity() { return float_from_bits(kFloatInfinityBits | 0x80000000u); }

// cap * tanh(x / cap) and its derivative, both from e = exp(-2 |x| / cap): (1 - e) / (1 + e) and 4 e / (1 + e)^2. The
// tanh is off by at most 8 * 2^-24, and the relative error of the derivative is as large. Adding `x * 0` keeps an
// infinity from becoming a cap.
template <bool Capped>
struct SoftCap {
    float cap;

    LLMC_HD float operator()(float x, float& slope) const {
        if constexpr (!Capped) {
            slope = 1.0f;
            return x;
        }
        const float e = exp2_fast(abs_float(x) * (-2.0f * kLog2E / cap)), inverse = divide_fast(1.0f, 1.0f + e);
        slope = 4.0f * e * inverse * inverse;
        const float tanh = (1.0f - e) * inverse;
        return (x < 0.0f ? -tanh : tanh) * cap + x * 0.0f;
    }
    LLMC_HD void apply(float (&x)[8]) const {
        float slope;
        for (int i = 0; i < 8; i++) x[i] = (*this)(x[i], slope);
    }
};

// Maximum of the values and sum of exp(x - max); (-inf, 0) for no values.
struct SoftmaxResult {
    float max, sum;
};

// A softmax that is still being read: the largest value so far and the sum of exp(x - max). The sum is kept in eight
// columns so that the loop vectorises.
struct OnlineSoftmax {
    float max = minus_infinity();
    float sum[8] = {};

    // Adds the first `valid` of eight values. Their maximum comes first, so that old sums are rescaled at most once per
    // eight, and in practice a few times per row. `x * 0` adds nothing, except that an infinity of either sign makes
    // the sum NaN; otherwise a logit of -inf would go unseen. Always inlined: for whole vectors `valid` is the constant
    // 8 and its comparisons vanish.
    LLMC_HD void add(const float (&x)[8], int valid) {
        float y[8];
        for (int i = 0; i < 8; i++) y[i] = i < valid ? x[i] : x[0];
        const float largest = max_float(max_float(max_float(y[0], y[1]), max_float(y[2], y[3])),
                                        max_float(max_float(y[4], y[5]), max_float(y[6], y[7])));
        if (largest > max) {
            const float factor = exp2_fast((max - largest) * kLog2E);
            for (int i = 0; i < 8; i++) sum[i] *= factor;
            max = largest;
        }
        for (int i = 0; i < 8; i++) {
            const float term = exp2_fast((x[i] - max) * kLog2E) + x[i] * 0.0f;
            sum[i] += i < valid ? term : 0.0f;
        }
    }
    LLMC_DEVICE SoftmaxResult result() const {
        return {max, ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]))};
    }
};

// Combines the lanes' softmaxes into the warp's. A lane that has seen nothing, with maximum -inf, gets factor 0. (At
// least one lane has seen a value: the launcher gives no row more warps than it has vectors.)
LLMC_DEVICE SoftmaxResult combine_lanes(SoftmaxResult lane) {
    const float max = warp_max(lane.max);
    const float factor = exp2_fast((lane.max - max) * kLog2E);
    return {max, warp_sum(lane.sum * factor)};
}

// Combines the warps' softmaxes into the block's, for every thread. Reads of all threads before this call happen before
// writes after it.
template <int Threads>
LLMC_DEVICE SoftmaxResult combine_block(SoftmaxResult thread) {
    constexpr int kWarps = Threads / 32;
    SoftmaxResult result = combine_lanes(thread);
    if (kWarps == 1) {
        __syncwarp();
        return result;
    }
    LLMC_SHARED(float, of_warps, [2][32]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
        of_warps[0][warp] = result.max;
        of_warps[1][warp] = result.sum;
    }
    __syncthreads();
    result.max = lane < kWarps ? of_warps[0][lane] : minus_infinity();
    result.sum = lane < kWarps ? of_warps[1][lane] : 0.0f;
    return combine_lanes(result);
}

// ---- one row --------------------------------------------------------------------------------------------------------

// Calls use(c, x) for the thread's vectors of eight logits of a row, in order, with 32 bytes in flight.
template <int Threads, class Real, class Use>
LLMC_DEVICE void for_each_vector(const Real* row, int V, const Use& use) {
    constexpr int kAtOnce = 4 / sizeof(Real), kStep = Threads * 8;
    LLMC_NO_UNROLL
    for (int first = static_cast<int>(threadIdx.x) * 8; first < V; first += kAtOnce * kStep) {
        Packed8<Real> packed[kAtOnce];
        LLMC_UNROLL
        for (int k = 0; k < kAtOnce; k++) {
            const int c = first + k * kStep;  // past the end, the first vector is read again and not used
            packed[k].load(row + (c < V ? c : first));
        }
        if constexpr (kAtOnce > 1) issue_loads_first();
        LLMC_UNROLL
        for (int k = 0; k < kAtOnce; k++) {
            const int c = first + k * kStep;
            if (c >= V) break;
            float x[8];
            packed[k].get(x);
            use(c, x);
        }
    }
}

// The parameters of softmax_cross_entropy() that are the same for all rows.
struct LossParameters {
    float dloss;
    const float* loss_scale;
    int V, padded_V;
    bool write_gradient;
    float soft_cap, z_loss;
};

// Computes the loss of a row, and calls store(c, gradient) for the thread's vectors of eight columns.
template <int Threads, bool Capped, class Real, class Store>
LLMC_DEVICE void softmax_cross_entropy_row(const LossParameters& p, const Real* x_row, int target, float* loss,
                                           const Store& store) {
    const SoftCap<Capped> cap{p.soft_cap};
    if (target == kIgnoredTarget) {
        if (threadIdx.x == 0) *loss = 0.0f;
        const float zeros[8] = {};
        for (int c = threadIdx.x * 8; p.write_gradient && c < p.padded_V; c += Threads * 8) store(c, zeros);
        return;
    }
    const bool known = target >= 0 && target < p.V;
    float target_logit = not_a_number(), slope;
    if (threadIdx.x == 0 && known) target_logit = cap(to_float(x_row[target]), slope);

    OnlineSoftmax softmax;
    for_each_vector<Threads>(x_row, p.V, [&](int c, float(&x)[8]) {
        if constexpr (Capped) cap.apply(x);
        if (c + 8 <= p.V)
            softmax.add(x, 8);
        else
            softmax.add(x, p.V - c);
    });
    const auto [max, sum] = combine_block<Threads>(softmax.result());
    if (threadIdx.x == 0) *loss = (max - target_logit) + logf(sum);
    if (!p.write_gradient) return;

    const float gradient = !known ? not_a_number() : p.loss_scale != nullptr ? p.dloss * *p.loss_scale : p.dloss;
    const float factor = gradient * (1.0f + 2.0f * p.z_loss * (max + logf(sum))) / sum;
    for (int c = threadIdx.x * 8; c < p.padded_V; c += Threads * 8) {
        float x[8] = {};
        if (c < p.V) {
            load8(x_row + c, x);
            for (int i = 0; i < 8; i++) {
                float d = exp2_fast((cap(x[i], slope) - max) * kLog2E) * factor;
                if (Capped && c + i == target) d -= gradient;
                x[i] = Capped ? d * slope : d;
            }
            if (!Capped && target >= c && target < c + 8)
                for (int i = 0; i < 8; i++) x[i] -= c + i == target ? gradient : 0.0f;
            if (c + 8 > p.V)
                for (int i = 0; i < 8; i++) x[i] = c + i < p.V ? x[i] : 0.0f;
        }
        store(c, x);
    }
}

// ---- gradient over the logits, or as codes --------------------------------------------------------------------------

// Two blocks of 768 threads fit a multiprocessor. Their rows together stay in the L2 cache for the second pass.
template <class Real, int Threads, bool Capped>
static __global__ void __launch_bounds__(Threads, Threads == 768 ? 2 : 1)
    softmax_cross_entropy_kernel(Real* logits, float* losses, const int* targets, float dloss, const float* loss_scale,
                                 int V, int padded_V, bool write_gradient, float soft_cap, float z_loss) {
    const int row = gridDim.x - 1 - blockIdx.x;
    Real* const x_row = logits + static_cast<size_t>(row) * padded_V;
    softmax_cross_entropy_row<Threads, Capped>({dloss, loss_scale, V, padded_V, write_gradient, soft_cap, z_loss},
                                               x_row, targets[row], losses + row,
                                               [=](int c, const float(&gradient)[8]) { store8(x_row + c, gradient); });
}

template <class F8, int Threads, bool Capped>
static __global__ void __launch_bounds__(Threads, Threads == 768 ? 2 : 1)
    softmax_cross_entropy_fp8_kernel(F8* codes, Fp8State* state, const bf16* logits, float* losses, const int* targets,
                                     float dloss, const float* loss_scale, int V, int padded_V, float soft_cap,
                                     float z_loss, QuantizePass pass) {
    const int row = gridDim.x - 1 - blockIdx.x;
    const size_t begin = static_cast<size_t>(row) * padded_V;
    const float scale = state->scale;
    LLMC_SHARED(QuantizeTally, tallies, [Threads]);
    QuantizeTally tally;
    const int target = targets[row];
    const auto store = [&](int c, const float(&gradient)[8]) {
        float rounded[8];
        for (int i = 0; i < 8; i += 2) {
            const uint32_t pair = pack_bf16x2(gradient[i], gradient[i + 1]);
            rounded[i] = bf16x2_low(pair);
            rounded[i + 1] = bf16x2_high(pair);
        }
        uint32_t words[2] = {};
        quantize_8<F8, true>(words, tally, rounded, scale, pass, [&](float(&scaled)[8]) {
            uint32_t random[8];
            random_of_gradients(random, scaled, target, c);
            for (int i = 0; i < 8; i++) scaled[i] = dither<FormatOf<F8>>(scaled[i], random[i]);
        });
        if (writes_fp8(pass)) *reinterpret_cast<uint2*>(codes + begin + c) = make_uint2(words[0], words[1]);
    };
    softmax_cross_entropy_row<Threads, Capped>({dloss, loss_scale, V, padded_V, true, soft_cap, z_loss}, logits + begin,
                                               target, losses + row, store);
    tallies[threadIdx.x] = tally;
    __syncthreads();
    commit_tallies(state, tallies, static_cast<size_t>(gridDim.x) * padded_V, pass);
}

// ---- launchers ------------------------------------------------------------------------------------------------------

static void check_loss(const char* launcher, int rows, int V, int padded_V, const LogitShaping& shaping) {
    check_rows(launcher, rows, padded_V);
    if (V < 1 || V > padded_V) {
        throw Error(ExitCode::failure, "{}: V={} with padded_V={}; needs 1 <= V <= padded_V", launcher, V, padded_V);
    }
    const auto [soft_cap, z_loss] = shaping;
    if (!(soft_cap >= 0.0f && z_loss >= 0.0f)) {
        throw Error(ExitCode::failure, "{}: soft cap {:g}, z-loss {:g}; they must be 0 or more", launcher, soft_cap,
                    z_loss);
    }
}

// Calls run<Threads, Capped>(). A small vocabulary gets one warp per row: on short rows the exchange between warps
// would dominate.
template <class Run>
static void choose_block(int V, float soft_cap, const Run& run) {
    with_one_of<32, 128, 768>(V <= 1024   ? 32
                              : V <= 8192 ? 128
                                          : 768,
                              [&]<int Threads>() {
                                  soft_cap > 0.0f ? run.template operator()<Threads, true>()
                                                  : run.template operator()<Threads, false>();
                              });
}

template <class Real>
void softmax_cross_entropy(Real* logits, float* losses, const int* targets, float dloss, const float* loss_scale,
                           int rows, int V, int padded_V, bool write_gradient, stream_t stream,
                           const LogitShaping& shaping) {
    check_loss("softmax_cross_entropy", rows, V, padded_V, shaping);
    const size_t n = static_cast<size_t>(rows) * padded_V, count = rows;
    choose_block(V, shaping.soft_cap, [&]<int Threads, bool Capped>() {
        const Tensor<Real> read_and_perhaps_written{logits, n, true, write_gradient};
        host::launch_or_loop<softmax_cross_entropy_kernel<Real, Threads, Capped>,
                             host::softmax_cross_entropy<Real, Threads, Capped>>(
            {dim3(rows), dim3(Threads), 0, stream}, read_and_perhaps_written, out(losses, count), in(targets, count),
            dloss, in(loss_scale, 1), V, padded_V, write_gradient, shaping.soft_cap, shaping.z_loss);
    });
}

template <class F8>
void softmax_cross_entropy_fp8(const Quantized<F8>& to, const bf16* logits, float* losses, const int* targets,
                               float dloss, const float* loss_scale, int rows, int V, int padded_V, QuantizePass pass,
                               stream_t stream, const LogitShaping& shaping) {
    check_loss("softmax_cross_entropy_fp8", rows, V, padded_V, shaping);
    check_quantize("softmax_cross_entropy_fp8", to.state, rows, padded_V);
    const bool writes = writes_fp8(pass);
    if (writes && (to.row == nullptr || to.transposed == nullptr))
        throw Error(ExitCode::failure, "softmax_cross_entropy_fp8: writes codes in both layouts; one is missing");
    const size_t n = static_cast<size_t>(rows) * padded_V, count = rows;
    choose_block(V, shaping.soft_cap, [&]<int Threads, bool Capped>() {
        host::launch_or_loop<softmax_cross_entropy_fp8_kernel<F8, Threads, Capped>,
                             host::softmax_cross_entropy_fp8<F8, Threads, Capped>>(
            {dim3(rows), dim3(Threads), 0, stream}, out(writes ? to.row : nullptr, n), state_access(to.state, pass),
            in(logits, n), out(losses, count), in(targets, count), dloss, in(loss_scale, 1), V, padded_V,
            shaping.soft_cap, shaping.z_loss, pass);
    });
    if (writes) transpose_codes(to.transposed, to.row, rows, padded_V, stream);
}

LLMC_INSTANTIATE_BOTH(softmax_cross_entropy, float, bf16);
LLMC_INSTANTIATE_BOTH(softmax_cross_entropy_fp8, e4m3, e5m2);

// ---- sum of the losses ---------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(256)
    sum_losses_kernel(double* total, int* count, const float* losses, const int* targets, int n, bool accumulate) {
    LLMC_SHARED(double, sums, [256]);
    LLMC_SHARED(int, counts, [256]);
    double sum = 0.0;
    int counted = 0;
    for (int i = threadIdx.x; i < n; i += 256) {
        sum += losses[i];
        counted += targets[i] != kIgnoredTarget;
    }
    sums[threadIdx.x] = sum;
    counts[threadIdx.x] = counted;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 256; i++) {
        sum += sums[i];
        counted += counts[i];
    }
    *total = accumulate ? *total + sum : sum;
    *count = accumulate ? *count + counted : counted;
}

void sum_losses(double* total, int* count, const float* losses, const int* targets, int n, bool accumulate,
                stream_t stream) {
    if (n < 0) throw Error(ExitCode::failure, "sum_losses: n={} losses", n);
    host::launch_or_loop<sum_losses_kernel, host::sum_losses>(
        {dim3(1), dim3(256), 0, stream}, accumulate ? inout(total, 1) : out(total, 1),
        accumulate ? inout(count, 1) : out(count, 1), in(losses, n), in(targets, n), n, accumulate);
}

}  // namespace llmc
