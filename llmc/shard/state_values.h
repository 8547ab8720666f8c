// Values of state arrays on the host, whatever their format: for checkpoints, import, export and tests. Calls with a
// stream wait for the device.
#pragma once
#include <vector>

#include "llmc/device/runtime.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

std::vector<float> read_state(const StateArray& from, size_t count, stream_t stream);
// Rounds to nearest. Values that the array may hold stay as they are: in fp8 the codes of a group may be twice as large
// as before, with half the scale.
void write_state(const StateArray& to, const float* values, size_t count, stream_t stream);

// Values of an array in fp8 as BF16, which has all of them.
void fp8_to_bf16(bf16* out, const e4m3* codes, const float* scales, size_t count);

}  // namespace llmc
