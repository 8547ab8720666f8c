#include "test/comm/ranks/ranks.h"
namespace llmc::test {
int run_scenario(int, char**) { return 0; }
}  // namespace llmc::test
