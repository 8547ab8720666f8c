// What the card can do at most: bytes a second of a plain copy, operations a second of mma.sync alone.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "llmc/device/runtime.h"

namespace llmc::probe {

// {"copy_gbs", "copy_engine_gbs", "mma_sync_bf16_tflops", ...}: see the README of dev/gpu. Small sizes on the host
// device, whose numbers mean nothing.
nlohmann::ordered_json measure_ceilings(stream_t stream);

}  // namespace llmc::probe
