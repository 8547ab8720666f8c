// Sizes for people, in messages of every folder. run/text.h has more of such texts.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/device/error.h"

namespace llmc {

// "512 B", "3.2 KiB", "1.2 GiB".
inline std::string format_bytes(size_t bytes) {
    const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return strprintf("%zu B", bytes);
    double value = static_cast<double>(bytes) / 1024;
    int unit = 0;
    for (; value >= 1023.95 && unit < 3; unit++) value /= 1024;  // 1023.95 would print as 1024.0
    return strprintf("%.1f %s", value, units[unit]);
}

}  // namespace llmc
