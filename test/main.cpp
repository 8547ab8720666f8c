// Entry point of the test binaries: doctest, and nothing else. Each test file mirrors one source file under llmc/.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "llmc/device/runtime.h"

int main(int argc, char** argv) {
    llmc::prepare_process(argv);
    return doctest::Context(argc, argv).run();
}
