// Runs a family's specifications (llmc/check/families.h) at the shapes of its tests.
#pragma once
#include <doctest/doctest.h>

#include "llmc/check/families.h"
#include "test/kernel_test.h"

namespace llmc::test {

void check_specifications(void (*add_tests)(check::Items&));

}  // namespace llmc::test
