// Building blocks of the FP32 attention kernels. Four neighbouring lanes, or eight for head dimension 256, own a row
// and share its elements. A warp walks over keys with eight rows, or four, at once. Keys and values are read through
// the caches. Products of several rows are summed over the lanes together.
#pragma once
#include "llmc/device/kernel.cuh"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/attention_window.cuh"

namespace llmc::attention {

template <int HD>
constexpr int kRowLanes = row_lanes(HD);
template <int HD>
constexpr int kWarpRows = 32 / kRowLanes<HD>;
// The first and the last of the rows that a warp takes at once with this one.
template <int HD>
LLMC_DEVICE int first_row_of_warp(int row) {
    return row & ~(kWarpRows<HD> - 1);
}
template <int HD>
LLMC_DEVICE int last_row_of_warp(int row) {
    return row | (kWarpRows<HD> - 1);
}

// This lane's share of a row: pieces of 8, interleaved over the row's lanes. Of head dimension 80 the upper two lanes
// have a piece less, which is zero here.
template <int HD>
struct RowShare {
    static constexpr int step = 8 * kRowLanes<HD>, pieces = (HD + step - 1) / step;
    float value[pieces][8];

    LLMC_DEVICE static unsigned column() { return threadIdx.x % kRowLanes<HD> * 8; }  // where the first piece begins
    LLMC_DEVICE static bool has(int i) { return HD % step == 0 || i * step + column() < HD; }

    LLMC_DEVICE void clear() {
        LLMC_UNROLL
        for (int i = 0; i < pieces; i++)
            for (int e = 0; e < 8; e++) value[i][e] = 0.0f;
    }
    LLMC_DEVICE void load(const float* row) {
        LLMC_UNROLL
        for (int i = 0; i < pieces; i++) {
            if (has(i)) {
                load8(row + i * step + column(), value[i]);
            } else {
                for (int e = 0; e < 8; e++) value[i][e] = 0.0f;
            }
        }
    }
    LLMC_DEVICE void store(float* row) const {
        LLMC_UNROLL
        for (int i = 0; i < pieces; i++)
            if (has(i)) store8(row + i * step + column(), value[i]);
    }
    LLMC_DEVICE float dot(const RowShare& other) const {
        float sums[8] = {};
        LLMC_UNROLL
        for (int i = 0; i < pieces; i++)
            for (int e = 0; e < 8; e++) sums[e] += value[i][e] * other.value[i][e];
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    LLMC_DEVICE void scale(float factor) {
        LLMC_UNROLL
        for (int i = 0; i < pieces; i++)
            for (int e = 0; e < 8; e++) value[i][e] *= factor;
    }
    LLMC_DEVICE void add(float weight, const RowShare& other) {
        LLMC_UNROLL
        for (int i = 0; i < pieces; i++)
            for (int e = 0; e < 8; e++) value[i][e] += weight * other.value[i][e];
    }
};

// Products of a row's query with N keys from position `first` on. Positions from T on repeat the last key.
template <int HD, int N>
LLMC_DEVICE void score_keys(float (&scores)[N], const RowShare<HD>& query, const float* keys, size_t stride, int first,
                            int T) {
    LLMC_UNROLL
    for (int j = 0; j < N; j++) {
        RowShare<HD> key;
        key.load(keys + static_cast<size_t>(first + j < T ? first + j : T - 1) * stride);
        scores[j] = query.dot(key);
    }
    group_sum_each<kRowLanes<HD>>(scores);
}

// A query's softmax over the keys that it sees, and its sum of values before the division by `sum`.
template <int HD>
struct QueryRow {
    RowShare<HD> output;
    float maximum = float_from_bits(0xff800000u);  // in base 2
    float sum = 0.0f;

    // Attends the query at position `row` to keys and values up to `last_row`, the last that a query of this warp sees;
    // positions from T on do not exist. `first_row` is the warp's first query. A `row` beyond T gives a result that is
    // not used.
    template <bool kDocuments>
    LLMC_DEVICE void attend(const float* query_row, const float* keys, const float* values, size_t stride, int row,
                            int first_row, int last_row, float scale_log2, const Windows<kDocuments>& windows) {
        constexpr int keys_at_once = 8;
        RowShare<HD> query;
        query.load(query_row);
        output.clear();
        const float minus_infinity = float_from_bits(0xff800000u);
        const int T = windows.T, window = windows(row);
        for (int first = first_seen_key(first_row, windows(first_row), keys_at_once); first <= last_row;
             first += keys_at_once) {
            float p[keys_at_once];
            score_keys(p, query, keys, stride, first, T);
            float new_maximum = maximum;
            LLMC_UNROLL
            for (int j = 0; j < keys_at_once; j++) {
                p[j] = in_window(row - first - j, window) ? p[j] * scale_log2 : minus_infinity;
                new_maximum = max_float(new_maximum, p[j]);
            }
            // A row whose window begins after the warp's first may have seen no key yet: its base is 0 then.
            const float base = new_maximum == minus_infinity ? 0.0f : new_maximum;
            const float correction = exp2_fast(maximum - base);
            maximum = new_maximum;
            sum *= correction;
            output.scale(correction);
            LLMC_UNROLL
            for (int j = 0; j < keys_at_once; j++) {
                RowShare<HD> value;
                value.load(values + static_cast<size_t>(first + j < T ? first + j : T - 1) * stride);
                p[j] = exp2_fast(p[j] - base);
                sum += p[j];
                output.add(p[j], value);
            }
        }
    }
};

}  // namespace llmc::attention
