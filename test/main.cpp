// Entry point of the test binaries: doctest, and nothing else. Each test file mirrors one source file under llmc/.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
