// Transfers between host and device of every size, in pieces of the pinned staging memory.
#include "llmc/device/transfer.h"

#include <vector>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("transfer: arrays of every size arrive whole, both ways") {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, (size_t{1} << 20) - 1, size_t{1} << 20,
                               (size_t{1} << 20) + 1, (size_t{3} << 20) + 17}) {
        CAPTURE(bytes);
        std::vector<uint8_t> values(bytes);
        for (size_t i = 0; i < bytes; i++) values[i] = static_cast<uint8_t>(i * 31 + i / 1000);
        DeviceArray<uint8_t> device(bytes + 1);
        write_through(device.get(), values.data(), bytes, test_stream());
        CHECK(read_back(device.get(), bytes, test_stream()) == values);
        CHECK(read_back(device.get() + bytes, test_stream()) == 0xFF);
    }
}
