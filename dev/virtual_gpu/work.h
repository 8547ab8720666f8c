// Work other than kernels (products, copies, fills, collectives), if VIRTUAL_GPU_COUNTS=FILE is set: one JSON object
// per line and kind, with the number of times it ran. Two more lines say how many bytes of device memory and of pinned
// host memory were allocated at most, and how many were never freed.
#pragma once
#include <cstdio>
#include <nlohmann/json_fwd.hpp>

namespace virtual_gpu {

bool counting();
void count_work(const nlohmann::json& work);  // callable from any thread
void write_work(std::FILE* file);

}  // namespace virtual_gpu
