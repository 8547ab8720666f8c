// Entry point of the virtual GPU's own tests: contracts of its instructions and calls. They do not use llmc/.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
