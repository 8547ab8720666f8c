// Test cases that need a process of their own: options are read once, and a device that is lost stays lost. The case
// starts its program again with itself as the only case:
//
//   TEST_CASE("cuda: something") {
//       if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "lazy"}}, {"a line that it prints"});
//       ...  // with CHECK
//   }
//
// Names of such cases have no comma, which would end a filter.
#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace virtual_gpu::test {

bool is_child();

struct Child {
    int status;  // as waitpid() has it
    std::string output;
};
// The current case again, without the variables VIRTUAL_GPU_* of this process.
Child run_child(const std::map<std::string, std::string>& variables);

// That it passes, and that its output has these parts.
void expect_child(const std::map<std::string, std::string>& variables, std::initializer_list<const char*> parts = {});

}  // namespace virtual_gpu::test
