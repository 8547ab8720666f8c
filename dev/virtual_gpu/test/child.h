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
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace virtual_gpu::test {

using Variables = std::map<std::string, std::string>;

struct Child {
    int status;  // as from waitpid()
    std::string output;
};

// Runs this program once for each set of variables, all at the same time, and kills those that take longer than
// `seconds`. `cases` is doctest's filter. This process's variables VIRTUAL_GPU_* and NCCL_* are not passed on.
std::vector<Child> run_processes(const std::string& cases, const std::vector<Variables>& processes, double seconds);
std::string this_case();  // the name of the case that runs
// True if the output contains the text; ignores doctest's padding of numbers.
bool contains(const Child& child, const std::string& text);

bool is_child();
// Runs the current case again.
Child run_child(const Variables& variables);
// Checks that the child passes and that its output contains these parts.
void expect_child(const Variables& variables, std::initializer_list<const char*> parts = {});

// Checks that all cases whose names begin with `prefix` pass in another process, skipped ones too, and that there are
// any.
void expect_cases(const std::string& prefix, const Variables& variables);

// Waits for the condition for a limited time.
bool eventually(const std::function<bool()>& condition, double seconds = 20);

}  // namespace virtual_gpu::test
