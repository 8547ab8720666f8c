// Runs test cases in separate processes: options are read once, and a lost device stays lost. The case starts its
// program again with itself as the only case:
//
//   TEST_CASE("cuda: something") {
//       if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "lazy"}}, {"a line that it prints"});
//       ...  // with CHECK
//   }
//
// Names of such cases must not contain a comma, which would end a filter.
#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace virtual_gpu::test {

bool is_child();

struct Child {
    int status;  // as from waitpid()
    std::string output;
};
// Runs the current case again, without this process's variables VIRTUAL_GPU_*.
Child run_child(const std::map<std::string, std::string>& variables);

// Checks that the child passes and that its output contains these parts.
void expect_child(const std::map<std::string, std::string>& variables, std::initializer_list<const char*> parts = {});

}  // namespace virtual_gpu::test
