// How the host device runs kernels. The settings are read once from the environment; tests change the fields.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace llmc::host {

enum class Order { ascending, descending, random };

struct Settings {
    Order order = Order::ascending;  // LLMC_ORDER=ascending|descending|random: threads between two barriers
    uint32_t seed = 1;               // LLMC_SEED: for the random order
    bool poison = true;              // LLMC_POISON=0|1: fill shared and fresh device memory with NaN
    bool lazy_streams = false;       // LLMC_STREAMS=lazy: run work as late as its synchronisation allows
    bool random_streams = false;     // LLMC_STREAMS=random: lazy, but at times some stream runs ahead
    bool guard = false;              // LLMC_GUARD=0|1: kernels can only access the device memory they declare
    size_t stack_bytes;              // LLMC_STACK_KB: of one GPU thread
    size_t shared_limit;             // LLMC_SHARED_KB=227|163|99: per block, of the card that is simulated
    uint64_t fault = 0;  // LLMC_FAULT: the piece of work that breaks the device (1 is the first); 0 for none

    std::string flip;  // LLMC_FLIP=WORK:N: flip a bit in the output of the N-th piece of work of that name

    Settings();
};

Settings& settings();

// The value of an environment variable, which must be set. Throws Error(bad_flags) unless it is a whole number from
// `least` to `most`.
long number_from_environment(const char* name, long least, long most);

}  // namespace llmc::host
