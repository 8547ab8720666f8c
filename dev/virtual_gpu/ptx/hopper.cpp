// The smaller instructions of sm_90: stmatrix, setmaxnreg, and the addresses of parameters.
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

}  // namespace virtual_gpu
