// Includes everything a kernel needs.
#pragma once
#include "llmc/device/async_copy.cuh"
#include "llmc/device/formats.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/math.cuh"
#include "llmc/device/mma.cuh"
#include "llmc/device/vector.cuh"
#include "llmc/device/warp.cuh"
