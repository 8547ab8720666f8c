// Runs test cases again in processes of their own (child.h).
#include "dev/virtual_gpu/test/child.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

extern char** environ;

namespace virtual_gpu::test {
namespace {

constexpr const char* kMark = "TEST_VIRTUAL_GPU_CHILD";
constexpr double kLimit = 600;  // seconds, also for all cases of a file on a busy machine

struct Process {
    pid_t pid;
    int output;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
}

Process start(const std::string& cases, const Variables& variables) {
    std::vector<std::string> arguments{"test", "--test-case=" + cases, "--no-colors=true", "--no-skip=true"},
        environment;
    for (char** entry = environ; *entry; entry++) {
        const std::string text = *entry, name = text.substr(0, text.find('='));
        if (!name.starts_with("VIRTUAL_GPU_") && !name.starts_with("NCCL_") && !variables.contains(name))
            environment.push_back(text);
    }
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);

    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int out : {STDOUT_FILENO, STDERR_FILENO}) posix_spawn_file_actions_adddup2(&actions, ends[1], out);
    pid_t pid = 0;
    const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                                   pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    REQUIRE(failed == 0);
    return {pid, ends[0]};
}

// Reads the output of all processes to their end, all at once, so that none has to wait for another.
std::vector<Child> collect(const std::vector<Process>& processes, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::vector<Child> ended(processes.size());
    std::vector<pollfd> polled;
    for (const Process& process : processes) polled.push_back({process.output, POLLIN, 0});
    for (size_t open = processes.size(); open > 0;) {
        if (std::chrono::steady_clock::now() > end)
            for (const Process& process : processes) kill(process.pid, SIGKILL);
        poll(polled.data(), polled.size(), 100);
        for (size_t i = 0; i < polled.size(); i++) {
            if (!(polled[i].revents & (POLLIN | POLLHUP))) continue;
            char text[4096];
            const ssize_t n = read(polled[i].fd, text, sizeof text);
            if (n > 0) ended[i].output.append(text, static_cast<size_t>(n));
            if (n > 0) continue;
            close(polled[i].fd);
            polled[i].fd = -1;
            open--;
        }
    }
    for (size_t i = 0; i < processes.size(); i++) waitpid(processes[i].pid, &ended[i].status, 0);
    return ended;
}

}  // namespace

std::vector<Child> run_processes(const std::string& cases, const std::vector<Variables>& processes, double seconds) {
    std::vector<Process> started;
    for (const Variables& variables : processes) started.push_back(start(cases, variables));
    return collect(started, seconds);
}

std::string this_case() { return doctest::getContextOptions()->currentTest->m_name; }

bool contains(const Child& child, const std::string& text) {
    std::string output;
    for (const char c : child.output)
        if (c != ' ' || output.empty() || output.back() != ' ') output += c;
    return output.find(text) != std::string::npos;
}

bool is_child() { return std::getenv(kMark) != nullptr; }

Child run_child(const Variables& variables) {
    Variables all = variables;
    all[kMark] = "1";
    return run_processes(this_case(), {all}, kLimit)[0];
}

void expect_child(const Variables& variables, std::initializer_list<const char*> parts) {
    const Child child = run_child(variables);
    INFO(child.output);
    CHECK(child.status == 0);
    CHECK(contains(child, "test cases: 1 | 1 passed"));
    for (const char* part : parts) {
        INFO(part);
        CHECK(child.output.find(part) != std::string::npos);
    }
}

void expect_cases(const std::string& prefix, const Variables& variables) {
    const Child child = run_processes(prefix + "*", {variables}, kLimit)[0];
    INFO(child.output);
    CHECK(child.status == 0);
    CHECK_FALSE(contains(child, "test cases: 0 |"));
}

bool eventually(const std::function<bool()>& condition, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace virtual_gpu::test
