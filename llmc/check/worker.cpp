// The card check's worker process, and supervise(), which starts workers and reads their lines (card_check.h).
#include "llmc/check/card_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "llmc/base/clock.h"
#include "llmc/base/json.h"

extern char** environ;

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// ---- the worker ----------------------------------------------------------------------------------------------------

constexpr int kFewestProposals = 8;  // algorithms to try at least, as long as none is right

// A worker's start may take this many times as long as an item. It creates the CUDA context and may load libraries from
// a cold disk; a network file system needs 10 to 40 s for cuBLASLt's 0.7 GB.
constexpr double kStartItems = 5;

void say(const Json& line) {
    std::printf("%s\n", json_text(line).c_str());
    std::fflush(stdout);
}

void finish(const std::string& name, Finding finding, double begin) {
    finding.seconds = monotonic_seconds() - begin;
    say({{"end", name}, {"finding", finding}});
}

bool is_timed(const CheckRequest& request) { return request.tune > 1; }

void check_items(const CheckRequest& request, stream_t stream) {
    for (const CheckItem& item : kernel_checks(request.use)) {
        if (request.found.count(item.name)) continue;
        const double begin = monotonic_seconds();
        say({{"begin", item.name}});
        Finding finding;
        finding.problem = item.run(stream);
        if (item.rate && finding.problem.empty() && is_timed(request)) {
            const double rate = item.rate(stream);
            if (rate > 0) finding.rates = {{item.name, rate}};
        }
        finish(item.name, finding, begin);
    }
}

// Tries ways until one is right. With `tune`, tries and times at least that many of the library's algorithms. `finding`
// has the trials of an earlier worker, which are not repeated.
Finding try_product(const CheckRequest& request, ProductChecks& checks, const Product& product, const std::string& key,
                    Finding finding) {
    const std::string wanted = request.preferred_for(key);
    const auto is_right = [](const ProductTrial& trial) { return trial.problem.empty(); };
    bool found = std::any_of(finding.trials.begin(), finding.trials.end(), is_right);
    for (const ProductChoice& way : checks.ways(product, wanted, std::max(request.tune, kFewestProposals))) {
        if (found && (falls_back(way) || static_cast<int>(finding.trials.size()) >= request.tune)) break;
        if (finding.trial_of(way)) continue;
        say({{"begin", key}, {"way", way}});
        finding.trials.push_back(checks.try_way(product, way, is_timed(request)));
        say({{"trial", key}, {"way", finding.trials.back()}});
        found = found || is_right(finding.trials.back());
        if (is_right(finding.trials.back()) && !wanted.empty() && way.algorithm == wanted) break;
    }
    for (const ProductTrial& trial : finding.trials) {
        if (trial.ms <= 0 || !trial.problem.empty()) continue;
        double& rate = finding.rates[is_fp8(product.type) ? "fp8" : word_of(product.type)];
        rate = std::max(rate, 2e3 * product.N * product.C * product.OC / trial.ms);
    }
    if (!found) finding.problem = finding.trials.empty() ? "cuBLASLt has no algorithm" : finding.trials.front().problem;
    return finding;
}

void check_products(const CheckRequest& request, Matmul& matmul, stream_t stream) {
    ProductChecks checks(matmul, stream);
    for (const Product& product : request.products) {
        const std::string key = matmul.key(product);
        const auto found = request.found.find(key);
        const Finding before = found == request.found.end() ? Finding() : found->second;
        // A product that was begun and not ended has trials, but neither a problem nor a time.
        if (before.seconds > 0 || !before.problem.empty()) continue;
        const double begin = monotonic_seconds();
        say({{"begin", key}});
        finish(key, try_product(request, checks, product, key, before), begin);
    }
}

}  // namespace

ExitCode check_worker(const std::function<KernelUse(const std::string& run)>& use_of) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the process that asked
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    CheckRequest request = parse_json<Json>(text);
    open_device(request.device);
    request.use = use_of(request.run);
    const stream_t stream = create_stream();
    Matmul matmul(request.tf32, request.fast_accumulation, request.use.scaling);
    matmul.allocate();  // loads the library
    synchronize(stream);
    say({{"ready", device_info().name}});
    check_items(request, stream);
    check_products(request, matmul, stream);
    synchronize_device();
    destroy_stream(stream);
    say({{"done", true}});
    return ExitCode::ok;
}

