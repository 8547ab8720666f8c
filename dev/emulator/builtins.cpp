// The emulator's barriers, shuffles, reductions over lanes, ldmatrix and mma.sync, asynchronous copies, and shared
// memory. llmc/device/ declares these functions, and kernels call them.
//
// A reduction or mma is one rendezvous of the lanes: the last of the 32 to arrive computes the results of all.
// build: per device, optimized
#include <algorithm>

#include "dev/emulator/executor.h"
#include "llmc/device/kernel.cuh"

void __syncthreads(const char* file, int line) { llmc::host::executor().barrier(file, line); }
void __syncwarp(unsigned mask, const char* file, int line) { llmc::host::executor().sync_warp(mask, file, line); }

namespace llmc {
namespace host {

void* static_shared(SharedSite& site, size_t bytes) { return executor().static_shared(site, bytes); }
void* dynamic_shared(const char* file, int line) { return executor().dynamic_shared(file, line); }

uint32_t shuffle_xor(unsigned mask, uint32_t value, int lane_mask, int width, const char* file, int line) {
    const int me = executor().lane_index();
    int source = me ^ lane_mask;
    if (source / width > me / width) source = me;
    return executor().shuffle(mask, value, source & 31, "__shfl_xor_sync", file, line);
}
uint32_t shuffle(unsigned mask, uint32_t value, int lane, int width, const char* file, int line) {
    const int me = executor().lane_index();
    return executor().shuffle(mask, value, me / width * width + (lane & (width - 1)), "__shfl_sync", file, line);
}

// ---- reductions -----------------------------------------------------------------------------------------------------

// A butterfly over groups of `width` lanes, for N values of each lane from `first` on.
template <class Op, int N>
static void butterfly(void** lanes, int first, int width) {
    const Op op;
    float v[32][N];
    const auto of = [&](int lane) { return static_cast<float*>(lanes[lane]) + first; };
    for (int l = 0; l < 32; l++) std::memcpy(v[l], of(l), sizeof v[l]);
    for (int offset = width / 2; offset > 0; offset /= 2)
        for (int l = 0; l < 32; l++) {  // in pairs, because indexing by l ^ offset would become slow gathers
            if (l & offset) continue;
            for (int i = 0; i < N; i++) {
                const float mine = v[l][i], other = v[l | offset][i];
                v[l][i] = op(mine, other);
                v[l | offset][i] = op(other, mine);
            }
        }
    for (int l = 0; l < 32; l++) std::memcpy(of(l), v[l], sizeof v[l]);
}

template <class Op>
static void butterflies(void** lanes, int n, int width) {
    int i = 0;
    for (; i + 8 <= n; i += 8) butterfly<Op, 8>(lanes, i, width);
    for (; i + 2 <= n; i += 2) butterfly<Op, 2>(lanes, i, width);
    if (i < n) butterfly<Op, 1>(lanes, i, width);
}

void group_reduce(float* values, int n, int width, bool maximum, const char* what, const char* file, int line) {
    executor().collective(~0u, values, what, file, line, [=](void** lanes) {
        maximum ? butterflies<MaxOp>(lanes, n, width) : butterflies<SumOp>(lanes, n, width);
    });
}

// ---- mma ------------------------------------------------------------------------------------------------------------

namespace {

struct MmaArguments {
    float (*c)[4];
    const uint32_t* a;
    const uint32_t (*b)[2];
};

constexpr int kMostTiles = 33;  // the output of head dimension 256, and its row sums

// Decodes the fragments of all lanes (mma.cuh), multiplies in FP32 and writes all results.
void mma_all_lanes(void** lanes, int tiles) {
    float A[16][16], B[16][8 * kMostTiles], C[16][8 * kMostTiles];
    for (int l = 0; l < 32; l++) {
        const auto& lane = *static_cast<MmaArguments*>(lanes[l]);
        const int g = l >> 2, t = (l & 3) * 2;
        for (int i = 0; i < 4; i++) {
            const int row = g + (i & 1) * 8, column = t + (i >> 1) * 8;
            A[row][column] = bf16x2_low(lane.a[i]);
            A[row][column + 1] = bf16x2_high(lane.a[i]);
        }
        for (int j = 0; j < tiles; j++) {
            for (int i = 0; i < 2; i++) {
                B[t + i * 8][j * 8 + g] = bf16x2_low(lane.b[j][i]);
                B[t + i * 8 + 1][j * 8 + g] = bf16x2_high(lane.b[j][i]);
            }
            C[g][j * 8 + t] = lane.c[j][0];
            C[g][j * 8 + t + 1] = lane.c[j][1];
            C[g + 8][j * 8 + t] = lane.c[j][2];
            C[g + 8][j * 8 + t + 1] = lane.c[j][3];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8 * tiles; column++) {  // vectorised over columns; each sum stays in a register
            float sum = C[row][column];
            for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][column];
            C[row][column] = sum;
        }
    for (int l = 0; l < 32; l++) {
        const auto& lane = *static_cast<MmaArguments*>(lanes[l]);
        const int g = l >> 2, t = (l & 3) * 2;
        for (int j = 0; j < tiles; j++) {
            lane.c[j][0] = C[g][j * 8 + t];
            lane.c[j][1] = C[g][j * 8 + t + 1];
            lane.c[j][2] = C[g + 8][j * 8 + t];
            lane.c[j][3] = C[g + 8][j * 8 + t + 1];
        }
    }
}

// Each lane reads its own rows when it arrives, so the race detector sees the accesses. The last lane distributes.
struct LdmatrixArguments {
    uint32_t* r;
    uint16_t row[kMostTiles / 2][8];
};

void ldmatrix_all_lanes(void** lanes, int count, bool transposed) {
    for (int p = 0; p < count; p++)
        for (int m = 0; m < 4; m++) {
            const uint16_t* matrix[8];
            for (int i = 0; i < 8; i++) matrix[i] = static_cast<LdmatrixArguments*>(lanes[m * 8 + i])->row[p];
            for (int l = 0; l < 32; l++) {
                const int i = l >> 2, j = (l & 3) * 2;
                const uint32_t low = transposed ? matrix[j][i] : matrix[i][j];
                const uint32_t high = transposed ? matrix[j + 1][i] : matrix[i][j + 1];
                static_cast<LdmatrixArguments*>(lanes[l])->r[p * 4 + m] = low | high << 16;
            }
        }
}

}  // namespace

void mma(float (*c)[4], const uint32_t* a, const uint32_t (*b)[2], int tiles, const char* file, int line) {
    if (tiles > kMostTiles) executor().fail("mma of %d tiles at %s:%d: at most %d", tiles, file, line, kMostTiles);
    MmaArguments mine{c, a, b};
    executor().collective(~0u, &mine, "mma.m16n8k16", file, line, [=](void** lanes) { mma_all_lanes(lanes, tiles); });
}

void ldmatrix(uint32_t* r, const void* row, int step, int count, bool transposed, const char* file, int line) {
    LdmatrixArguments mine;
    mine.r = r;
    if (count > kMostTiles / 2) executor().fail("%d ldmatrix at %s:%d: at most %d", count, file, line, kMostTiles / 2);
    if ((reinterpret_cast<uintptr_t>(row) | static_cast<uintptr_t>(step)) & 15)
        executor().fail("ldmatrix row address is not 16-byte aligned at %s:%d", file, line);
    for (int p = 0; p < count; p++) std::memcpy(mine.row[p], static_cast<const char*>(row) + p * step, 16);
    executor().collective(~0u, &mine, "ldmatrix", file, line,
                          [=](void** lanes) { ldmatrix_all_lanes(lanes, count, transposed); });
}

}  // namespace host

// ---- asynchronous copies --------------------------------------------------------------------------------------------

// A copy really is deferred: the destination holds NaN until the wait, so a missing or too weak wait shows in the
// results.
void cp_async16(void* destination, const void* source, bool valid, const char* file, int line) {
    if ((reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source)) & 15)
        host::executor().fail("cp.async address is not 16-byte aligned at %s:%d", file, line);
    std::memset(destination, 0xFF, 16);
    host::Quiet quiet;
    host::executor().note_copies();
    host::Lane& lane = host::executor().lane();
    lane.copies.push_back({destination, valid ? source : nullptr, 16, lane.open_group});
}
void cp_async_commit() {
    host::Quiet quiet;
    host::executor().lane().open_group++;
}
void host::cp_async_wait(size_t groups) {
    Lane& lane = executor().lane();
    size_t due = 0, left = 0;
    {
        Quiet quiet;
        while (due < lane.copies.size() && lane.copies[due].group + groups < lane.open_group) due++;
        left = lane.copies.size() - due;
    }
    // Outside Quiet: the bytes move now, so the race detector charges them to this lane.
    for (size_t i = 0; i < due; i++) {
        PendingCopy copy;
        {
            Quiet quiet;
            copy = lane.copies[i];
        }
        if (copy.source)
            std::memcpy(copy.destination, copy.source, copy.bytes);
        else
            std::memset(copy.destination, 0, copy.bytes);
    }
    Quiet quiet;
    for (size_t i = 0; i < left; i++) lane.copies[i] = lane.copies[due + i];
    lane.copies.resize(left);
}

}  // namespace llmc
