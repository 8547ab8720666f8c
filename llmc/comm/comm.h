// Who the ranks are, and the collectives between them. Everything above talks to a Comm and cannot tell which back-end
// it has. So far there is one: `self`, a single rank, whose collectives move nothing.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"

namespace llmc {

class Comm {
public:
    // A world of one rank.
    static Comm self() { return Comm(); }

    int rank() const { return 0; }
    int world() const { return 1; }
    bool is_main() const { return rank() == 0; }
    const char* name() const { return "self"; }

private:
    Comm() = default;
};

}  // namespace llmc
