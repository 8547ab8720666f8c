// What launchers of row kernels assume about a shape, checked in one place.
#pragma once
#include "llmc/base/error.h"

namespace llmc {

// (N, C) with C a multiple of 8: rows are read as 16-byte vectors.
inline void check_rows(const char* launcher, int N, int C) {
    if (N < 1) throw Error(ExitCode::failure, strprintf("%s: N=%d rows; needs at least 1", launcher, N));
    if (C < 8 || C % 8 != 0) {
        throw Error(ExitCode::failure,
                    strprintf("%s: C=%d columns; needs a positive multiple of 8 (16-byte accesses)", launcher, C));
    }
}

}  // namespace llmc
