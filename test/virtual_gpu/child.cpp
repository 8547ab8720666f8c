// Runs a test case again in a process of its own (child.h).
#include "test/virtual_gpu/child.h"

#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

extern char** environ;

namespace virtual_gpu::test {
namespace {

constexpr const char* kMark = "TEST_VIRTUAL_GPU_CHILD";

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
}

}  // namespace

bool is_child() { return std::getenv(kMark) != nullptr; }

Child run_child(const std::map<std::string, std::string>& variables) {
    std::vector<std::string> arguments{"/proc/self/exe",
                                       std::string("--test-case=") + doctest::getContextOptions()->currentTest->m_name};
    std::vector<std::string> environment{std::string(kMark) + "=1"};
    for (char** entry = environ; *entry; entry++) {
        const std::string name(*entry, std::strcspn(*entry, "="));
        if (!name.starts_with("VIRTUAL_GPU_") && !variables.contains(name)) environment.push_back(*entry);
    }
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);

    int ends[2];
    REQUIRE(pipe(ends) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int out : {1, 2}) posix_spawn_file_actions_adddup2(&actions, ends[1], out);
    for (const int end : ends) posix_spawn_file_actions_addclose(&actions, end);
    pid_t id = 0;
    const int failed =
        posix_spawn(&id, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    REQUIRE(failed == 0);

    Child child{0, ""};
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        child.output.append(buffer, static_cast<size_t>(n));
    close(ends[0]);
    waitpid(id, &child.status, 0);
    return child;
}

void expect_child(const std::map<std::string, std::string>& variables, std::initializer_list<const char*> parts) {
    const Child child = run_child(variables);
    INFO(child.output);
    CHECK(child.status == 0);
    CHECK(child.output.find("1 passed") != std::string::npos);  // exactly one ran
    for (const char* part : parts) {
        INFO(part);
        CHECK(child.output.find(part) != std::string::npos);
    }
}

}  // namespace virtual_gpu::test
