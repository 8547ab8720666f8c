// supervise(): see worker.h.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "llmc/base/json.h"
#include "llmc/check/worker.h"

extern char** environ;

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// A running worker: its pipes, and a file for what it says on its standard error.
class Worker {
public:
    Worker(const std::string& program, const std::string& request) {
        int to[2], from[2];
        if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) fail("pipe");
        errors_ = std::tmpfile();
        if (!errors_) fail("tmpfile");
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&actions, fileno(errors_), STDERR_FILENO);
        std::string name = "train_gpt", command = "check", argument = kWorkerArgument;
        char* const argv[] = {name.data(), command.data(), argument.data(), nullptr};
        const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        close(to[0]);
        close(from[1]);
        from_ = from[0];
        if (error) {
            close(to[1]);
            errno = error;
            fail("posix_spawn");
        }
        send(to[1], request);
        close(to[1]);
    }
    ~Worker() {
        end();
        close(from_);
        if (errors_) std::fclose(errors_);
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    enum class Read { line, end, timeout };
    // The next line; gives up after so many seconds.
    Read read(std::string& line, double seconds) {
        for (;;) {
            if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
                line = buffer_.substr(0, end);
                buffer_.erase(0, end + 1);
                return Read::line;
            }
            pollfd wait = {from_, POLLIN, 0};
            const int ready = poll(&wait, 1, static_cast<int>(seconds * 1000));
            if (ready < 0 && errno == EINTR) continue;
            if (ready == 0) return Read::timeout;
            char bytes[4096];
            const ssize_t n = ::read(from_, bytes, sizeof bytes);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return Read::end;
            buffer_.append(bytes, static_cast<size_t>(n));
        }
    }
    // How it ended, in words: "was ended by signal 11 (Segmentation fault)", with the last line that it has said.
    std::string how_it_ended() {
        int status = 0;
        while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
        std::string text = WIFSIGNALED(status) ? strprintf("ended its process by signal %d (%s)", WTERMSIG(status),
                                                           strsignal(WTERMSIG(status)))
                                               : strprintf("ended its process with code %d", WEXITSTATUS(status));
        if (const std::string last = last_error(); !last.empty()) text += ": " + last;
        return text;
    }
    void end() {
        if (pid_ < 0) return;
        kill(pid_, SIGKILL);
        while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
    }

private:
    [[noreturn]] static void fail(const char* call) {
        throw Error(ExitCode::failure, strprintf("card check: %s failed: %s; --card-check off skips the check", call,
                                                 std::strerror(errno)));
    }
    // A worker that is gone already is noticed when it is read.
    static void send(int fd, const std::string& text) {
        struct sigaction ignored = {}, before = {};
        ignored.sa_handler = SIG_IGN;
        sigaction(SIGPIPE, &ignored, &before);
        for (size_t at = 0; at < text.size();) {
            const ssize_t n = write(fd, text.data() + at, text.size() - at);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            at += static_cast<size_t>(n);
        }
        sigaction(SIGPIPE, &before, nullptr);
    }
    std::string last_error() const {
        std::rewind(errors_);
        std::string last;
        char line[1024];
        while (std::fgets(line, sizeof line, errors_))
            if (line[0] != '\n') last = line;
        while (!last.empty() && (last.back() == '\n' || last.back() == '\r')) last.pop_back();
        // It becomes a part of JSON, which wants UTF-8.
        std::replace_if(
            last.begin(), last.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
        return last;
    }

    pid_t pid_ = -1;
    int from_ = -1;
    FILE* errors_ = nullptr;
    std::string buffer_;
};

// What the lines of one worker say, taken into the findings.
struct Progress {
    Findings& found;
    const std::map<std::string, CheckItem>& items;
    std::string item;                 // that was begun and not ended
    std::optional<ProductTrial> way;  // of it
    bool done = false;

    void take(const std::string& line) {
        const Json json = parse_json<Json>(line);
        if (json.contains("begin")) {
            item = json["begin"];
            way.reset();
            if (json.contains("way")) way = trial_from_json(json["way"]);
        } else if (json.contains("trial")) {
            way.reset();
            Finding& finding = found[json["trial"]];
            finding.family = kProductFamily;
            finding.trials.push_back(trial_from_json(json["way"]));
        } else if (json.contains("end")) {
            found[item] = findings_from_json(json["finding"]).at(item);
            item.clear();
        } else if (json.contains("done")) {
            done = true;
        }
    }
    // What was begun has this problem.
    void lose(const std::string& problem) {
        Finding& finding = found[item];
        if (way) {
            way->problem = problem;
            finding.family = kProductFamily;
            finding.trials.push_back(*way);
            return;
        }
        const auto known = items.find(item);
        if (known != items.end()) finding.family = known->second.family, finding.variant = known->second.variant;
        if (finding.family.empty()) finding.family = kProductFamily;
        finding.problem = problem;
    }
};

}  // namespace

Findings supervise(const CheckRequest& request, const std::string& program, const std::function<void()>& alive) {
    CheckRequest rest = request;
    std::map<std::string, CheckItem> items;
    for (CheckItem& item : kernel_checks(request.use)) items.emplace(item.name, item);
    for (;;) {
        Worker worker(program, json_text(request_json(rest)));
        Progress progress{rest.found, items, "", {}, false};
        std::string line;
        Worker::Read read;
        while ((read = worker.read(line, request.item_seconds)) == Worker::Read::line) {
            progress.take(line);
            alive();
        }
        if (progress.done) return rest.found;
        const std::string problem = read == Worker::Read::timeout
                                        ? strprintf("did not end within %g s", request.item_seconds)
                                        : worker.how_it_ended();
        if (progress.item.empty())
            throw Error(ExitCode::no_resources, "card check: the worker " + problem +
                                                    " before its first check; --card-check off skips the check");
        progress.lose(problem);
    }
}

}  // namespace llmc
