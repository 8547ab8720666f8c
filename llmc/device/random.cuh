// Random bits without state: a function of a counter, so they depend on neither ranks nor the order of work.
#pragma once
#include <cstdint>

#include "llmc/device/keywords.cuh"

namespace llmc {

// 2^64 divided by the golden ratio.
constexpr uint64_t kGolden64 = 0x9e3779b97f4a7c15u;

// The finalizer of splitmix64 (by D. Stafford): a bijection in which every input bit affects every output bit. Applied
// to consecutive multiples of kGolden64 it gives the sequence of splitmix64 (Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators").
LLMC_HD uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

}  // namespace llmc
