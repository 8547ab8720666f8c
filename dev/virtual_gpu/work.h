// Work that is no kernel (products, copies, fills, collectives), where VIRTUAL_GPU_COUNTS=FILE asks for it: one JSON
// object a line and kind, with how often it ran.
#pragma once
#include <cstdio>
#include <nlohmann/json_fwd.hpp>

namespace virtual_gpu {

bool counting();
void count_work(const nlohmann::json& work);  // any thread may call
void write_work(std::FILE* file);

}  // namespace virtual_gpu
