// Runs specifications one after the other (specifications.h).
#include "test/kernels/check_specifications.h"

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

}  // namespace

void check_specifications(void (*add_tests)(check::Items&), bool (*chosen)(const std::string& name)) {
    test_stream();
    const Zones zones;
    check::Items items;
    add_tests(items);
    const char* const only = std::getenv("LLMC_SPECIFICATION");
    for (const CheckItem& item : items) {
        if ((chosen && !chosen(item.name)) || (only && item.name != only)) continue;
        CAPTURE(item.name);
        CHECK(item.run(test_stream()) == "");
    }
}

}  // namespace llmc::test
