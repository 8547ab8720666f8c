// Changes the host device's settings until the end of a scope. Queued work runs before and after it.
#pragma once
#include "dev/emulator/settings.h"
#include "test/kernel_test.h"

namespace llmc::test {

struct ChangedSettings {
    const host::Settings saved = host::settings();
    const host::EmulatorSettings saved_of_emulator = host::emulator_settings();

    ChangedSettings() {
        test_stream();
        synchronize_device();
    }
    explicit ChangedSettings(bool lazy, bool random = false) : ChangedSettings() {
        host::settings().lazy_streams = lazy;
        host::settings().random_streams = random;
    }
    ~ChangedSettings() {
        tear_down_in_test([] { synchronize_device(); });
        host::settings() = saved;
        host::emulator_settings() = saved_of_emulator;
    }
};

}  // namespace llmc::test
