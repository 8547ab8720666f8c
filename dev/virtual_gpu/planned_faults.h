// Deliberate faults: VIRTUAL_GPU_FAULT=KIND[:WHERE][,KIND[:WHERE]...]. README.md of cuda/ and nccl/ describes the kinds
// and their places. An unknown KIND or WHERE ends the process.
#pragma once
#include <cstdint>
#include <string>

namespace virtual_gpu {

// For a fault that hits one of many: its number, counted from 1 (the default), or 0 if no such fault is planned.
long planned_fault(const char* kind);

// For a persistent fault: true if it hits everything with this name. WHERE is a part of the name.
bool lies(const char* kind, const std::string& name);

// For a fault of products: true if it hits the shape number `shape`, or one whose description contains WHERE, with this
// algorithm.
bool lies(const char* kind, uint64_t shape, const std::string& description, int algorithm);

// A number that differs from run to run: it counts up from a random number in each process.
uint64_t unsteady_number();

}  // namespace virtual_gpu
