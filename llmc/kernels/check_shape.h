// Checks of shapes and pointers that launchers share.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "llmc/base/error.h"

namespace llmc {

// Throws unless (N, C) has rows, and C is a multiple of 8: rows are read as 16-byte vectors.
inline void check_rows(const char* launcher, int N, int C) {
    if (N < 1) throw Error(ExitCode::failure, "{}: N={} rows; needs at least 1", launcher, N);
    if (C < 8 || C % 8 != 0) {
        throw Error(ExitCode::failure, "{}: C={} columns; needs a positive multiple of 8 (16-byte accesses)", launcher,
                    C);
    }
}

// Throws unless the pointers are multiples of 16 bytes, or nullptr.
inline void check_aligned(const char* launcher, std::initializer_list<const void*> pointers) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            throw Error(ExitCode::failure,
                        "{}: pointer {} is not 16-byte aligned; start tensors at multiples of 16 bytes", launcher, p);
}

}  // namespace llmc
