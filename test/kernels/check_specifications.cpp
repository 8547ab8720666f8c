// Runs specifications one after the other (specifications.h).
#include "test/kernels/check_specifications.h"

#include <cstdio>
#include <cstdlib>

namespace llmc::test {
namespace {

// No guard zones where the virtual GPU or AddressSanitizer sees every access outside an allocation.
class Zones {
public:
    Zones() {
#ifndef __SANITIZE_ADDRESS__
        if (device_info().is_host) return;
#endif
        GuardedMemory::zone() = 0;
    }
    ~Zones() { GuardedMemory::zone() = usual_; }

private:
    const size_t usual_ = GuardedMemory::zone();
};

const char* const chosen_one = std::getenv("LLMC_SPECIFICATION");
const std::string only = chosen_one ? chosen_one : "";
bool found = false;  // a test has that specification

}  // namespace

void check_specifications(void (*add_tests)(check::Items&), bool (*chosen)(const std::string& name)) {
    test_stream();
    const Zones zones;
    check::Items items;
    add_tests(items);
    for (const CheckItem& item : items) {
        if (chosen && !chosen(item.name)) continue;
        if (only == "list") std::puts(item.name.c_str());
        if (!only.empty() && item.name != only) continue;
        found = true;
        CAPTURE(item.name);
        CHECK(item.run(test_stream()) == "");
    }
}

bool specification_is_missing() { return !only.empty() && only != "list" && !found; }

}  // namespace llmc::test
