// Entry point of the test binaries: doctest. Each test file mirrors one source file under llmc/.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "llmc/device/runtime.h"
#include "test/kernels/check_specifications.h"

int main(int argc, char** argv) {
    llmc::prepare_process(argv);
    const int failed = doctest::Context(argc, argv).run();
    if (!llmc::test::specification_is_missing()) return failed;
    std::fputs("no test has the specification of LLMC_SPECIFICATION; LLMC_SPECIFICATION=list prints their names\n",
               stderr);
    return 1;
}
