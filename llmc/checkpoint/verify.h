// The checks of --verify.
#pragma once
#include "llmc/base/text.h"

namespace llmc {

// Checks before a checkpoint is used: none, of file sizes, or of every byte.
enum class Verify { none, size, full };
template <>
inline constexpr WordTable<Verify> kWords<Verify> = {
    {"full", Verify::full}, {"size", Verify::size}, {"none", Verify::none}};

}  // namespace llmc