// ---- its supervisor ------------------------------------------------------------------------------------------------

namespace {

// A running worker: its pipes, and a file for its standard error.
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
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            wait();
        }
        close(from_);
        if (errors_) std::fclose(errors_);
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    enum class Read { line, end, timeout };
    // Reads the next line; gives up after `seconds`.
    Read read(std::string& line, double seconds) {
        for (;;) {
            if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
                line = buffer_.substr(0, end);
                buffer_.erase(0, end + 1);
                return Read::line;
            }
            pollfd wait = {from_, POLLIN, 0};
            const int ready = poll(&wait, 1, static_cast<int>(std::min(seconds * 1000, 2e9)));
            if (ready < 0 && errno == EINTR) continue;
            if (ready == 0) return Read::timeout;
            char bytes[4096];
            const ssize_t n = ::read(from_, bytes, sizeof bytes);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return Read::end;
            buffer_.append(bytes, static_cast<size_t>(n));
        }
    }
    // Describes how it ended, with the last line of its standard error: "ended its process by signal 11 (...): ...".
    std::string how_it_ended() {
        const int status = wait();
        std::string text = WIFSIGNALED(status) ? fmt::format("ended its process by signal {} ({})", WTERMSIG(status),
                                                             strsignal(WTERMSIG(status)))
                                               : fmt::format("ended its process with code {}", WEXITSTATUS(status));
        if (const std::string last = last_error(); !last.empty()) text += ": " + last;
        return text;
    }

private:
    // Waits for the process to end, and returns its status.
    int wait() {
        int status = 0;
        while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
        return status;
    }
    [[noreturn]] static void fail(const char* call) {
        throw Error(ExitCode::failure, "card check: {} failed: {}; --card-check off skips the check", call,
                    std::strerror(errno));
    }
    // If the worker has ended already, the next read() notices.
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
        // The line becomes part of a JSON text, which must be UTF-8.
        std::replace_if(
            last.begin(), last.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
        return last;
    }

    pid_t pid_ = -1;
    int from_ = -1;
    FILE* errors_ = nullptr;
    std::string buffer_;
};

// Adds the reports of one worker, line by line, to the findings.
struct Progress {
    Findings& found;
    std::string item = "";                   // the item that was begun and not ended
    std::optional<ProductTrial> trial = {};  // the trial of `item` that was begun and not ended
    bool ready = false, done = false;

    void take(const std::string& line) {
        if (!line.starts_with("{\"")) return;  // a library's, for example with ONEDNN_VERBOSE or CUBLASLT_LOG_LEVEL
        const Json json = parse_json<Json>(line);
        if (json.contains("begin")) {
            item = json["begin"];
            trial.reset();
            if (json.contains("way")) trial = json["way"].get<ProductTrial>();
        } else if (json.contains("trial")) {
            trial.reset();
            found[json["trial"]].trials.push_back(json["way"]);
        } else if (json.contains("end")) {
            found[item] = json["finding"];
            item.clear();
        } else if (json.contains("ready")) {
            ready = true;
        } else if (json.contains("done")) {
            done = true;
        }
    }
    // Records this problem for the trial, or the item, that was begun.
    void lose(const std::string& problem) {
        Finding& finding = found[item];
        if (trial) {
            trial->problem = problem;
            finding.trials.push_back(*trial);
        } else {
            finding.problem = problem;
        }
    }
};

}  // namespace

Findings supervise(const CheckRequest& request, const std::string& program, const std::function<void()>& alive) {
    CheckRequest rest = request;
    for (;;) {
        Worker worker(program, json_text(Json(rest)));
        Progress progress{rest.found};
        const auto limit = [&] { return (progress.ready ? 1 : kStartItems) * request.item_seconds; };
        std::string line;
        Worker::Read read;
        while ((read = worker.read(line, limit())) == Worker::Read::line) {
            progress.take(line);
            alive();
        }
        if (progress.done) return rest.found;
        const std::string problem =
            read == Worker::Read::timeout ? fmt::format("did not end within {:g} s", limit()) : worker.how_it_ended();
        if (progress.item.empty())
            throw Error(ExitCode::no_resources, "card check: the worker " + problem +
                                                    " before its first check; --card-check off skips the check");
        progress.lose(problem);
    }
}

}  // namespace llmc
