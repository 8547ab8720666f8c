// The check of a shape that launchers of row kernels share.
#pragma once
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

}  // namespace llmc
