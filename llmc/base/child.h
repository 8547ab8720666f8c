// Child processes: programs that work next to this one, such as the tokenizer that encodes prompts or the user's
// command after a checkpoint.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace llmc {

// Signals that a run ignores. Children get their default actions back: a shell cannot undo an ignored SIGPIPE, so
// `zcat ... | head` would fail.
constexpr int kIgnoredSignals[] = {SIGPIPE, SIGXFSZ};

// The path of a file or folder that is packaged with the program ("data/prepare"): next to the executable, or in
// the checkout whose build/CONFIGURATION/ holds it. "" if there is none.
std::string find_packaged(const std::string& name);

// A child process. Its standard error is this process's. It is in a process group of its own, so Ctrl-C in a terminal
// does not reach it, and it holds none of this process's files and sockets.
class Child {
public:
    // Standard input and output: none: empty, and standard error; both: pipes.
    enum class Pipes { none, both };

    // Starts the program command[0], which is searched in PATH, in `directory` ("": this one). result() tells if that
    // failed.
    Child(const std::vector<std::string>& command, Pipes pipes, const std::string& directory = "");
    // Closes the pipes: a child that reads its input ends by itself, even if this process is killed. Does not wait.
    ~Child() { close_pipes(); }
    Child(Child&&) = delete;

    int start_error() const { return start_error_; }  // errno if the child could not be started, else 0
    void close_pipes();
    void kill();  // ends the child at once; result() says so

    // How the child has ended: "" if it succeeded, else "failed with exit code 3", "was killed by signal 9" or "cannot
    // be started: No such file or directory". Returns std::nullopt while the child runs.
    std::optional<std::string> result();
    // The same, after waiting for at most `seconds`.
    std::optional<std::string> wait(double seconds);

    // Exchange text through the pipes. They return false if the child closes its end or `deadline`, a time of
    // monotonic_seconds(), passes first.
    bool write(const std::string& text, double deadline);
    bool read_line(std::string& line, double deadline);  // without the newline
    bool read_all(std::string& text, double deadline);   // up to the end of the output

private:
    bool receive(double deadline);

    pid_t pid_ = -1;
    int start_error_ = 0;
    int socket_ = -1;         // one end of a pair of sockets; the other is the child's standard input and output
    std::string unread_;      // output that has arrived but has not been returned
    bool closed_ = false;     // the child has closed its output
    std::optional<int> end_;  // the status from waitpid()
};

}  // namespace llmc
