// Starts ranks as processes and collects their output (nccl_ranks.h).
#include "test/virtual_gpu/nccl_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

extern char** environ;

namespace virtual_gpu::test {
namespace {

constexpr double kLimit = 30;  // seconds until ranks are killed

std::string hexadecimal(const ncclUniqueId& id) {
    std::string text;
    for (const char c : id.internal) {
        text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
        text += "0123456789abcdef"[c & 15];
    }
    return text;
}

struct Process {
    pid_t pid;
    int output;
};

Process start(const Variables& variables) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    std::vector<std::string> environment;
    for (char** entry = environ; *entry; entry++) {
        const std::string text = *entry;
        if (!text.starts_with("VIRTUAL_GPU_") && !text.starts_with("NCCL_")) environment.push_back(text);
    }
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    std::string filter = std::string("--test-case=") + doctest::getContextOptions()->currentTest->m_name;
    std::string program = "test", colors = "--no-colors=true";
    char* arguments[] = {program.data(), filter.data(), colors.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    pid_t pid = 0;
    const int status = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, pointers.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    REQUIRE(status == 0);
    return {pid, ends[0]};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Reads the output of all processes to their end, all at once, so that none has to wait for another.
std::vector<Ended> collect(const std::vector<Process>& processes) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Ended> ended(processes.size());
    std::vector<pollfd> polled;
    for (const Process& process : processes) polled.push_back({process.output, POLLIN, 0});
    size_t open = processes.size();
    while (open > 0) {
        const bool late = seconds_since(begin) > kLimit;
        if (late)
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

int number(const char* name) { return std::atoi(std::getenv(name)); }

}  // namespace

std::vector<Ended> run_ranks(int ranks, const Variables& all, const std::map<int, Variables>& of_rank) {
    Variables variables = {{"TEST_NCCL_RANKS", std::to_string(ranks)}, {"VIRTUAL_GPU_DEVICES", std::to_string(ranks)}};
    for (int which = 0; which < kIds; which++) {
        ncclUniqueId id;
        REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
        variables["TEST_NCCL_ID" + std::to_string(which)] = hexadecimal(id);
    }
    for (const auto& [name, value] : all) variables[name] = value;
    std::vector<Process> processes;
    for (int r = 0; r < ranks; r++) {
        Variables own = variables;
        own["TEST_NCCL_RANK"] = std::to_string(r);
        if (of_rank.contains(r))
            for (const auto& [name, value] : of_rank.at(r)) own[name] = value;
        processes.push_back(start(own));
    }
    return collect(processes);
}

void expect_success(const std::vector<Ended>& ended) {
    for (size_t r = 0; r < ended.size(); r++) {
        CAPTURE(r);
        CAPTURE(ended[r].output);
        CHECK(ended[r].status == 0);
        CHECK(contains(ended[r], "test cases: 1 | 1 passed"));
    }
}

// True if the output contains the text; ignores doctest's padding of numbers.
bool contains(const Ended& ended, const std::string& text) {
    std::string output;
    for (const char c : ended.output)
        if (c != ' ' || output.empty() || output.back() != ' ') output += c;
    return output.find(text) != std::string::npos;
}

bool is_rank() { return std::getenv("TEST_NCCL_RANK") != nullptr; }
int rank() { return number("TEST_NCCL_RANK"); }
int ranks() { return number("TEST_NCCL_RANKS"); }

ncclUniqueId unique_id(int which) {
    const std::string text = std::getenv(("TEST_NCCL_ID" + std::to_string(which)).c_str());
    ncclUniqueId id;
    for (size_t i = 0; i < sizeof id.internal; i++)
        id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return id;
}

ncclComm_t communicator(int which, int nranks, int as) {
    REQUIRE(cudaSetDevice(rank()) == cudaSuccess);
    ncclComm_t comm = nullptr;
    REQUIRE(ncclCommInitRank(&comm, nranks, unique_id(which), as) == ncclSuccess);
    return comm;
}

bool eventually(const std::function<bool()>& condition, double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
        if (seconds_since(begin) > seconds) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

ncclResult_t await_error(ncclComm_t comm) {
    ncclResult_t code = ncclSuccess;
    eventually([&] { return ncclCommGetAsyncError(comm, &code) != ncclSuccess || code != ncclSuccess; });
    return code;
}

cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}

}  // namespace virtual_gpu::test
