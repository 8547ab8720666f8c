// A file of lines that a run appends to: metrics.jsonl, main.log. Every line goes to the file at once. A file that
// cannot be written, or that somebody moves away, does not end the run: it is reported once, and the lines wait in
// memory, or go to a new file.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace llmc {

class LogFile {
public:
    LogFile() = default;  // takes no lines
    ~LogFile();
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;

    // Cuts off what follows the first `bytes` bytes: the lines of steps that will be done again. Throws Error if the
    // file cannot be written. A file that is not the one that had `bytes` bytes is reported, and lines are added to it.
    void open(const std::string& path, int64_t bytes);
    void append(const std::string& line);
    int64_t size() const;  // bytes up to the end of the last line, including lines that wait
    // Brings the lines that have been written to the disk; for any thread, at any time. Reports what fails.
    std::function<void()> synchronizer() const;

private:
    void follow_path();
    void write_waiting();
    void cut(int64_t size, int64_t bytes);

    std::string path_;
    int fd_ = -1;
    std::string waiting_;  // lines, without what has been written of them
    bool failing_ = false;
    int64_t left_out_ = 0;  // lines
};

}  // namespace llmc
