// How the host device runs kernels. Read once from the environment; tests change the fields.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace llmc::host {

enum class Order { ascending, descending, random };

struct Settings {
    Order order = Order::ascending;  // LLMC_ORDER=ascending|descending|random: threads of a barrier interval
    uint32_t seed = 1;               // LLMC_SEED: for random order
    bool poison = true;              // LLMC_POISON=0|1: fill shared and fresh device memory with NaN
    bool lazy_streams = false;       // LLMC_STREAMS=lazy: run work as late as its synchronisation allows
    bool random_streams = false;     // LLMC_STREAMS=random: lazy, but now and then some stream runs ahead
    bool guard = false;              // LLMC_GUARD=0|1: device memory is open only to what was declared
    size_t stack_bytes;              // LLMC_STACK_KB: of one GPU thread
    size_t shared_limit;             // LLMC_SHARED_KB=227|163|99: what the card that is played gives a block
    uint64_t fault = 0;              // LLMC_FAULT: the piece of work that breaks the device, 1 the first; 0: none

    std::string flip;  // LLMC_FLIP=WORK:N: a bit flips in what the N-th piece of such work writes

    Settings();
};

Settings& settings();

// The value of an environment variable that is set. Throws Error(bad_flags) unless it is a whole number from `least` to
// `most`.
long number_from_environment(const char* name, long least, long most);

}  // namespace llmc::host
