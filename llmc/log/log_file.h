// A file of lines that a run appends to: metrics.jsonl, main.log. Every line is written immediately. A file that cannot
// be written does not end the run: the problem is reported once, and lines wait in memory. If somebody moves the file
// away, the next lines go to a new file of the same name.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace llmc {

class LogFile {
public:
    LogFile() = default;  // ignores all lines until open()
    ~LogFile();
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;

    // Truncates the file to `bytes`: the lines after that are of steps that will be repeated. Warns and only appends if
    // this is not the file that once had `bytes` bytes. Throws Error if the file cannot be written.
    void open(const std::string& path, int64_t bytes);
    void append(const std::string& line);
    int64_t size() const;  // bytes up to the end of the last line, including lines that wait
    // Returns a function that flushes the written lines to the disk, for any thread at any time. It warns on failure.
    std::function<void()> synchronizer() const;

private:
    void follow_path();
    void write_waiting();
    void cut(int64_t size, int64_t bytes);

    std::string path_;
    int fd_ = -1;
    std::string waiting_;  // lines, or the rest of a line, that are not written yet
    bool failing_ = false;
    int64_t left_out_ = 0;  // number of lines dropped because too many were waiting
};

}  // namespace llmc
