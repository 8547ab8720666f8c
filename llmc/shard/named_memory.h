// A piece of device memory with the name that messages give it.
#pragma once
#include <cstddef>
#include <string>

namespace llmc {

struct NamedMemory {
    std::string name;  // "h.3.fc.weight"
    const void* address;
    size_t bytes;  // 0: nothing of it is on this rank
};

}  // namespace llmc
