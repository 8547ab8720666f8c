// The card's limits: bytes per second of a plain copy, and operations per second of mma.sync alone.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "llmc/device/runtime.h"

namespace llmc::probe {

// Returns {"copy_gbs", "copy_engine_gbs", "mma_sync_bf16_tflops", ...}; dev/gpu/README.md describes them. On the host
// device it uses small sizes, and the numbers mean nothing.
nlohmann::ordered_json measure_ceilings(stream_t stream);

}  // namespace llmc::probe
