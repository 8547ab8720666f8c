// The smaller instructions of sm_90: elect.sync, stmatrix, setmaxnreg, clusters of one block, and the addresses of
// parameters.
#include <cstring>

#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/instructions.h"

namespace virtual_gpu {

void generic_of_parameter(Warp& w, const Op& op) {
    uint64_t* const d = w.at<uint64_t>(op.at[0]);
    const uint64_t* const s = w.at<const uint64_t>(op.at[1]);
    for (int i = 0; i < kLanes; i++)
        if (has(w.mask, i)) d[i] = s[i] + kParameterWindow;
}

// PTX ISA, "stmatrix": stores the fragments that ldmatrix loads.
void store_matrix(Warp& w, const Op& op) {
    constexpr uint32_t kRowBytes = 16;
    w.need_all_lanes(op, "stmatrix");
    w.mask = op.count == 4 ? kAllLanes : op.count == 2 ? 0xffffu : 0xffu;  // the lanes with the addresses of rows
    Addresses rows;
    resolve(w, op, kRowBytes, "stmatrix", rows);
    note_write(w, op, rows, kRowBytes);
    w.mask = kAllLanes;
    for (int m = 0; m < op.count; m++) {
        const uint32_t* const words = w.at<const uint32_t>(op.at[static_cast<size_t>(m)]);
        uint16_t matrix[8][8];
        for (int lane = 0; lane < kLanes; lane++)
            for (int half = 0; half < 2; half++) {
                const int i = lane / 4, j = lane % 4 * 2 + half;
                (op.mode ? matrix[j][i] : matrix[i][j]) = static_cast<uint16_t>(words[lane] >> (16 * half));
            }
        for (int r = 0; r < 8; r++) {
            std::memcpy(rows.bytes[m * 8 + r], matrix[r], kRowBytes);
            std::memset(rows.written[m * 8 + r], kWritten, kRowBytes);
        }
    }
}

// PTX ISA, "setmaxnreg": a block has the registers of its launch, and .inc waits for those that .dec releases.
void set_max_registers(Warp& w, const Op& op) {
    Async& async = *w.block->async;
    const int wanted = static_cast<int>(op.immediate), launched = w.block->launch->kernel->registers;
    int& own = async.registers[static_cast<size_t>(w.index)];
    if (launched) {
        if (op.mode == 0 && wanted > own) w.fail(op, 0, "setmaxnreg.dec to %d registers: the warp has %d", wanted, own);
        if (op.mode == 1 && wanted < own) w.fail(op, 0, "setmaxnreg.inc to %d registers: the warp has %d", wanted, own);
        int sum = wanted - own;
        for (int registers : async.registers) sum += registers;
        if (sum > async.registers_in_all) {
            w.pc--;  // repeats the instruction later
            wait_in_vain(w, op, 0);
            return;
        }
    }
    log_of_warpgroup(w, op, 0, 0);
    own = wanted;
    w.block->events++;
}

// ---- clusters ------------------------------------------------------------------------------------------------------

void ClusterBarrier::start(const Block& block) {
    phase_ = 0;
    arrived_.assign(block.warps.size(), 0);
    phase_of_arrival_.assign(block.warps.size() * kLanes, 0);
    arriving_ = released_ = {};
}

// Threads that have ended count as arrived (PTX ISA, "barrier.cluster").
void ClusterBarrier::complete(const Block& block) {
    bool any = false;
    for (const Warp& w : block.warps) {
        const uint32_t arrived = arrived_[static_cast<size_t>(w.index)];
        for (uint32_t left = w.alive; left; left &= left - 1) {
            const int lane = first_lane(left);
            if (!has(arrived, lane) || phase_of_arrival_[static_cast<size_t>(thread_of(w, lane))] != phase_) return;
            any = true;
        }
    }
    if (!any) return;
    phase_++;
    released_ = arriving_;
}

void ClusterBarrier::arrive(Warp& w, const Op& op) {
    uint32_t& arrived = arrived_[static_cast<size_t>(w.index)];
    if (const uint32_t again = arrived & w.mask)
        w.fail(op, first_lane(again), "the thread has arrived already and not waited since");
    if (w.block->races) w.block->races->release_to(w, w.mask, arriving_);
    arrived |= w.mask;
    for (uint32_t left = w.mask; left; left &= left - 1)
        phase_of_arrival_[static_cast<size_t>(thread_of(w, first_lane(left)))] = phase_;
    w.block->events++;
}

uint32_t ClusterBarrier::passed(Warp& w, const Op& op) {
    if (const uint32_t missing = w.mask & ~arrived_[static_cast<size_t>(w.index)])
        w.fail(op, first_lane(missing), "the thread waits and has not arrived");
    complete(*w.block);
    uint32_t lanes = 0;
    for (uint32_t left = w.mask; left; left &= left - 1)
        if (phase_of_arrival_[static_cast<size_t>(thread_of(w, first_lane(left)))] < phase_)
            lanes |= 1u << first_lane(left);
    if (w.block->races && lanes) w.block->races->acquire_from(w, lanes, released_);
    return lanes;
}

// Op::mode 1 is .aligned: all threads of the warp take part.
void cluster_arrive(Warp& w, const Op& op) {
    if (op.mode == 1 && w.mask != w.alive)
        w.fail(op, first_lane(w.mask), "barrier.cluster that lanes %08x of a warp do not reach", w.alive & ~w.mask);
    w.block->async->cluster.arrive(w, op);
}

void cluster_wait(Warp& w, const Op& op) {
    if (op.mode == 1 && w.mask != w.alive)
        w.fail(op, first_lane(w.mask), "barrier.cluster that lanes %08x of a warp do not reach", w.alive & ~w.mask);
    ClusterBarrier& barrier = w.block->async->cluster;
    if (barrier.passed(w, op) == w.mask) {
        barrier.forget(w, w.mask);
        w.block->events++;
        return;
    }
    w.pc--;  // repeats the instruction later
    wait_in_vain(w, op, 0);
}

// mapa: the block itself is the only one in its cluster.
void map_to_cluster(Warp& w, const Op& op) {
    const uint32_t* const rank = w.at<const uint32_t>(op.at[2]);
    for (int i = 0; i < kLanes; i++) {
        if (!has(w.mask, i)) continue;
        if (rank[i] != 0) w.fail(op, i, "block %u of a cluster of one", rank[i]);
        if (op.wide)
            w.at<uint64_t>(op.at[0])[i] = w.at<const uint64_t>(op.at[1])[i];
        else
            w.at<uint32_t>(op.at[0])[i] = w.at<const uint32_t>(op.at[1])[i];
    }
}

}  // namespace virtual_gpu
